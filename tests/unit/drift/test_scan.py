"""The drift job against a real database: what it reads, writes and asks for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from envs.types import Artifact, Observation, Verdict
from online_agent.config.settings import DriftSettings, Settings
from online_agent.drift.monitor import CONFIRMED, DETECTED, REBASELINED
from online_agent.drift.scan import scan, state_name
from online_agent.store.records import ChangeNew, EpisodeNew, TurnNew
from online_agent.store.session import Database
from online_agent.types import StopReason, ToolCall, Visibility
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import TENANT, make_turn

SETTINGS = Settings(drift=DriftSettings(min_episodes=40, cooldown_episodes=128))
ENV = "bug_repair"


@pytest.fixture
def db(sqlite_url: str, clock: ManualClock) -> Iterator[Database]:
    database = Database(sqlite_url, clock=clock)
    yield database
    database.close()


class Traffic:
    """Graded episodes, one a second, of five tool calls; a new version every 32 episodes."""

    def __init__(self, db: Database, clock: ManualClock) -> None:
        self._db, self._clock, self._random, self._number = db, clock, random.Random(0), 0

    def run(self, num: int, success: float, errors: float, split: str = "train") -> None:
        with self._db.transaction() as tx:
            for _ in range(num):
                self._clock.advance(1.0)
                episode_id = tx.episodes.create(EpisodeNew(TENANT, ENV, f"{split}-1", split))
                tx.episodes.add_turn(episode_id, self._turn(errors))
                tx.episodes.finish(episode_id, StopReason.SUBMITTED, Artifact({}, is_submitted=True))
                reward = float(self._random.random() < success)
                tx.episodes.grade(episode_id, Verdict(reward, reward > 0))
                self._number += 1

    def _turn(self, errors: float) -> TurnNew:
        turn = make_turn(versions=(self._number // 32,))
        observations = [Observation("x", is_error=self._random.random() < errors) for _ in range(5)]
        return TurnNew(turn.spans, tool_calls=[ToolCall("read_file")] * 5, observations=observations)


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


def test_a_confirmed_change_is_two_events_and_one_reset_request(db, traffic):
    with db.transaction() as tx:
        silent = tx.changes.add(change(Visibility.SILENT))
    for _ in range(3):
        traffic.run(40, 0.8, 0.1)
        assert scan(db, SETTINGS) == []
    for _ in range(6):
        traffic.run(20, 0.2, 0.6)
        scan(db, SETTINGS)
    assert events(db) == [DETECTED, CONFIRMED]
    assert reset_cause(db).startswith("environment change:")
    with db.transaction() as tx:
        assert tx.control.take_reset_request() is not None
        recorded = tx.events.list([CONFIRMED])[0].data
    assert recorded["env"] == ENV
    assert recorded["silent_changes"] == [silent.id], "the log shows the change next to the alarm"
    traffic.run(20, 0.2, 0.6)
    scan(db, SETTINGS)
    scan(db, SETTINGS)
    assert reset_cause(db) is None, "one reset for one change"


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


def test_scans_at_the_same_time_confirm_a_change_once(db, traffic):
    traffic.run(120, 0.8, 0.1)
    scan(db, SETTINGS)
    traffic.run(120, 0.2, 0.6)
    with ThreadPoolExecutor(4) as pool:
        findings = [kind for found in pool.map(lambda _: scan(db, SETTINGS), range(4)) for kind in found]
    assert [finding.kind for finding in findings] == [DETECTED, CONFIRMED]
    assert events(db) == [DETECTED, CONFIRMED]


def test_state_of_another_format_is_started_anew(db, traffic):
    with db.transaction() as tx:
        tx.detectors.save(state_name(ENV), {"format": 0, "whatever": 1})
    traffic.run(5, 0.8, 0.1)
    assert scan(db, SETTINGS) == []
    assert num_seen(db) == 5
