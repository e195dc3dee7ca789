"""The ingest benchmark writes what it says it writes, and its kill is a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ingest
from online_agent.store.records import FeedbackRule
from online_agent.store.session import Database
from online_agent.types import EpisodeStatus
from tests.fakes.episodes import seed_version


@pytest.mark.parametrize("write", ["live", "batched"])
def test_every_episode_is_stored_whole_and_waits_for_the_learner(sqlite_url: str, write: str) -> None:
    db = Database(sqlite_url)
    seed_version(db)
    ingest.prepare(db)
    episodes = [ingest.make_turns(seed, num_turns=3, num_tokens=20) for seed in range(5)]
    if write == "live":
        ingest.write_live(db, episodes, concurrency=2)
    else:
        ingest.write_batched(db, episodes, run=0, batch=2)
    with db.reading() as tx:
        assert tx.episodes.counts_by_status()[EpisodeStatus.GRADED] == 5
        assert tx.episodes.queue().num_ready == 5
    with db.transaction() as tx:
        for row in tx.episodes.reserve(1, 5, 0, 8, FeedbackRule.VERDICT_ONLY, allow_fewer=False):
            assert len(row.token_ids) == 3 * 20
            assert row.num_action_tokens == 3 * 10
        tx.connection.rollback()
    db.close()


def test_the_size_is_that_of_the_file_without_a_log_beside_it(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    ingest.write_batched(db, [ingest.make_turns(seed) for seed in range(10)], run=0)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    measured = ingest.bytes_per_token(path, 10 * ingest.TOKENS_PER_EPISODE)
    assert 6 < measured < 10  # 4 bytes an id, 4 a log-prob of every second one
    assert db.wal_bytes() == 0
    db.close()


def test_a_killed_writer_loses_no_turn_it_acknowledged(tmp_path: Path) -> None:
    assert ingest.num_lost_after_kill(tmp_path, after=20) == 0


def test_a_lost_turn_would_be_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_stored_turns", lambda path: set())
    assert ingest.num_lost_after_kill(tmp_path, after=5) >= 5
