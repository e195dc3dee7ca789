"""What the jobs of one worker process share: database, weights, engine client, environments and one event loop.

Built on the first job, after the pool has forked, so that no connection, socket or sandbox crosses a fork.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from functools import cached_property
from typing import Any, TypeVar

from envs.registry import build_environments
from envs.sandbox.nsjail import NsjailSandbox
from online_agent.config.settings import Settings
from online_agent.jobs.enqueue import JobQueue
from online_agent.jobs.grading import Grader
from online_agent.serving.client import EngineClient
from online_agent.serving.connect import connect
from online_agent.store.session import Database
from online_agent.telemetry.tracing import setup_tracing, shut_down_tracing
from online_agent.weights.store import WeightStore

Result = TypeVar("Result")

# A sandbox uses max_jobs users for agents and as many for verifiers.
_USERS_PER_JOB = 2


class WorkerContext:
    """One per worker process. Jobs run one after another on its loop, so what it holds needs no locks."""

    def __init__(self, settings: Settings, slot: int = 1) -> None:
        """``slot`` numbers the processes with a sandbox on one machine (0 is the api), so that none share a user."""
        self._slot = slot
        self.settings = settings
        setup_tracing("worker", settings)
        self.db = Database(settings.database_url, settings.database.busy_timeout_s)
        self.weights = WeightStore(settings.weights_dir)
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._runner = asyncio.Runner()

    @cached_property
    def queue(self) -> JobQueue:
        return JobQueue(self.settings)

    @cached_property
    def engine(self) -> EngineClient:
        return connect(self.settings)

    @cached_property
    def sandbox(self) -> NsjailSandbox:
        sandbox = self.settings.sandbox
        first_uid = sandbox.first_uid + _USERS_PER_JOB * sandbox.max_jobs * self._slot
        return NsjailSandbox(sandbox.max_jobs, sandbox.memory_mb, sandbox.max_output_bytes, first_uid)

    @cached_property
    def grader(self) -> Grader:
        return Grader(self.db, build_environments(self.sandbox), self.settings.jobs, self.name)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of the coroutine, run to its end on this process's loop."""
        return self._runner.run(work)

    def close(self) -> None:
        opened = self.__dict__
        if "sandbox" in opened:
            self.run(self.sandbox.close())
        if "engine" in opened:
            self.run(self.engine.aclose())
        if "queue" in opened:
            self.queue.close()
        self._runner.close()
        self.db.close()
        shut_down_tracing()
