"""An episode as server-sent events: ``turn``, ``tool_call``, ``observation``, ``verdict``, ``done``.

The stream reads the runner's events and holds no database connection. A client that leaves ends its stream, and the
episode only if it asked for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent

from api.runtime import Runtime

PING_S = 15
EPISODE_HEADER = "X-Episode-Id"

OnDisconnect = Literal["continue", "cancel"]


def stream_response(
    runtime: Runtime, episode_id: str, headers: dict[str, str], on_disconnect: OnDisconnect
) -> EventSourceResponse:
    headers = {**headers, EPISODE_HEADER: episode_id}
    return EventSourceResponse(_events(runtime, episode_id, on_disconnect), headers=headers, ping=PING_S)


async def _events(runtime: Runtime, episode_id: str, on_disconnect: OnDisconnect) -> AsyncIterator[ServerSentEvent]:
    number = 0
    with runtime.waiting():
        try:
            async for event in runtime.runner.events(episode_id):
                yield ServerSentEvent(orjson.dumps(event.data).decode(), event=event.kind, id=str(number))
                number += 1
        except asyncio.CancelledError:
            if runtime.is_drained_under_us():
                return
            if on_disconnect == "cancel":
                runtime.keep(asyncio.create_task(runtime.runner.cancel(episode_id)))
            raise
