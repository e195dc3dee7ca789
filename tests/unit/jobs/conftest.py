"""A database with finished episodes, and a real Redis where a test asks for one."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envs.types import Artifact, Split, Task, ToolSpec, Verdict
from online_agent.jobs.redis import RedisServer, is_redis_up, prepare_redis
from online_agent.store.records import EpisodeNew
from online_agent.store.session import Database
from online_agent.supervisor.plan import free_port
from online_agent.types import StopReason
from tests.fakes.tenants import opt_in

TENANT = "t"


class ScriptedVerifier:
    """An environment whose ``verify`` does what the test says: a verdict, an exception, or waiting for ``release``."""

    name, version = "scripted", "1"

    def __init__(self) -> None:
        self.outcomes: dict[str, Verdict | Exception] = {}
        self.verified: list[str] = []
        self.release: asyncio.Event | None = None
        self.has_started = asyncio.Event()
        self.num_running = self.max_running = 0

    def system_prompt(self) -> str:
        return ""

    def tools(self) -> Sequence[ToolSpec]:
        return ()

    def task(self, task_id: str) -> Task:
        if task_id == "no-such-task":
            raise KeyError(task_id)
        return Task(self.name, task_id, "train", "", {})

    def tasks(self, split: Split, start: int, count: int) -> Sequence[Task]:
        return [self.task(f"{split}-{n}") for n in range(start, start + count)]

    async def start(self, task: Task) -> Any:
        raise NotImplementedError("grading starts no session")

    async def verify(self, task: Task, artifact: Artifact) -> Verdict:
        self.verified.append(task.id)
        self.has_started.set()
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        await (self.release.wait() if self.release else asyncio.sleep(0.01))
        self.num_running -= 1
        outcome = self.outcomes.get(task.id, Verdict(1.0, True, {"files": dict(artifact.files)}))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("database") / "empty.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    opt_in(database)
    database.close()
    return path


@pytest.fixture
def db(tmp_path: Path, migrated: Path, clock: Clock) -> Iterator[Database]:
    shutil.copyfile(migrated, tmp_path / "online_agent.db")
    database = Database(f"sqlite:///{tmp_path / 'online_agent.db'}", busy_timeout_s=5.0, clock=clock)
    yield database
    database.close()


def finish_episode(
    db: Database,
    task_id: str = "train-0",
    *,
    env: str = "scripted",
    files: Mapping[str, str] | None = None,
    traceparent: str | None = None,
) -> str:
    with db.transaction() as tx:
        episode_id = tx.episodes.create(EpisodeNew(TENANT, env, task_id, "train", traceparent=traceparent))
        tx.episodes.finish(episode_id, StopReason.SUBMITTED, Artifact(files or {"a.py": "x = 1\n"}, is_submitted=True))
    return episode_id


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = prepare_redis(tmp_path_factory.mktemp("redis"), free_port())
    process = subprocess.Popen(server.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not is_redis_up(server.url):
            assert time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait(10)
