"""Episodes count their tool calls and tool errors, and the database refuses a reward outside [-1, 1].

SQLite rebuilds the table for the constraint; its turns and feedback stay (foreign keys are off during a migration).

Revision ID: 20261129_tool_counts
Revises: 20261129_initial
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261129_tool_counts"
down_revision = "20261129_initial"
branch_labels = None
depends_on = None

_REWARD_RANGE = "reward IS NULL OR (reward >= -1 AND reward <= 1)"


def upgrade() -> None:
    with op.batch_alter_table("episodes") as episodes:
        episodes.add_column(sa.Column("num_tool_calls", sa.Integer(), server_default="0", nullable=False))
        episodes.add_column(sa.Column("num_tool_errors", sa.Integer(), server_default="0", nullable=False))
        episodes.create_check_constraint("reward_range", _REWARD_RANGE)


def downgrade() -> None:
    with op.batch_alter_table("episodes") as episodes:
        episodes.drop_constraint("reward_range", type_="check")
        episodes.drop_column("num_tool_errors")
        episodes.drop_column("num_tool_calls")
