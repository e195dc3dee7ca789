"""What a tenant agreed to, and the event that is kept of each change."""

from __future__ import annotations

from api.auth import Caller
from api.runtime import Runtime
from api.tenants.schemas import TenantOut, TenantUpdate
from online_agent.store.records import TenantRecord
from online_agent.store.session import Transaction


async def get(runtime: Runtime, caller: Caller) -> TenantOut:
    return TenantOut.of(await runtime.read(lambda tx: tx.tenants.get(caller.tenant_id)))


async def update(runtime: Runtime, caller: Caller, body: TenantUpdate) -> TenantOut:
    """What holds from now on. Saying the same again changes nothing and is an event all the same."""

    def work(tx: Transaction) -> TenantRecord:
        record = tx.tenants.set_training(caller.tenant_id, body.trains_shared_weights)
        facts = {
            "tenant_id": caller.tenant_id,
            "key_id": caller.key_id,
            "num_held": record.num_held,
            "versions": list(record.versions),
        }
        tx.events.add("tenant_opted_in" if record.trains_shared_weights else "tenant_opted_out", facts)
        return record

    return TenantOut.of(await runtime.write(work))
