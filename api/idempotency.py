"""One effect for one ``Idempotency-Key``: same body → the first answer again, other body → 409.

Invariants. The key is taken (begin) before the effect and given its answer (finish) after it. A handler that raises
frees the key, so the caller may try again; a handler whose process died frees it when its lease in the store runs out.
A handler that works for longer than its lease renews it.
Of two requests at the same time one works; the other waits for its answer, at most ``WAIT_S``, then gets 409 with
Retry-After.
Answers stay after the row they speak of is erased, so they must hold ids, never contents or secrets.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson
from fastapi import Header, Request
from fastapi.responses import Response
from pydantic import BaseModel

from api.auth import Caller
from api.runtime import Runtime
from online_agent.errors import Busy, Conflict, StorageFull
from online_agent.store.records import Done, Fresh, Mismatch
from online_agent.store.repositories.idempotency import LEASE_S

WAIT_S = 10.0
POLL_S = 0.02
MAX_POLL_S = 0.5
RENEW_S = LEASE_S / 4
REPLAY_HEADER = "Idempotent-Replay"

KEY_HEADER: Final = "Idempotency-Key"
KEY_TEXT = "Repeat the request with the same key and body to get the first answer again."
MAX_KEY_CHARS = 200

IdempotencyKey = Annotated[
    str | None, Header(alias=KEY_HEADER, min_length=1, max_length=MAX_KEY_CHARS, description=KEY_TEXT)
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the handler answered, now or the first time. ``body`` is remembered; ``shown`` is sent instead this once."""

    status: int
    body: dict[str, Any]
    shown: dict[str, Any] | None = None
    is_replay: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return {REPLAY_HEADER: "true"} if self.is_replay else {}

    def response(self) -> Response:
        content = self.body if self.shown is None else self.shown
        return Response(orjson.dumps(content), self.status, self.headers, "application/json")


def body_hash(body: BaseModel | None) -> str:
    """The same for bodies that mean the same: key order and spelled-out defaults do not matter."""
    content = {} if body is None else body.model_dump(mode="json")
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True, slots=True)
class Claim:
    """What names one request: the key's tenant, the client's key, the call and the hash of its body."""

    tenant_id: str
    key: str
    route: str
    body_hash: str


def claim_of(request: Request, caller: Caller, key: str | None, body: BaseModel | None = None) -> Claim | None:
    """The claim of this request; None when the client sent no key."""
    if key is None:
        return None
    return Claim(caller.tenant_id, key, f"{request.method} {request.url.path}", body_hash(body))


async def once(runtime: Runtime, claim: Claim | None, effect: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """The answer of ``effect``, which runs at most once for a claim. Without a claim it simply runs.

    Raises Conflict when the key was used with another body, or when its first request is still running after WAIT_S.
    """
    if claim is None:
        return await effect()
    done = await _begin(runtime, claim)
    if done is not None:
        return Outcome(done.status, done.body, is_replay=True)
    work = asyncio.create_task(_finish(runtime, claim, effect))
    runtime.keep(work)
    return await asyncio.shield(work)  # a client that hangs up does not stop the work halfway


async def _finish(runtime: Runtime, claim: Claim, effect: Callable[[], Awaitable[Outcome]]) -> Outcome:
    holding = asyncio.create_task(_hold(runtime, claim))
    try:
        answer = await effect()
    except BaseException:
        await runtime.write(lambda tx: tx.idempotency.release(claim.tenant_id, claim.key))
        raise
    finally:
        holding.cancel()
    await runtime.write(lambda tx: tx.idempotency.finish(claim.tenant_id, claim.key, answer.status, answer.body))
    return answer


async def _hold(runtime: Runtime, claim: Claim) -> None:
    """The key stays taken for as long as the work lasts. A busy or full database is asked again later."""
    while True:
        await asyncio.sleep(RENEW_S)
        with suppress(Busy, StorageFull):
            await runtime.write(lambda tx: tx.idempotency.renew(claim.tenant_id, claim.key))


async def _begin(runtime: Runtime, claim: Claim) -> Done | None:
    """None once this request holds the key; Done when an earlier one has answered."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    pause_s = POLL_S
    while True:
        begun = await runtime.write(
            lambda tx: tx.idempotency.begin(claim.tenant_id, claim.key, claim.route, claim.body_hash)
        )
        if isinstance(begun, Fresh):
            return None
        if isinstance(begun, Done):
            return begun
        if isinstance(begun, Mismatch):
            raise Conflict(f"{KEY_HEADER} {claim.key!r} was used with another request", param=KEY_HEADER)
        if asyncio.get_running_loop().time() + pause_s > deadline:
            raise Conflict(
                f"the first request with {KEY_HEADER} {claim.key!r} is still running",
                param=KEY_HEADER,
                retry_after_s=1,
            )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_POLL_S)
