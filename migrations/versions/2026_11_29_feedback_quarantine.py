"""Who of a source gave feedback; finding what one gave lately and what waits for an operator.

Revision ID: 20261129_feedback_quarantine
Revises: 20261129_key_limits
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261129_feedback_quarantine"
down_revision = "20261129_key_limits"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("feedback", sa.Column("person", sa.String(length=255), nullable=True))
    op.create_index("ix_feedback_tenant_id_source_created_at", "feedback", ["tenant_id", "source", "created_at"])
    op.create_index("ix_feedback_tenant_id_fate_id", "feedback", ["tenant_id", "fate", "id"])


def downgrade() -> None:
    op.drop_index("ix_feedback_tenant_id_fate_id", "feedback")
    op.drop_index("ix_feedback_tenant_id_source_created_at", "feedback")
    op.drop_column("feedback", "person")
