"""The training queue has an index of its own, which stays small however many episodes are not for training.

Revision ID: 20261129_training_queue
Revises: 20261129_tool_counts
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261129_training_queue"
down_revision = "20261129_tool_counts"
branch_labels = None
depends_on = None

_QUEUED = sa.text(
    "status = 'graded' AND split = 'train' AND untrainable_reason IS NULL AND temperature > 0 AND num_action_tokens > 0"
)


def upgrade() -> None:
    op.create_index(
        "ix_episodes_queue",
        "episodes",
        ["status", "split", "finished_at", "id"],
        sqlite_where=_QUEUED,
        postgresql_where=_QUEUED,
    )


def downgrade() -> None:
    op.drop_index("ix_episodes_queue", table_name="episodes")
