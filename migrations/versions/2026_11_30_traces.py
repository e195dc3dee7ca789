"""Episodes and the answers of clients' episodes remember the trace that asked for them.

Revision ID: 20261130_traces
Revises: 20261130_tenant_consent
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_traces"
down_revision = "20261130_tenant_consent"
branch_labels = None
depends_on = None

_TABLES = ("episodes", "completions")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("traceparent", sa.String(length=55), nullable=True))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "traceparent")
