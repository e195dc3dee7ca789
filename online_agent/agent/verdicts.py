"""Waits for what another process does: the grading of finished episodes. One query for all that wait."""

from __future__ import annotations

import asyncio

from online_agent.agent.recorder import Recorder
from online_agent.errors import OnlineAgentError
from online_agent.types import EpisodeStatus

POLL_S = 0.1
UNSETTLED = (EpisodeStatus.OPEN, EpisodeStatus.FINISHED)


class VerdictWatch:
    """Polls the store while someone waits, and only then."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: dict[str, set[asyncio.Future[str | None]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def settled(self, episode_id: str) -> str | None:
        """The episode's tenant once it is graded, failed or dropped; None when it does not exist (any more)."""
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(episode_id, set()).add(future)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            return await future
        finally:
            waiters = self._waiting.get(episode_id)
            if waiters is not None:
                waiters.discard(future)
                if not waiters:
                    del self._waiting[episode_id]

    async def close(self) -> None:
        """Those who still wait are cancelled."""
        for futures in list(self._waiting.values()):
            for future in futures:
                future.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _poll(self) -> None:
        while self._waiting:
            asked = list(self._waiting)
            try:
                progress = await self._recorder.progress(asked)
            except OnlineAgentError as error:
                for episode_id in asked:
                    self._tell(episode_id, error=error)
                continue
            for episode_id in asked:
                tenant_id, status = progress.get(episode_id, (None, None))
                if status not in UNSETTLED:
                    self._tell(episode_id, tenant_id)
            await asyncio.sleep(POLL_S)

    def _tell(self, episode_id: str, tenant_id: str | None = None, error: OnlineAgentError | None = None) -> None:
        for future in self._waiting.pop(episode_id, ()):
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(tenant_id)
