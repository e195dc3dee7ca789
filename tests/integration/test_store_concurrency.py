"""Many writers at once: nothing is lost, doubled or refused, and the write-ahead log stays bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from sqlalchemy.dialects import sqlite

from online_agent.errors import Conflict, DatabaseBusy, StorageFull
from online_agent.store.models.episodes import QUEUED
from online_agent.store.records import Done, Fresh, Running
from online_agent.store.repositories.groups import oldest_ready_groups
from online_agent.store.session import Database
from online_agent.types import EpisodeStatus
from online_agent.weights import WeightStore
from tests.fakes.episodes import (
    TENANT,
    commit_step,
    finished_episode,
    graded_episode,
    make_turn,
    open_episode,
    reserve_step,
    seed_version,
)
from tests.unit.weights.conftest import publish

_SECONDS = 10.0
_MAX_WAL_BYTES = 40 * 1024 * 1024


def _run_all(jobs: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(job) for job in jobs]
        wait(futures)
    for future in futures:
        future.result()


@pytest.mark.slow
def test_fifty_writers_and_a_claiming_learner_lose_nothing(sqlite_url: str, tmp_path: Path) -> None:
    """C24: 5 episodes, 50 writers of turns, a learner that reserves, writes a version and commits, a slow reader."""
    db = Database(sqlite_url, busy_timeout_s=30.0)
    other = Database(sqlite_url, busy_timeout_s=30.0)  # a second process holds its own connections and no lock of ours
    seed_version(db)
    weights = WeightStore(tmp_path / "weights")
    for _ in range(40):
        graded_episode(db)
    episodes = [open_episode(db) for _ in range(5)]
    written = [0] * 50
    steps: list[int] = []
    largest_wal = 0
    ends_at = time.monotonic() + _SECONDS

    def write(index: int) -> None:
        database = other if index % 10 == 0 else db
        while time.monotonic() < ends_at:
            with database.transaction() as tx:
                tx.episodes.add_turn(episodes[index % 5], make_turn())
            written[index] += 1

    def learn() -> None:
        while time.monotonic() < ends_at:
            step = reserve_step(other, 2)
            if step is not None:
                publish(weights, step)
                steps.append(step)
                commit_step(other, step)

    def read_slowly() -> None:
        nonlocal largest_wal
        with db.reading() as tx:
            while time.monotonic() < ends_at:
                tx.episodes.turns(episodes[0])
                largest_wal = max(largest_wal, db.wal_bytes())
                time.sleep(0.2)

    _run_all([*(lambda i=i: write(i) for i in range(50)), learn, read_slowly])

    with db.reading() as tx:
        for position, episode_id in enumerate(episodes):
            turns = tx.episodes.turns(episode_id)
            assert [turn.number for turn in turns] == list(range(len(turns)))
            assert len(turns) == sum(written[position::5])
            assert tx.episodes.get(TENANT, episode_id).num_turns == len(turns)
        assert tx.episodes.trained_twice() == 0
        assert tx.episodes.counts_by_status()[EpisodeStatus.TRAINED] == 2 * len(steps)
    assert all(written)
    assert len(set(steps)) == len(steps) > 0
    assert 0 < largest_wal < _MAX_WAL_BYTES
    db.close()
    other.close()


def test_the_log_is_cut_when_readers_kept_it_from_restarting(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("online_agent.store.session.WAL_LIMIT_BYTES", 1_000_000)
    monkeypatch.setattr("online_agent.store.session._WAL_CHECK_EVERY", 1)
    db = Database(sqlite_url)
    with db._reader.connect() as pinned:  # an old snapshot keeps the log from restarting
        pinned.exec_driver_sql("BEGIN")
        pinned.exec_driver_sql("SELECT count(*) FROM events").all()
        monkeypatch.setattr(db, "_bound_wal", lambda: None)
        for _ in range(12):
            with db.transaction() as tx:
                tx.events.add("big", {"text": "x" * 200_000})
        assert db.wal_bytes() > 2_000_000
        pinned.exec_driver_sql("ROLLBACK")
    monkeypatch.undo()
    monkeypatch.setattr("online_agent.store.session.WAL_LIMIT_BYTES", 1_000_000)
    monkeypatch.setattr("online_agent.store.session._WAL_CHECK_EVERY", 1)
    with db.transaction() as tx:
        tx.events.add("small", {})
    assert db.wal_bytes() == 0
    db.close()


def test_a_transaction_that_waits_too_long_says_the_database_is_busy(sqlite_url: str) -> None:
    """Within a process the queue times out; between processes SQLite's own timeout does."""
    db, other = Database(sqlite_url, busy_timeout_s=0.2), Database(sqlite_url, busy_timeout_s=0.2)
    is_inside, may_leave = threading.Event(), threading.Event()

    def hold() -> None:
        with db.transaction() as tx:
            tx.events.add("held", {})
            is_inside.set()
            may_leave.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_inside.wait(20)
    try:
        for waiting in (db, other):
            with pytest.raises(DatabaseBusy) as busy, waiting.transaction() as tx:
                tx.events.add("refused", {})
            assert busy.value.retry_after_s == 1.0
    finally:
        may_leave.set()
        holder.join(20)
    with other.transaction() as tx:
        assert [event.kind for event in tx.events.list()] == ["held"]
    db.close()
    other.close()


def test_a_transaction_inside_a_transaction_fails_at_once(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    with db.transaction(), pytest.raises(AssertionError, match="inside a transaction"), db.transaction():
        pass
    with db.transaction() as tx:
        tx.events.add("still works", {})
    db.close()


@pytest.mark.parametrize("num_threads", [8])
def test_each_finished_episode_is_claimed_exactly_once(db: Database, num_threads: int) -> None:
    """C23: the claim is atomic in the database, whatever the broker delivers twice."""
    ids = {finished_episode(db) for _ in range(24)}
    claimed: list[str] = []

    def claim(worker: str) -> None:
        while True:
            with db.transaction() as tx:
                claims = tx.episodes.claim_ungraded(worker, lease_s=60, limit=2)
            if not claims:
                return
            claimed.extend(claim.episode_id for claim in claims)

    _run_all([lambda n=n: claim(f"w{n}") for n in range(num_threads)])
    assert sorted(claimed) == sorted(ids)


def test_learners_that_race_never_share_an_episode(db: Database) -> None:
    seed_version(db)
    for _ in range(12):
        graded_episode(db)
    committed: list[int] = []

    def learn() -> None:
        for _ in range(20):
            try:
                step = reserve_step(db, 2)
            except Conflict:
                time.sleep(0.01)
                continue
            if step is None:
                return
            commit_step(db, step)
            committed.append(step)

    _run_all([learn] * 3)
    with db.reading() as tx:
        assert tx.episodes.trained_twice() == 0
        trained = [e.episode_id for v in tx.weights.list() for e in tx.weights.episodes_of(v.version)]
    assert len(trained) == len(set(trained)) == 2 * len(committed)
    assert sorted(committed) == list(range(1, len(committed) + 1))
    assert len(committed) >= 2


def test_twins_with_one_idempotency_key_make_one_episode(db: Database) -> None:
    """C22: the loser waits for the winner's answer."""
    answers: list[str] = []

    def post() -> None:
        for _ in range(500):
            with db.transaction() as tx:
                begun = tx.idempotency.begin(TENANT, "k1", "POST /v1/episodes", "hash")
            if isinstance(begun, Done):
                answers.append(begun.body["id"])
                return
            if isinstance(begun, Running):
                time.sleep(0.01)
                continue
            assert isinstance(begun, Fresh)
            episode_id = open_episode(db)
            time.sleep(0.05)
            with db.transaction() as tx:
                tx.idempotency.finish(TENANT, "k1", 201, {"id": episode_id})
            answers.append(episode_id)
            return

    _run_all([post] * 6)
    with db.reading() as tx:
        (episode,) = tx.episodes.list(TENANT).items
    assert answers == [episode.id] * 6


def test_a_lease_has_one_winner_among_many(db: Database) -> None:
    won: list[str] = []

    def take(owner: str) -> None:
        with db.transaction() as tx:
            if tx.leases.acquire("swap", owner, ttl_s=60):
                won.append(owner)

    _run_all([lambda n=n: take(f"o{n}") for n in range(8)])
    assert len(won) == 1


def test_numbers_taken_at_the_same_time_differ(db: Database) -> None:
    numbers: list[int] = []

    def take() -> None:
        for _ in range(5):
            with db.transaction() as tx:
                numbers.append(tx.weights.next_version())

    _run_all([take] * 6)
    assert sorted(numbers) == list(range(30))


def test_a_reader_that_pins_the_log_delays_a_writer_only_for_a_moment(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("online_agent.store.session.WAL_LIMIT_BYTES", 1)
    monkeypatch.setattr("online_agent.store.session._WAL_CHECK_EVERY", 1)
    db = Database(sqlite_url, busy_timeout_s=30.0)
    with db._reader.connect() as pinned:
        pinned.exec_driver_sql("BEGIN")
        pinned.exec_driver_sql("SELECT count(*) FROM events").all()
        started_at = time.monotonic()
        with db.transaction() as tx:
            tx.events.add("written", {})
        assert time.monotonic() - started_at < 10.0
        pinned.exec_driver_sql("ROLLBACK")
    db.close()


def test_a_full_disk_is_named_and_loses_nothing_that_was_committed(sqlite_url: str) -> None:
    """SQLite's page limit stands in for the disk: it fails with the same error."""
    db = Database(sqlite_url)
    with db.transaction() as tx:
        tx.events.add("before", {})
        num_pages = tx.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        tx.connection.exec_driver_sql(f"PRAGMA max_page_count = {num_pages + 2}").close()
    with pytest.raises(StorageFull, match="no space left"), db.transaction() as tx:
        tx.events.add("big", {"text": "x" * 100_000})
    with db.transaction() as tx:
        tx.connection.exec_driver_sql("PRAGMA max_page_count = 1000000").close()
        tx.events.add("after", {})
    with db.reading() as tx:
        assert [event.kind for event in tx.events.list()] == ["before", "after"]
    db.close()


def test_the_training_queue_is_read_from_its_own_index_in_order(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    query = f"EXPLAIN QUERY PLAN SELECT id FROM episodes WHERE {QUEUED} ORDER BY finished_at, id LIMIT 64"
    with db.reading() as tx:
        (step,) = tx.connection.exec_driver_sql(query).all()
    assert "USING INDEX ix_episodes_queue" in step[3]
    db.close()


def test_waiting_groups_are_read_from_their_own_indexes(sqlite_url: str) -> None:
    """However many groups were trained on: one index holds what waits, the other finds the members of one group."""
    db = Database(sqlite_url)
    query = str(oldest_ready_groups(8).compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
    with db.reading() as tx:
        steps = [row[3] for row in tx.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}").all()]
    searched = [step for step in steps if step.startswith(("SEARCH", "SCAN episodes")) and "tenants" not in step]
    assert [step.partition(" USING INDEX ")[2].split(" ")[0] for step in searched] == [
        "ix_episodes_group_queue",
        "ix_episodes_group_id_status",
        "ix_episodes_group_id_status",
    ]
    db.close()
