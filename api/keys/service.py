"""Keys of one tenant: made, rotated, listed, revoked. A secret is shown once and stored only as a hash."""

from __future__ import annotations

from api.auth import Caller
from api.idempotency import Claim, Outcome, once
from api.keys.schemas import KeyCreate, KeyCreated, KeyList, KeyOut, KeyRotate
from api.runtime import Runtime
from online_agent.store.records import KeyRecord
from online_agent.types import Scope


async def create(runtime: Runtime, caller: Caller, body: KeyCreate, claim: Claim | None) -> Outcome:
    """The new key. What is remembered for a repeated request leaves the secret out."""

    async def effect() -> Outcome:
        scopes = frozenset(Scope(name) for name in body.scopes)
        more = body.model_dump(include={"expires_in_s", "requests_per_minute", "tokens_per_day"})
        return _shown_once(
            *await runtime.write(lambda tx: tx.keys.create(caller.tenant_id, body.name, scopes, **more)), 201
        )

    return await once(runtime, claim, effect)


async def rotate(runtime: Runtime, caller: Caller, key_id: str, body: KeyRotate, claim: Claim | None) -> Outcome:
    """The key with a new secret. Raises NotFound for another tenant's, Conflict for one that opens nothing."""

    async def effect() -> Outcome:
        record, secret = await runtime.write(lambda tx: tx.keys.rotate(caller.tenant_id, key_id, body.overlap_s))
        runtime.known_keys.forget()
        return _shown_once(record, secret, 200)

    return await once(runtime, claim, effect)


def _shown_once(record: KeyRecord, secret: str, status: int) -> Outcome:
    remembered = KeyCreated.of(record, secret=None)
    shown = remembered.model_copy(update={"secret": secret})
    return Outcome(status, remembered.model_dump(), shown.model_dump())


async def list_keys(runtime: Runtime, caller: Caller) -> KeyList:
    records = await runtime.read(lambda tx: tx.keys.list(caller.tenant_id))
    return KeyList(data=[KeyOut.of(record) for record in records])


async def revoke(runtime: Runtime, caller: Caller, key_id: str) -> None:
    """The key opens nothing from now on. Raises NotFound for another tenant's."""
    await runtime.write(lambda tx: tx.keys.revoke(caller.tenant_id, key_id))
    runtime.known_keys.forget()
