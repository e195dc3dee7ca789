"""The report read from a real database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from online_agent.adaptation.report import adaptation_report
from online_agent.store.records import ChangeNew
from online_agent.store.session import Database
from online_agent.types import Visibility
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import TENANT, graded_episode, seed_version
from tests.fakes.traffic import ENV, Traffic


@pytest.fixture
def db(sqlite_url: str, clock: ManualClock) -> Iterator[Database]:
    database = Database(sqlite_url, clock=clock)
    yield database
    database.close()


def test_live_episodes_of_the_tenant_are_reported_and_held_out_ones_are_not(db, clock):
    seed_version(db)
    for reward in (1.0, 0.0, 1.0):
        clock.advance(1)
        graded_episode(db, reward=reward)
    clock.advance(1)
    graded_episode(db, reward=1.0, split="heldout")
    graded_episode(db, reward=1.0, tenant="other")
    with db.transaction() as tx:
        tx.changes.add(ChangeNew(TENANT, "bug_repair", "rename_tool", {}, Visibility.SILENT))
        tx.changes.add(ChangeNew("other", "bug_repair", "remove_tool", {}, Visibility.SILENT))
        tx.events.add("drift_detected", {"env": "bug_repair"})
        tx.events.add("drift_detected", {"env": "another"})
    report = adaptation_report(db, "bug_repair", tenant_id=TENANT, window=2)
    assert report.num_episodes == 3
    assert (report.points[-1].rate.num_successes, report.points[-1].rate.n) == (1, 2)
    assert [(m.kind, m.episode) for m in report.markers] == [("version", 0), ("change", 3), ("drift", 3)]
    assert [(c.kind, c.before.n, c.after.n) for c in report.changes] == [("rename_tool", 2, 0)]
    assert adaptation_report(db, "bug_repair").num_episodes == 4


def test_tasks_that_clients_give_are_no_part_of_the_report(db, clock):
    traffic = Traffic(db, clock)
    traffic.run(4, 1.0, 0.0)
    traffic.run(4, 0.0, 0.0, task_id="inline-0123456789abcdef")
    report = adaptation_report(db, ENV, window=2)
    assert (report.num_episodes, report.points[-1].rate.num_successes) == (4, 2)


def test_an_environment_without_episodes_has_an_empty_report(db):
    report = adaptation_report(db, "nowhere")
    assert (report.num_episodes, report.points, report.markers, report.changes) == (0, [], [], [])
