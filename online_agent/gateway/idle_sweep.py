"""Clients come and go without a word: what they left open is closed, what nobody rewarded is given up.

Safe to run in several processes at once: each move is a compare-and-set of its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from online_agent.config.serving import GatewaySettings
from online_agent.errors import Busy
from online_agent.store.session import Database
from online_agent.store.threaded import ThreadedDatabase
from online_agent.telemetry.logging import get_logger
from online_agent.types import StopReason

log = get_logger(__name__)


class IdleSweep:
    """``start`` inside a running event loop; ``close`` ends it."""

    def __init__(self, db: Database, settings: GatewaySettings, threads: Executor) -> None:
        self._clock, self._settings, self._store = db.clock, settings, ThreadedDatabase(db, threads)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._for_ever(), name="idle episodes")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def once(self) -> list[str]:
        """Episodes without a call for too long are closed, unrewarded ones dropped; returns the closed ones."""
        now = self._clock()
        idle_since, unrewarded_since = now - self._settings.idle_timeout_s, now - self._settings.reward_wait_s
        closed = [
            episode_id
            for episode_id in await self._store.read(lambda tx: tx.clients.idle(idle_since))
            if await self._is_closed(episode_id, idle_since)
        ]
        num_dropped = 0
        if await self._store.read(lambda tx: tx.clients.num_unrewarded(unrewarded_since)):
            num_dropped = await self._store.write(lambda tx: tx.clients.drop_unrewarded(unrewarded_since))
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

    async def _is_closed(self, episode_id: str, idle_since: float) -> bool:
        return await self._store.write(lambda tx: tx.clients.close(episode_id, StopReason.IDLE, idle_since))
