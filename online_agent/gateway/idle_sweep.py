"""Clients come and go without a word: what they left open is closed, what nobody rewarded is given up.

Safe to run in several processes at once: each move is a compare-and-set of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from online_agent.config.settings import GatewaySettings
from online_agent.errors import Busy
from online_agent.store.session import Database
from online_agent.telemetry.logging import get_logger
from online_agent.types import StopReason

log = get_logger(__name__)

T = TypeVar("T")


class IdleSweep:
    """``start`` inside a running event loop; ``close`` ends it."""

    def __init__(self, db: Database, settings: GatewaySettings, threads: Executor) -> None:
        self._db, self._settings, self._threads = db, settings, threads
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._for_ever(), name="idle episodes")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def once(self) -> list[str]:
        """Episodes without a call for too long are closed, unrewarded ones dropped; returns the closed ones."""
        now = self._db.clock()
        idle_since, unrewarded_since = now - self._settings.idle_timeout_s, now - self._settings.reward_wait_s
        closed = [
            episode_id
            for episode_id in await self._on_thread(partial(self._idle, idle_since))
            if await self._on_thread(partial(self._closed, episode_id, idle_since))
        ]
        num_dropped = await self._on_thread(partial(self._dropped, unrewarded_since))
        if closed or num_dropped:
            log.info("idle episodes closed", num_closed=len(closed), num_dropped=num_dropped)
        return closed

    async def _for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_s)
            try:
                await self.once()
            except Busy as error:
                log.warning("idle episodes not closed", reason=error.message)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _idle(self, idle_since: float) -> list[str]:
        with self._db.reading() as tx:
            return tx.clients.idle(idle_since)

    def _closed(self, episode_id: str, idle_since: float) -> bool:
        with self._db.transaction() as tx:
            return tx.clients.close(episode_id, StopReason.IDLE, idle_since)

    def _dropped(self, finished_before: float) -> int:
        with self._db.reading() as tx:
            if not tx.clients.num_unrewarded(finished_before):
                return 0
        with self._db.transaction() as tx:
            return tx.clients.drop_unrewarded(finished_before)
