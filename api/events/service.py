"""Reading the log of what happened. An event that names a tenant is shown to that tenant alone."""

from __future__ import annotations

from collections.abc import Sequence

from api.auth import Caller
from api.events.schemas import EventList, EventOut
from api.runtime import Runtime
from online_agent.store.records import EventRecord


async def list_events(
    runtime: Runtime, caller: Caller, kinds: Sequence[str] | None, after_id: int, limit: int
) -> EventList:
    records = await runtime.read(lambda tx: tx.events.list(kinds=kinds, after_id=after_id, limit=limit))
    last_id = records[-1].id if records else after_id
    return EventList(
        data=[EventOut.of(record) for record in records if is_visible(record, caller)],
        next_cursor=str(last_id) if len(records) == limit else None,
        last_id=last_id,
    )


def is_visible(record: EventRecord, caller: Caller) -> bool:
    return record.data.get("tenant_id") in (None, caller.tenant_id)
