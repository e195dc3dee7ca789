"""Changes injected under the agent: checked against the environment as it stands, stored, reverted."""

from __future__ import annotations

from typing import Any

from api.auth import Caller
from api.changes.schemas import AfterEpisodes, ChangeCreate, ChangeList, ChangeOut
from api.envs.service import changed_environment, environment
from api.idempotency import Claim, Outcome, once
from api.runtime import Runtime
from envs.changes import check_change
from online_agent.store.records import ChangeNew, ChangeRecord
from online_agent.store.session import Transaction
from online_agent.types import Visibility


async def inject(runtime: Runtime, caller: Caller, body: ChangeCreate, claim: Claim | None) -> Outcome:
    """The stored change, active at once or pending. Raises BadChange naming the bad value, UnknownName for the env."""
    changed, _ = await changed_environment(runtime, body.env)
    check_change(changed, body.kind, body.params)
    new = ChangeNew(
        tenant_id=caller.tenant_id,
        env=body.env,
        kind=body.kind,
        params=body.params,
        visibility=Visibility(body.visibility),
        starts_after_episodes=body.starts.after_episodes if isinstance(body.starts, AfterEpisodes) else 0,
        ends_after_episodes=body.ends.after_episodes if body.ends else None,
        is_mid_episode=body.mid_episode,
    )

    def add(tx: Transaction) -> ChangeRecord:
        record = tx.changes.add(new)
        tx.events.add("change_injected", _facts(record))
        return record

    async def effect() -> Outcome:
        return Outcome(201, ChangeOut.of(await runtime.write(add)).model_dump())

    return await once(runtime, claim, effect)


async def list_changes(runtime: Runtime, caller: Caller, env: str | None) -> ChangeList:
    if env is not None:
        environment(runtime, env)
    records = await runtime.read(lambda tx: tx.changes.list(caller.tenant_id, env))
    return ChangeList(data=[ChangeOut.of(record) for record in records])


async def revert(runtime: Runtime, caller: Caller, change_id: str) -> ChangeOut:
    """The ended change. Raises NotFound for another tenant's, Conflict when it had ended before."""

    def end(tx: Transaction) -> ChangeRecord:
        record = tx.changes.revert(caller.tenant_id, change_id)
        tx.events.add("change_reverted", _facts(record))
        return record

    return ChangeOut.of(await runtime.write(end))


def _facts(record: ChangeRecord) -> dict[str, Any]:
    return {
        "tenant_id": record.tenant_id,
        "change_id": record.id,
        "env": record.env,
        "kind": record.kind,
        "params": dict(record.params),
        "visibility": record.visibility.value,
        "state": record.state.value,
    }
