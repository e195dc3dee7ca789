"""Episodes of tenants that keep theirs for some days only."""

from __future__ import annotations

from collections.abc import Mapping

from online_agent.config.signal import TenantSettings
from online_agent.store.session import Database
from online_agent.telemetry.logging import get_logger

_log = get_logger(__name__)

DAY_S = 86_400.0
BATCH = 200  # rows of one short transaction, so that nobody waits long for the database
MAX_BATCHES = 50


def erase_expired(db: Database, tenants: Mapping[str, TenantSettings]) -> dict[str, int]:
    """How many ended episodes were erased of each tenant that had some; what is left is for the next run."""
    erased: dict[str, int] = {}
    for tenant_id, settings in tenants.items():
        if settings.retention_days is None:
            continue
        before = db.clock() - settings.retention_days * DAY_S
        for _ in range(MAX_BATCHES):
            with db.reading() as tx:
                old = tx.expiry.ended(tenant_id, before, BATCH)
            if not old:
                break
            with db.transaction() as tx:
                erased[tenant_id] = erased.get(tenant_id, 0) + tx.expiry.erase(old)
    if erased:
        _log.info("episodes past their retention erased", num_by_tenant=erased)
    return erased
