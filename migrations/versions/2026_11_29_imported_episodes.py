"""Which episodes were brought in, by the ids that their owners gave them.

Revision ID: 20261129_imported_episodes
Revises: 20261129_client_episodes
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261129_imported_episodes"
down_revision = "20261129_client_episodes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "imported_episodes",
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("client_hash", sa.String(length=64), nullable=False),
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "client_hash", name="pk_imported_episodes"),
    )


def downgrade() -> None:
    op.drop_table("imported_episodes")
