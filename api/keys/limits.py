"""What a key may ask for: checked after the key is known and before the body is read.

Requests are counted per process, tokens in the store: they survive a restart and are the same for all processes.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers

from api.keys.limiter import OverLimit
from api.runtime import Runtime
from online_agent.errors import BadInput
from online_agent.store.records import KeyRecord
from online_agent.store.repositories.keys import LAST_USED_EVERY_S

DAY_S = 86_400.0
SAMPLING_PATHS = frozenset({"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/episodes"})
_RECORDS = frozenset({"1", "true", "t", "yes", "y", "on"})


async def admit(runtime: Runtime, key: KeyRecord, method: str, path: str, headers: Headers) -> None:
    """Counts the request. Raises OverLimit, or BadInput for a call whose tokens could not be counted."""
    if key.requests_per_minute is not None:
        runtime.key_limiter.take(key.id, key.requests_per_minute)
    if runtime.key_limiter.is_first_use(key.id, LAST_USED_EVERY_S):
        runtime.keep(asyncio.create_task(runtime.write(lambda tx: tx.keys.touch(key.id))))
    if key.tokens_per_day is not None and method == "POST" and path in SAMPLING_PATHS:
        if headers.get("x-record", "true").strip().lower() not in _RECORDS:
            raise BadInput("a key with a token limit cannot ask for an answer that is not stored", param="X-Record")
        await _check_tokens(runtime, key, key.tokens_per_day)


async def _check_tokens(runtime: Runtime, key: KeyRecord, limit: int) -> None:
    now = runtime.db.clock()
    midnight = now - now % DAY_S
    used = await runtime.read(lambda tx: tx.keys.num_tokens(key.id, since=midnight))
    if used >= limit:
        raise OverLimit(
            f"this key may use {limit} tokens a day (UTC) and has used {used}", retry_after_s=midnight + DAY_S - now
        )
