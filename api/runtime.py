"""What a request handler may reach: built once by the lifespan, closed by it.

Store calls are synchronous and run on a small thread pool; no transaction is open while a handler waits for anything
else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Request

from api.episodes.tasks import TaskCounter
from api.keys.known import KnownKeys
from api.keys.limiter import KeyLimiter
from api.metrics import ApiMetrics
from envs.protocols import Environment
from online_agent.agent.runner import EpisodeRunner
from online_agent.config.settings import Settings
from online_agent.gateway.gateway import Gateway
from online_agent.redaction import Redactor
from online_agent.rendering import ChatRenderer
from online_agent.serving.client import EngineClient
from online_agent.store.records import KeyRecord
from online_agent.store.session import Database, Transaction
from online_agent.store.threaded import ThreadedDatabase
from online_agent.weights.store import WeightStore

T = TypeVar("T")


class Jobs(Protocol):
    """``online_agent.jobs.enqueue.JobQueue``, or a fake. Each call raises BrokerUnavailable when it is not sent."""

    def publish(self, version: int) -> None: ...
    def rollback(self, target: int, actor: str) -> str: ...


@dataclass(slots=True)
class Runtime:
    settings: Settings
    db: Database
    threads: Executor
    weights: WeightStore
    engine: EngineClient
    environments: Mapping[str, Environment]
    runner: EpisodeRunner
    jobs: Jobs
    metrics: ApiMetrics = field(default_factory=ApiMetrics)
    task_counter: TaskCounter = field(default_factory=TaskCounter)
    key_limiter: KeyLimiter = field(default_factory=KeyLimiter)
    redactor: Redactor = field(default_factory=Redactor.of)
    gateway: Gateway | None = None
    renderer: ChatRenderer | None = None
    is_draining: bool = False
    known_keys: KnownKeys = field(init=False)
    _store: ThreadedDatabase = field(init=False)
    _work: set[asyncio.Task[Any]] = field(default_factory=set)
    _num_waiting: int = 0
    _nobody_waits: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._store = ThreadedDatabase(self.db, self.threads)
        self.known_keys = KnownKeys(self.settings.api.key_cache_s, self.db.clock, self._look_up)

    async def _look_up(self, secret: str) -> KeyRecord | None:
        return await self.read(lambda tx: tx.keys.authenticate(secret))

    def keep(self, work: asyncio.Task[Any]) -> None:
        """Hold on to work that may outlive the request that began it; the event loop alone would forget it."""
        self._work.add(work)
        work.add_done_callback(self._forget)

    def _forget(self, work: asyncio.Task[Any]) -> None:
        self._work.discard(work)
        if not work.cancelled():
            work.exception()  # whoever still waits gets it from the task; nobody else needs to hear of it

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a client's wait for an episode, so that a shutdown can let it end."""
        self._num_waiting += 1
        self._nobody_waits.clear()
        try:
            yield
        finally:
            self._num_waiting -= 1
            if not self._num_waiting:
                self._nobody_waits.set()

    async def until_nobody_waits(self, timeout_s: float) -> None:
        """Every client that waited has its answer, or ``timeout_s`` is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._num_waiting:
                    await self._nobody_waits.wait()

    def is_drained_under_us(self) -> bool:
        """In a handler of CancelledError: whether the runner gave up the wait, not the request that waits."""
        task = asyncio.current_task()
        return self.is_draining and task is not None and not task.cancelling()

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """The result of ``work``, committed when this returns."""
        return await self._store.write(work)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        return await self._store.read(work)

    async def on_thread(self, work: Callable[[], T]) -> T:
        """The result of blocking work that is not the database's: sending a job, reading a manifest."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)


def runtime_of(request: Request) -> Runtime:
    runtime = request.app.state.runtime
    assert isinstance(runtime, Runtime)
    return runtime


async def _runtime(request: Request) -> Runtime:
    return runtime_of(request)


RuntimeDep = Annotated[Runtime, Depends(_runtime)]
