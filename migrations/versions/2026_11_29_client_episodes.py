"""Episodes that clients run: their names, how their turns hang together, and generations that are no turns.

Revision ID: 20261129_client_episodes
Revises: 20261129_old_logprobs
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261129_client_episodes"
down_revision = "20261129_old_logprobs"
branch_labels = None
depends_on = None

_NAMED = sa.text("name IS NOT NULL")
_HAS_PARENT = sa.text("parent_id IS NOT NULL")


def _of_episode(table: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_episode_id_episodes"
    return sa.ForeignKeyConstraint(["episode_id"], ["episodes.id"], name=name, ondelete="CASCADE")


def upgrade() -> None:
    op.create_table(
        "client_episodes",
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("parent_id", sa.String(length=255), nullable=True),
        sa.Column("active_at", sa.Double(), nullable=False),
        sa.Column("num_segments", sa.Integer(), nullable=False),
        sa.Column("num_kept_tokens", sa.Integer(), nullable=False),
        sa.Column("num_discarded_tokens", sa.Integer(), nullable=False),
        _of_episode("client_episodes"),
        sa.PrimaryKeyConstraint("episode_id", name="pk_client_episodes"),
    )
    op.create_index(
        "uq_client_episodes_name",
        "client_episodes",
        ["tenant_id", "name"],
        unique=True,
        sqlite_where=_NAMED,
        postgresql_where=_NAMED,
    )
    op.create_index(
        "ix_client_episodes_parent_id",
        "client_episodes",
        ["parent_id"],
        sqlite_where=_HAS_PARENT,
        postgresql_where=_HAS_PARENT,
    )
    op.create_index("ix_client_episodes_active_at", "client_episodes", ["active_at"])
    op.create_table(
        "completions",
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("turn", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("completion_id", sa.String(length=255), nullable=False),
        sa.Column("choice", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.String(length=32), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("branched_from", sa.Integer(), nullable=True),
        sa.Column("call_hash", sa.String(length=32), nullable=False),
        sa.Column("history_hash", sa.String(length=32), nullable=False),
        sa.Column("message_hash", sa.String(length=32), nullable=False),
        sa.Column("num_forced", sa.Integer(), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("untrainable_reason", sa.Text(), nullable=True),
        sa.Column("is_cut_short", sa.Boolean(), nullable=False),
        sa.Column("message", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("tags", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("weight_version", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        _of_episode("completions"),
        sa.PrimaryKeyConstraint("episode_id", "turn", name="pk_completions"),
    )
    op.create_index("ix_completions_tenant_id_completion_id", "completions", ["tenant_id", "completion_id", "choice"])
    op.create_table(
        "discarded_generations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=True),
        sa.Column("completion_id", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("text", sa.JSON(), nullable=False),
        sa.Column("span_index", sa.JSON(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        _of_episode("discarded_generations"),
        sa.PrimaryKeyConstraint("id", name="pk_discarded_generations"),
    )
    op.create_index("ix_discarded_generations_episode_id", "discarded_generations", ["episode_id"])


def downgrade() -> None:
    op.drop_table("discarded_generations")
    op.drop_table("completions")
    op.drop_table("client_episodes")
