"""What has happened in an episode so far, for any number of readers, each from the beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from online_agent.agent.requests import EpisodeEvent


class EventLog:
    """Written by one episode; readers get every event once, past ones first, and stop when it is closed."""

    def __init__(self) -> None:
        self._events: list[EpisodeEvent] = []
        self._is_closed = False
        self._news: asyncio.Event | None = None

    def add(self, event: EpisodeEvent) -> None:
        self._events.append(event)
        self._wake()

    def close(self) -> None:
        self._is_closed = True
        self._wake()

    async def read(self) -> AsyncIterator[EpisodeEvent]:
        position = 0
        while True:
            while position < len(self._events):
                yield self._events[position]
                position += 1
            if self._is_closed:
                return
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()

    def _wake(self) -> None:
        # Made only for logs that someone reads: most episodes have no reader.
        if self._news is not None:
            self._news.set()
            self._news = None
