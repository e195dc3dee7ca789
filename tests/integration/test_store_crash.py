"""kill -9 and fork: what was committed is whole, what was not is gone, and the next life goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from online_agent.store.session import Database
from online_agent.types import EpisodeStatus
from tests.fakes.episodes import TENANT, commit_step, graded_episode, open_episode, reserve_step, seed_version

_WRITER = """
    import sys
    from online_agent.store.session import Database
    from tests.fakes.episodes import make_turn

    db = Database(sys.argv[1])
    for number in range(100_000):
        with db.transaction() as tx:
            tx.episodes.add_turn(sys.argv[2], make_turn(number))
            tx.events.add("turn", {"number": number})
        print(number, flush=True)
"""

_IMPORTER = """
    import itertools, sys
    from benchmarks.ingest import make_turns
    from envs.types import Verdict
    from online_agent.store.records import EpisodeNew, ImportNew
    from online_agent.store.session import Database
    from online_agent.types import StopReason

    db = Database(sys.argv[1])
    episode = EpisodeNew("acme", "imported:shop", "order-1", "train")
    turns = make_turns(0, num_turns=2, num_tokens=2000)
    for batch in itertools.count():
        names = [f"{batch}-{number}" for number in range(5)]
        with db.transaction() as tx:
            tx.imports.add("acme", [
                ImportNew(name, name, episode, turns, Verdict(1.0, True, {}), StopReason.SUBMITTED) for name in names
            ])
        print(batch, flush=True)
"""

_LEARNER = """
    import os, signal, sys
    from online_agent.store.session import Database
    from tests.fakes.episodes import commit_step, reserve_step

    db, point = Database(sys.argv[1]), sys.argv[2]
    step = reserve_step(db, 2)
    if point == "reserved":
        os.kill(os.getpid(), signal.SIGKILL)
    if point == "inside the commit":
        from online_agent.store.records import VersionNew
        from online_agent.types import VersionOrigin
        with db.transaction() as tx:
            tx.steps.commit(step, VersionNew(1, VersionOrigin.STEP, parent=0, step=step), {}, 0)
            os.kill(os.getpid(), signal.SIGKILL)
    commit_step(db, step)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _start(script: str, *arguments: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_writer_killed_at_any_moment_leaves_whole_turns(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    episode_id = open_episode(db)
    last_said = -1
    for delay_s in (0.0, 0.013, 0.031):
        writer = _start(_WRITER, sqlite_url, episode_id)
        assert writer.stdout is not None
        with writer.stdout:
            last_said = int(writer.stdout.readline())
            time.sleep(delay_s)
            writer.send_signal(signal.SIGKILL)
            for line in writer.stdout:
                last_said = int(line)
        assert writer.wait(20) == -signal.SIGKILL
        with db.reading() as tx:
            turns = tx.episodes.turns(episode_id)
            num_events = len(tx.events.list(limit=1000))
            record = tx.episodes.get(TENANT, episode_id)
        assert [turn.number for turn in turns] == list(range(len(turns)))
        assert len(turns) == num_events == record.num_turns
        assert len(turns) >= last_said + 1
        assert all(len(turn.spans) == 3 for turn in turns)
    with db.reading() as tx:
        assert tx.connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
    db.close()


def test_an_importer_killed_at_any_moment_leaves_whole_batches_and_all_it_acknowledged(
    db: Database, database_url: str
) -> None:
    importer = _start(_IMPORTER, database_url)
    assert importer.stdout is not None
    with importer.stdout:
        said = [importer.stdout.readline() for _ in range(3)]
        time.sleep(0.017)
        importer.send_signal(signal.SIGKILL)
        said += list(importer.stdout)
    assert importer.wait(20) == -signal.SIGKILL
    num_acknowledged = sum(line.endswith("\n") for line in said)
    assert num_acknowledged >= 3
    with db.reading() as tx:
        stored = tx.episodes.list("acme", limit=1000).items
        turns = [tx.episodes.turns(record.id) for record in stored]
    assert len(stored) % 5 == 0
    assert len(stored) >= 5 * num_acknowledged
    assert all([len(span.token_ids) for turn in of for span in turn.spans] == [1000] * 4 for of in turns)


@pytest.mark.parametrize(("point", "num_trained"), [("reserved", 0), ("inside the commit", 0), ("after the commit", 2)])
def test_a_learner_killed_around_its_commit_trains_every_episode_once(
    sqlite_url: str, point: str, num_trained: int
) -> None:
    db = Database(sqlite_url)
    seed_version(db)
    ids = [graded_episode(db), graded_episode(db)]
    learner = _start(_LEARNER, sqlite_url, point)
    assert learner.wait(60) == -signal.SIGKILL
    assert learner.stdout is not None
    learner.stdout.close()
    with db.reading() as tx:
        assert tx.episodes.counts_by_status()[EpisodeStatus.TRAINED] == num_trained
    with db.transaction() as tx:
        assert len(tx.steps.release_own("learner")) == (0 if num_trained else 1)
    step = reserve_step(db, 2)
    if num_trained == 0:
        assert step is not None
        commit_step(db, step)
    else:
        assert step is None
    with db.reading() as tx:
        assert [tx.episodes.get(TENANT, i).status for i in ids] == [EpisodeStatus.TRAINED] * 2
        assert tx.episodes.trained_twice() == 0
        assert [v.version for v in tx.weights.list()] == [1, 0]
    db.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_uses_its_own_connections(db: Database) -> None:
    """Celery forks its workers: a connection shared by two processes would mix their answers."""
    with db.transaction() as tx:
        tx.events.add("parent", {})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with db.transaction() as tx:
                tx.events.add("child", {})
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with db.transaction() as tx:
        assert [event.kind for event in tx.events.list()] == ["parent", "child"]
