"""The drift job against a real database: what it reads, writes and asks for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from envs.types import Artifact, Verdict
from online_agent.config.settings import Settings
from online_agent.config.training import DriftSettings
from online_agent.drift.monitor import CONFIRMED, DETECTED, REBASELINED
from online_agent.drift.scan import scan, state_name
from online_agent.store.records import ChangeNew, EpisodeNew
from online_agent.store.session import Database
from online_agent.types import StopReason, Visibility
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import TENANT, make_turn
from tests.fakes.traffic import ENV, Traffic

SETTINGS = Settings(drift=DriftSettings(min_episodes=40, cooldown_episodes=128))


@pytest.fixture
def db(sqlite_url: str, clock: ManualClock) -> Iterator[Database]:
    database = Database(sqlite_url, clock=clock)
    yield database
    database.close()


@pytest.fixture
def traffic(db: Database, clock: ManualClock) -> Traffic:
    return Traffic(db, clock)


def events(db: Database) -> list[str]:
    with db.reading() as tx:
        return [event.kind for event in tx.events.list() if event.kind != "rollback"]


def reset_cause(db: Database) -> str | None:
    with db.reading() as tx:
        request = tx.control.get().reset_request
    return None if request is None else request.cause


def change(visibility: Visibility) -> ChangeNew:
    return ChangeNew(TENANT, ENV, "rename_tool", {"tool": "edit_file", "to": "patch"}, visibility)


def test_an_empty_database_has_nothing_to_find(db):
    assert scan(db, SETTINGS) == []


def test_each_episode_is_looked_at_once_also_when_it_is_graded_late(db, traffic, clock):
    traffic.run(10, 1.0, 0.0)
    with db.transaction() as tx:
        late = tx.episodes.create(EpisodeNew(TENANT, ENV, "train-1", "train"))
        tx.episodes.add_turn(late, make_turn())
        tx.episodes.finish(late, StopReason.SUBMITTED, Artifact({}, is_submitted=True))
    traffic.run(10, 1.0, 0.0)
    scan(db, SETTINGS)
    assert num_seen(db) == 20
    with db.transaction() as tx:
        tx.episodes.grade(late, Verdict(0.0, False))
    scan(db, SETTINGS)
    scan(db, SETTINGS)
    assert num_seen(db) == 21


def num_seen(db: Database) -> int:
    with db.reading() as tx:
        return tx.detectors.load(state_name(ENV))["summary"]["num_episodes"]


def test_held_out_tasks_are_not_live_traffic(db, traffic):
    traffic.run(5, 1.0, 0.0)
    traffic.run(20, 0.0, 0.0, split="heldout")
    scan(db, SETTINGS)
    assert num_seen(db) == 5


def test_tasks_that_clients_give_move_no_detector(db, traffic):
    """They may be as hard as their sender likes: failing all of them is no drift of the environment."""
    traffic.run(80, 0.9, 0.0)
    assert scan(db, SETTINGS) == []
    traffic.run(200, 0.0, 0.9, task_id="inline-0123456789abcdef")
    assert scan(db, SETTINGS) == []
    assert num_seen(db) == 80


def test_a_documented_change_and_its_end_each_reset_the_baselines_at_once(db, traffic):
    traffic.run(60, 0.8, 0.1)
    scan(db, SETTINGS)
    with db.transaction() as tx:
        record = tx.changes.add(change(Visibility.DOCUMENTED))
    (finding,) = scan(db, SETTINGS)
    assert finding.kind == CONFIRMED
    assert reset_cause(db) == f"announced change: {record.id}"
    assert scan(db, SETTINGS) == []
    traffic.run(100, 0.1, 0.7)
    assert scan(db, SETTINGS) == [], "nothing is compared across the change"
    with db.transaction() as tx:
        tx.changes.revert(TENANT, record.id)
    assert [f.kind for f in scan(db, SETTINGS)] == [CONFIRMED]


def test_a_documented_change_that_was_there_first_is_no_news(db, traffic):
    with db.transaction() as tx:
        tx.changes.add(change(Visibility.DOCUMENTED))
    traffic.run(5, 0.8, 0.1)
    assert scan(db, SETTINGS) == []
    assert reset_cause(db) is None


def test_a_rollback_resets_the_baselines_and_asks_for_nothing(db, traffic):
    traffic.run(100, 0.8, 0.1)
    scan(db, SETTINGS)
    with db.transaction() as tx:
        tx.events.add("rollback", {"target": 0, "version": 9}, version=9)
    assert [finding.kind for finding in scan(db, SETTINGS)] == [REBASELINED]
    assert reset_cause(db) is None
    assert scan(db, SETTINGS) == []


def test_a_scan_that_dies_leaves_everything_to_the_next_one(db, traffic, monkeypatch):
    traffic.run(120, 0.8, 0.1)
    scan(db, SETTINGS)
    traffic.run(120, 0.2, 0.6)

    def full(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("online_agent.store.repositories.events.DetectorRepository.save", full)
        with pytest.raises(OSError, match="disk full"):
            scan(db, SETTINGS)
    assert events(db) == []
    assert reset_cause(db) is None
    scan(db, SETTINGS)
    assert events(db) == [DETECTED, CONFIRMED]


def test_a_scan_without_news_writes_nothing(db, traffic, monkeypatch):
    traffic.run(5, 0.8, 0.1)
    scan(db, SETTINGS)
    monkeypatch.setattr(Database, "transaction", None)
    assert scan(db, SETTINGS) == []


def test_state_of_another_format_is_started_anew(db, traffic):
    with db.transaction() as tx:
        tx.detectors.save(state_name(ENV), {"format": 0, "whatever": 1})
    traffic.run(5, 0.8, 0.1)
    assert scan(db, SETTINGS) == []
    assert num_seen(db) == 5
