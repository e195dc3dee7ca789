"""What an answer amounted to, and whether its client offered tools: what alarms per weight version count.

Revision ID: 20261130_answer_kinds
Revises: 20261130_feedback_weights
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_answer_kinds"
down_revision = "20261130_feedback_weights"
branch_labels = None
depends_on = None

_INDEX = "ix_completions_weight_version_has_tools_answer_kind"


def upgrade() -> None:
    op.add_column("completions", sa.Column("answer_kind", sa.String(length=32), nullable=True))
    op.add_column("completions", sa.Column("has_tools", sa.Boolean(), nullable=True))
    op.create_index(_INDEX, "completions", ["weight_version", "has_tools", "answer_kind"])


def downgrade() -> None:
    op.drop_index(_INDEX, "completions")
    op.drop_column("completions", "has_tools")
    op.drop_column("completions", "answer_kind")
