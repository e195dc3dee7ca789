"""Interruptions of the engine, the generations that were under way in them, and exact old log-probs.

Revision ID: 20261129_old_logprobs
Revises: 20261129_groups_and_experts
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261129_old_logprobs"
down_revision = "20261129_groups_and_experts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "interruptions",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("paused_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("number", name="pk_interruptions"),
    )
    op.create_index(
        "uq_interruptions_open",
        "interruptions",
        ["is_open"],
        unique=True,
        sqlite_where=sa.text("is_open"),
        postgresql_where=sa.text("is_open"),
    )
    op.create_table(
        "partial_generations",
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("span_index", sa.JSON(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["episode_id"], ["episodes.id"], name="fk_partial_generations_episode_id_episodes", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("episode_id", name="pk_partial_generations"),
    )
    op.create_table(
        "old_logprobs",
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("first_token", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("prefix_hash", sa.String(length=32), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["episode_id"], ["episodes.id"], name="fk_old_logprobs_episode_id_episodes", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("episode_id", "first_token", "version", name="pk_old_logprobs"),
    )


def downgrade() -> None:
    op.drop_table("old_logprobs")
    op.drop_table("partial_generations")
    op.drop_index("uq_interruptions_open", table_name="interruptions")
    op.drop_table("interruptions")
