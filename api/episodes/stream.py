"""An episode as server-sent events: ``turn``, ``tool_call``, ``observation``, ``verdict``, ``done``.

The stream reads the runner's events and holds no database connection. A client that leaves ends its stream, not the
episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent

from api.runtime import Runtime

PING_S = 15
EPISODE_HEADER = "X-Episode-Id"


def stream_response(runtime: Runtime, episode_id: str, headers: dict[str, str]) -> EventSourceResponse:
    headers = {**headers, EPISODE_HEADER: episode_id}
    return EventSourceResponse(_events(runtime, episode_id), headers=headers, ping=PING_S)


async def _events(runtime: Runtime, episode_id: str) -> AsyncIterator[ServerSentEvent]:
    number = 0
    with runtime.waiting():
        try:
            async for event in runtime.runner.events(episode_id):
                yield ServerSentEvent(orjson.dumps(event.data).decode(), event=event.kind, id=str(number))
                number += 1
        except asyncio.CancelledError:
            if not runtime.is_drained_under_us():
                raise
