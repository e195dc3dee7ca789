"""How much a piece of feedback counts beside those of other sources. What was given before counts 1.

Revision ID: 20261130_feedback_weights
Revises: 20261130_traces
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_feedback_weights"
down_revision = "20261130_traces"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("feedback", sa.Column("weight", sa.Double(), server_default="1", nullable=False))


def downgrade() -> None:
    op.drop_column("feedback", "weight")
