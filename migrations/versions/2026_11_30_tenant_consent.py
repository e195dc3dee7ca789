"""What tenants agreed to. Those that are there go on training the shared weights, as they did; new ones opt in.

Revision ID: 20261130_tenant_consent
Revises: 20261129_plain_blobs
"""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "20261130_tenant_consent"
down_revision = "20261129_plain_blobs"
branch_labels = None
depends_on = None

_TENANTS = sa.table("tenants", sa.column("id"), sa.column("trains_shared_weights"), sa.column("changed_at"))


def upgrade() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("trains_shared_weights", sa.Boolean(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
    )
    known = sa.text("SELECT tenant_id FROM api_keys UNION SELECT tenant_id FROM episodes")
    now = time.time()
    rows = [
        {"id": tenant_id, "trains_shared_weights": True, "changed_at": now}
        for tenant_id in op.get_bind().execute(known).scalars()
    ]
    if rows:
        op.bulk_insert(_TENANTS, rows)


def downgrade() -> None:
    op.drop_table("tenants")
