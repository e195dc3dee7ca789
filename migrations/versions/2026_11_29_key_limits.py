"""Keys that expire, rotate and have limits.

Revision ID: 20261129_key_limits
Revises: 20261129_imported_episodes
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261129_key_limits"
down_revision = "20261129_imported_episodes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("old_prefix", sa.String(length=32), nullable=True),
        sa.Column("old_secret_hash", sa.String(length=64), nullable=True),
        sa.Column("old_until", sa.Double(), nullable=True),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("tokens_per_day", sa.Integer(), nullable=True),
    ):
        op.add_column("api_keys", column)
    op.create_index("uq_api_keys_old_prefix", "api_keys", ["old_prefix"], unique=True)
    op.create_index("ix_episodes_key_id_finished_at", "episodes", ["key_id", "finished_at"])


def downgrade() -> None:
    op.drop_index("ix_episodes_key_id_finished_at", "episodes")
    op.drop_index("uq_api_keys_old_prefix", "api_keys")
    for name in (
        "tokens_per_day",
        "requests_per_minute",
        "old_until",
        "old_secret_hash",
        "old_prefix",
        "last_used_at",
        "expires_at",
    ):
        op.drop_column("api_keys", name)
