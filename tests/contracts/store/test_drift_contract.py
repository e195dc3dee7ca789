"""The drift job confirms a change once, on both databases, whoever scans and however often."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from online_agent.config.settings import Settings
from online_agent.config.training import DriftSettings
from online_agent.drift.monitor import CONFIRMED, DETECTED
from online_agent.drift.scan import scan
from online_agent.store.records import ChangeNew
from online_agent.store.session import Database
from online_agent.types import Visibility
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import TENANT
from tests.fakes.traffic import ENV, Traffic

SETTINGS = Settings(drift=DriftSettings(min_episodes=40, cooldown_episodes=128))


@pytest.fixture
def traffic(db: Database, clock: ManualClock) -> Traffic:
    return Traffic(db, clock)


def events(db: Database) -> list[str]:
    with db.reading() as tx:
        return [event.kind for event in tx.events.list()]


def reset_cause(db: Database) -> str | None:
    with db.reading() as tx:
        request = tx.control.get().reset_request
    return None if request is None else request.cause


def change(visibility: Visibility) -> ChangeNew:
    return ChangeNew(TENANT, ENV, "rename_tool", {"tool": "edit_file", "to": "patch"}, visibility)


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


def test_scans_at_the_same_time_confirm_a_change_once(db, traffic):
    traffic.run(120, 0.8, 0.1)
    scan(db, SETTINGS)
    traffic.run(120, 0.2, 0.6)
    with ThreadPoolExecutor(4) as pool:
        findings = [kind for found in pool.map(lambda _: scan(db, SETTINGS), range(4)) for kind in found]
    assert [finding.kind for finding in findings] == [DETECTED, CONFIRMED]
    assert events(db) == [DETECTED, CONFIRMED]
