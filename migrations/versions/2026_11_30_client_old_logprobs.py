"""Old log-probs of clients' episodes: several generations under way in one, and segments that differ by their prefix.

Revision ID: 20261130_client_old_logprobs
Revises: 20261130_judgements
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_client_old_logprobs"
down_revision = "20261130_judgements"
branch_labels = None
depends_on = None

_RUN = ("episode_id", "first_token", "version")
_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.drop_table("partial_generations")  # rows of a pause, which no upgrade outlives
    op.create_table(
        "partial_generations",
        sa.Column("number", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=True),
        *_contents(),
        sa.PrimaryKeyConstraint("number", name="pk_partial_generations"),
    )
    op.create_index("ix_partial_generations_episode_id", "partial_generations", ["episode_id"])
    _key_of_runs(*_RUN, "prefix_hash")


def downgrade() -> None:
    op.execute("DELETE FROM old_logprobs")  # several may have one key again
    _key_of_runs(*_RUN)
    op.drop_table("partial_generations")
    op.create_table(
        "partial_generations",
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        *_contents(),
        sa.PrimaryKeyConstraint("episode_id", name="pk_partial_generations"),
    )


def _contents() -> tuple[sa.Column[object] | sa.ForeignKeyConstraint, ...]:
    return (
        sa.Column("span_index", sa.JSON(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["episode_id"], ["episodes.id"], name="fk_partial_generations_episode_id_episodes", ondelete="CASCADE"
        ),
    )


def _key_of_runs(*columns: str) -> None:
    with op.batch_alter_table("old_logprobs") as runs:
        runs.drop_constraint("pk_old_logprobs", type_="primary")
        runs.create_primary_key("pk_old_logprobs", list(columns))
