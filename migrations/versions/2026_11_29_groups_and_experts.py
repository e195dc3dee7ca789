"""Episodes can be members of a group, and a turn keeps the experts that the engine chose.

Both indexes are partial: episodes without a group cost them nothing.

Revision ID: 20261129_groups_and_experts
Revises: 20261129_training_queue
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261129_groups_and_experts"
down_revision = "20261129_training_queue"
branch_labels = None
depends_on = None

_GROUPED = sa.text("group_id IS NOT NULL")
_QUEUED_IN_GROUP = sa.text(
    "status = 'graded' AND split = 'train' AND untrainable_reason IS NULL AND temperature > 0 AND num_action_tokens > 0"
    " AND group_id IS NOT NULL"
)


def upgrade() -> None:
    with op.batch_alter_table("episodes") as episodes:
        episodes.add_column(sa.Column("group_id", sa.String(length=255), nullable=True))
        episodes.add_column(sa.Column("group_size", sa.Integer(), nullable=True))
    with op.batch_alter_table("turns") as turns:
        turns.add_column(sa.Column("routed_experts", sa.LargeBinary(), nullable=True))
    op.create_index(
        "ix_episodes_group_id_status",
        "episodes",
        ["group_id", "status"],
        sqlite_where=_GROUPED,
        postgresql_where=_GROUPED,
    )
    op.create_index(
        "ix_episodes_group_queue",
        "episodes",
        ["status", "split", "group_id", "finished_at", "id"],
        sqlite_where=_QUEUED_IN_GROUP,
        postgresql_where=_QUEUED_IN_GROUP,
    )


def downgrade() -> None:
    op.drop_index("ix_episodes_group_queue", table_name="episodes")
    op.drop_index("ix_episodes_group_id_status", table_name="episodes")
    with op.batch_alter_table("turns") as turns:
        turns.drop_column("routed_experts")
    with op.batch_alter_table("episodes") as episodes:
        episodes.drop_column("group_size")
        episodes.drop_column("group_id")
