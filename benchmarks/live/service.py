"""The service of one run: its own data directory, on the shared engine, started ahead of its turn."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.live.engine import SEED_VERSION
from online_agent.demo.service import Service, running_service
from online_agent.supervisor.lock import running_pid
from online_agent.weights.store import WeightStore
from online_agent.weights.version_dir import VersionDir

SIGNAL_GAP_S = 0.5  # two signals of one kind at once are one


class RunService:
    """``launch`` returns at once; ``ready`` waits for it; ``close`` ends it and removes its data."""

    def __init__(self, data_dir: Path, model_dir: Path, env: Mapping[str, str]) -> None:
        self._data_dir, self._model_dir, self._env = data_dir, model_dir, env
        self._stack = AsyncExitStack()
        self._starting: asyncio.Task[Service] | None = None
        self.start_seconds = 0.0

    @property
    def seed(self) -> VersionDir:
        """The version that the service begins with, as it imported it."""
        return WeightStore(self._data_dir / "weights").open(SEED_VERSION)

    def learners_last_words(self) -> str:
        """The last line that the learner printed; empty when it printed nothing."""
        output = self._data_dir / "logs" / "learner.out"
        lines = output.read_text(errors="replace").strip().splitlines() if output.exists() else []
        return lines[-1][:300] if lines else ""

    def launch(self) -> None:
        self._starting = asyncio.create_task(self._start())

    async def ready(self) -> Service:
        """Raises OnlineAgentError with the end of its log when it does not come up."""
        assert self._starting is not None
        return await self._starting

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._hurry()
        await self._stack.aclose()
        await asyncio.to_thread(shutil.rmtree, self._data_dir, ignore_errors=True)

    async def _hurry(self) -> None:
        """The service stops without draining: nothing of it is needed any more. A second signal means just that."""
        pid = running_pid(self._data_dir)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            await asyncio.sleep(SIGNAL_GAP_S)

    async def _start(self) -> Service:
        started = time.monotonic()
        env = {**self._env, "ONLINE_AGENT_WEIGHTS__SEED_MODEL": str(self._model_dir)}
        service = await self._stack.enter_async_context(running_service(self._data_dir, env))
        self.start_seconds = time.monotonic() - started
        return service
