"""The tenants of tests take part in training; what a tenant has to say first is tested where it is the subject."""

from __future__ import annotations

from online_agent.store.session import Database

PARTAKERS = ("acme", "default", "t", "other", "globex")


def opt_in(db: Database) -> None:
    with db.transaction() as tx:
        for tenant_id in PARTAKERS:
            tx.tenants.opt_in_once(tenant_id)
