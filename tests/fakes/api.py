"""The HTTP application over a real SQLite file, with fakes for runner, engine, jobs and environment."""

from __future__ import annotations

import asyncio
import atexit
import functools
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from fastapi import FastAPI
from safetensors.numpy import save_file

from api.app import create_app
from api.metrics import ApiMetrics
from api.runtime import Runtime
from envs.given import GivenTask, parse_given
from envs.types import Artifact, Observation, Split, Task, ToolSpec, Verdict
from online_agent.agent.requests import EpisodeEvent, EpisodeRequest
from online_agent.config.settings import Settings
from online_agent.errors import BrokerUnavailable, UnknownName
from online_agent.serving.client import ModelInfo
from online_agent.store.records import EpisodeGroup, EpisodeNew, EpisodeRecord, TurnNew, VersionNew
from online_agent.store.session import Database
from online_agent.types import Scope, Span, SpanKind, StopReason, ToolCall, VersionOrigin, VersionRun, VersionState
from online_agent.weights.store import WeightStore
from tests.fakes.tenants import opt_in

TENANT, OTHER_TENANT = "acme", "globex"
ALL_SCOPES = (Scope.AGENT, Scope.OPERATOR, Scope.ADMIN)


class AddOne:
    """A toy environment: one tool, tasks with any number."""

    name, version = "add_one", "1"

    def system_prompt(self) -> str:
        return "Repair the file."

    def tools(self) -> Sequence[ToolSpec]:
        properties = {"path": {"type": "string"}, "old": {"type": "string"}, "new": {"type": "string"}}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return (ToolSpec("edit_file", "Replace text in a file.", parameters),)

    def task(self, task_id: str) -> Task:
        split, _, number = task_id.partition("-")
        if split not in ("train", "heldout") or not number.isdecimal():
            raise KeyError(task_id)
        return Task(self.name, task_id, split, f"Task {number}", {"a.py": "x = 1\n"}, {"tests": "assert x == 2"})

    def tasks(self, split: Split, start: int, count: int) -> Sequence[Task]:
        return [self.task(f"{split}-{number}") for number in range(start, start + count)]

    def task_schema(self) -> Mapping[str, Any]:
        return GivenTask.model_json_schema()

    def parse_task(self, given: Mapping[str, Any]) -> Task:
        task = parse_given(GivenTask, given)
        return Task(self.name, task.id, "train", task.prompt, task.files, {"tests": "assert x == 2"})

    async def start(self, task: Task) -> Any:
        raise NotImplementedError  # the fake runner plays no session

    async def verify(self, task: Task, artifact: Artifact) -> Verdict:
        raise NotImplementedError


def turn_of(version: int) -> TurnNew:
    """Two prompt tokens, three sampled under ``version``, one of an observation."""
    prompt = Span(SpanKind.PROMPT, 0, np.array([1, 2], np.int32))
    action = Span(
        SpanKind.ACTION,
        0,
        np.array([7, 8, 9], np.int32),
        np.array([-0.5, -0.25, -1.0], np.float32),
        (VersionRun(version, 0, 3),),
    )
    observation = Span(SpanKind.OBSERVATION, 0, np.array([4], np.int32))
    call = ToolCall("edit_file", {"path": "a.py"})
    return TurnNew([prompt, action, observation], "rev", "text", (call,), (Observation("done"),), "stop", 2)


class FakeRunner:
    """Plays each episode at once: one turn, then graded; held while ``hold`` is set.

    ``refuse`` is raised by the next start; every episode that was started is in ``started``.
    """

    def __init__(self, db: Database) -> None:
        self.db = db
        self.version = 1
        self.reward = 1.0
        self.started: list[EpisodeRequest] = []
        self.refuse: BaseException | None = None
        self.is_drained = False
        self.cancelled: list[str] = []
        self.has_cancelled = asyncio.Event()
        self.start_delay_s = 0.0
        self._free = asyncio.Event()
        self._free.set()
        self._has_started = asyncio.Event()
        self._ended: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._tenants: dict[str, str] = {}

    async def until_started(self, count: int) -> None:
        """``count`` episodes have been started."""
        while len(self._ended) < count:
            self._has_started.clear()
            await self._has_started.wait()

    def hold(self) -> None:
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    async def start(self, tenant_id: str, key_id: str, request: EpisodeRequest) -> str:
        new = await self._admitted(tenant_id, key_id, request)
        with self.db.transaction() as tx:
            episode_id = tx.episodes.create(new)
        self._launch(tenant_id, episode_id)
        return episode_id

    async def start_group(self, tenant_id: str, key_id: str, request: EpisodeRequest, group_size: int) -> EpisodeGroup:
        new = await self._admitted(tenant_id, key_id, request)
        with self.db.transaction() as tx:
            group = tx.episodes.create_group(new, group_size)
        for episode_id in group.episode_ids:
            self._launch(tenant_id, episode_id)
        return group

    async def _admitted(self, tenant_id: str, key_id: str, request: EpisodeRequest) -> EpisodeNew:
        await asyncio.sleep(self.start_delay_s)
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error
        try:
            task = request.task or AddOne().task(request.task_id)
        except KeyError as error:
            raise UnknownName(f"no task {request.task_id!r} in {request.env}", param="task_id") from error
        self.started.append(request)
        content = None if request.task is None else task.content()
        return EpisodeNew(
            tenant_id, request.env, request.task_id, task.split, sampling=request.sampling, limits=request.limits,
            key_id=key_id, weight_version=request.weight_version, metadata=request.metadata, task=content,
        )  # fmt: skip

    def _launch(self, tenant_id: str, episode_id: str) -> None:
        self._ended[episode_id], self._tenants[episode_id] = asyncio.Event(), tenant_id
        self._has_started.set()
        task = asyncio.create_task(self._play(episode_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _play(self, episode_id: str) -> None:
        await self._free.wait()
        self.finish(episode_id)
        self._ended[episode_id].set()

    def finish(self, episode_id: str) -> None:
        with self.db.transaction() as tx:
            tx.episodes.add_turn(episode_id, turn_of(self.version))
            tx.episodes.finish(episode_id, StopReason.SUBMITTED, Artifact({"a.py": "x = 2\n"}, True))
            tx.episodes.grade(episode_id, Verdict(self.reward, self.reward > 0, {"output": "1 passed"}))

    async def wait(self, episode_id: str, timeout_s: float) -> EpisodeRecord:
        ended = self._ended.get(episode_id)
        if ended is not None:
            await asyncio.wait([asyncio.ensure_future(ended.wait())], timeout=timeout_s)
        with self.db.reading() as tx:
            return tx.episodes.get(self._tenants[episode_id], episode_id)

    async def events(self, episode_id: str) -> AsyncIterator[EpisodeEvent]:
        yield EpisodeEvent("turn", {"number": 0, "text": "text"})
        await self._ended[episode_id].wait()
        yield EpisodeEvent("tool_call", {"name": "edit_file"})
        yield EpisodeEvent("observation", {"text": "done"})
        yield EpisodeEvent("verdict", {"reward": self.reward})
        yield EpisodeEvent("done", {"status": "graded", "stop_reason": "submitted", "failure_reason": None})

    async def cancel(self, episode_id: str) -> None:
        self.cancelled.append(episode_id)
        self.has_cancelled.set()

    async def drain(self, timeout_s: float) -> None:
        self.is_drained = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)


@dataclass
class FakeEngine:
    version: int | None = 1
    error: Exception | None = None

    async def model_info(self) -> ModelInfo:
        if self.error is not None:
            raise self.error
        return ModelInfo("weights", self.version)


@dataclass
class FakeJobs:
    """Remembers what was sent. ``on_rollback`` and ``on_publish`` are what the worker would do."""

    sent: list[tuple[Any, ...]] = field(default_factory=list)
    is_down: bool = False
    on_rollback: Callable[[int, str], None] = lambda target, request_id: None
    on_publish: Callable[[int], None] = lambda version: None

    def publish(self, version: int) -> None:
        self._send("publish", version)
        self.on_publish(version)

    def rollback(self, target: int, actor: str) -> str:
        self._send("rollback", target, actor)
        request_id = f"request-{len(self.sent)}"
        self.on_rollback(target, request_id)
        return request_id

    def _send(self, *message: Any) -> None:
        if self.is_down:
            raise BrokerUnavailable("the broker at redis://localhost does not answer; start Redis")
        self.sent.append(message)


@dataclass
class World:
    """One application and everything behind it. ``client`` carries a key with all scopes."""

    app: FastAPI
    runtime: Runtime
    db: Database
    runner: FakeRunner
    engine: FakeEngine
    jobs: FakeJobs
    secrets: dict[str, str]
    client: httpx.AsyncClient

    def headers(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secrets[who]}"}

    def serve_version(
        self, version: int, parent: int | None = None, origin: VersionOrigin = VersionOrigin.STEP
    ) -> None:
        """The version serves, in the database; ``write_version`` puts it on disk too."""
        new = VersionNew(version, origin, parent, state=VersionState.SERVING, content_hash=f"h{version}")
        with self.db.transaction() as tx:
            tx.weights.insert(new)

    def write_version(self, version: int, value: float | None = None) -> None:
        """The smallest directory that counts as a whole version; its tensors hold ``value``."""
        with self.runtime.weights.writer(version) as directory:
            (directory / "serving/config.json").write_text('{"architectures": ["Tiny"]}')
            (directory / "serving/tokenizer.json").write_text("{}")
            (directory / "learner/state.json").write_text("{}")
            for name in ("serving/model.safetensors", "learner/critic.safetensors"):
                save_file({"w": np.full((2, 2), version if value is None else value, np.float32)}, directory / name)

    async def episode(self, who: str = "all", **body: Any) -> dict[str, Any]:
        """A graded episode of the key's tenant."""
        answer = await self.client.post(
            "/v1/episodes?wait=true", json={"env": "add_one", **body}, headers=self.headers(who)
        )
        assert answer.status_code == 201, answer.text
        content: dict[str, Any] = answer.json()
        return content


@functools.cache
def _empty_database() -> Path:
    """A migrated SQLite file, made once: the migrations take longer than most tests."""
    directory = tempfile.mkdtemp(prefix="online-agent-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory) / "empty.db"
    db = Database(f"sqlite:///{path}")
    db.migrate()
    opt_in(db)
    db.close()
    return path


def make_keys(db: Database) -> dict[str, str]:
    """One key per scope, one with all of them, and one with all of them for another tenant."""
    wanted = {scope.value: (TENANT, (scope,)) for scope in Scope}
    wanted |= {"all": (TENANT, ALL_SCOPES), "other": (OTHER_TENANT, ALL_SCOPES)}
    with db.transaction() as tx:
        return {who: tx.keys.create(tenant, who, scopes)[1] for who, (tenant, scopes) in wanted.items()}


@asynccontextmanager
async def open_world(data_dir: Path, **sections: Any) -> AsyncIterator[World]:
    """A started application at version 1, serving; closed after the block. A database given by URL is migrated."""
    settings = Settings(data_dir=data_dir, **sections)
    if not settings.database.url:
        shutil.copyfile(_empty_database(), data_dir / "online_agent.db")
    db = Database(settings.database_url)
    runner, engine, jobs = FakeRunner(db), FakeEngine(), FakeJobs()

    @asynccontextmanager
    async def opener(settings: Settings) -> AsyncIterator[Runtime]:
        with ThreadPoolExecutor(4) as threads:
            metrics = ApiMetrics()
            yield Runtime(
                settings,
                db,
                threads,
                WeightStore(data_dir / "weights"),
                engine,
                {"add_one": AddOne()},
                runner,
                jobs,
                metrics,
                redactor=settings.redaction.redactor(metrics.redacted),
            )

    app = create_app(settings, opener)
    secrets = make_keys(db)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {secrets['all']}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            world = World(app, app.state.runtime, db, runner, engine, jobs, secrets, client)
            world.serve_version(1, origin=VersionOrigin.SEED)
            yield world
    db.close()


class _QuietServer(uvicorn.Server):
    def __init__(self, app: FastAPI) -> None:
        super().__init__(uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1))
        self.is_up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@asynccontextmanager
async def on_a_port(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """The same application on a real port of this machine, for what only sockets show: streams and disconnects."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = _QuietServer(world.app)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await server.is_up.wait()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, headers=world.headers("all"), trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        await task
        listener.close()
