"""Whose text may train the shared weights: what a tenant agreed to, as conditions on its episodes.

An episode is marked when it is opened, so its owner sees why at once; what the mark says is not believed when a step
claims it: the tenant is asked again there.
"""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from online_agent.store.models import Episode, Tenant

NOT_OPTED_IN = "the tenant has not opted in to training"
OPTED_OUT = "the tenant has opted out of training"

HAS_CONSENT = (
    select(Tenant.id).where(Tenant.id == Episode.tenant_id, Tenant.trains_shared_weights).correlate(Episode).exists()
)

_IS_OPTED_IN = select(Tenant.trains_shared_weights).where(Tenant.id == bindparam("of_tenant"))
"""Built once: every episode that is opened runs it."""


def is_opted_in(connection: Connection, tenant_id: str) -> bool:
    return bool(connection.execute(_IS_OPTED_IN, {"of_tenant": tenant_id}).scalar_one_or_none())


def bar_without_consent(connection: Connection, tenant_id: str, reason: str | None = None) -> str | None:
    """Why an episode that the tenant opens now is never trained on; ``reason`` where the tenant is no obstacle."""
    return reason if is_opted_in(connection, tenant_id) else NOT_OPTED_IN
