"""PostgreSQL stores token ids and log-probs as they are: trying to compress them costs time and saves nothing.

SQLite never compresses. Rows that are there stay as they are.

Revision ID: 20261129_plain_blobs
Revises: 20261129_feedback_quarantine
"""

from __future__ import annotations

from alembic import op

revision = "20261129_plain_blobs"
down_revision = "20261129_feedback_quarantine"
branch_labels = None
depends_on = None

_COLUMNS = ("token_ids", "logprobs")


def upgrade() -> None:
    _store("EXTERNAL")


def downgrade() -> None:
    _store("EXTENDED")


def _store(how: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        for column in _COLUMNS:
            op.execute(f"ALTER TABLE turns ALTER COLUMN {column} SET STORAGE {how}")
