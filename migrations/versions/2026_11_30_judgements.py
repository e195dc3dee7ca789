"""Which answers a judge has dealt with.

Revision ID: 20261130_judgements
Revises: 20261130_answer_kinds
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_judgements"
down_revision = "20261130_answer_kinds"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "judgements",
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("turn", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["episode_id"], ["episodes.id"], name="fk_judgements_episode_id_episodes", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("episode_id", "turn", name="pk_judgements"),
    )


def downgrade() -> None:
    op.drop_table("judgements")
