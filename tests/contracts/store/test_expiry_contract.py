"""Retention by tenant, on SQLite and on PostgreSQL."""

from __future__ import annotations

from online_agent.config.signal import TenantSettings
from online_agent.promotion.expiry import BATCH, DAY_S, erase_expired
from online_agent.store.records import EpisodeNew
from online_agent.store.session import Database
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import TENANT, commit_step, graded_episode, open_episode, reserve_step, seed_version


def _left(db: Database, episode_ids: list[str]) -> list[str]:
    with db.reading() as tx:
        return [episode_id for episode_id in episode_ids if episode_id in tx.episodes.progress(episode_ids)]


def test_an_episode_is_erased_so_many_days_after_its_end(db: Database, clock: ManualClock) -> None:
    old = graded_episode(db)
    clock.advance(1)
    young, open_one, others = graded_episode(db), open_episode(db), graded_episode(db, tenant="rival")
    tenants = {TENANT: TenantSettings(retention_days=2), "rival": TenantSettings()}
    clock.advance(2 * DAY_S - 1)
    assert erase_expired(db, tenants) == {}
    clock.advance(0.5)
    assert erase_expired(db, tenants) == {TENANT: 1}
    assert _left(db, [old, young, open_one, others]) == [young, open_one, others]
    clock.advance(30 * DAY_S)
    assert erase_expired(db, tenants) == {TENANT: 1}
    assert _left(db, [young, open_one, others]) == [open_one, others]


def test_what_a_step_holds_stays_and_what_it_trained_on_stays_known(db: Database, clock: ManualClock) -> None:
    seed_version(db)
    graded_episode(db)
    step = reserve_step(db, 1)
    assert step is not None
    clock.advance(3 * DAY_S)
    tenants = {TENANT: TenantSettings(retention_days=2)}
    assert erase_expired(db, tenants) == {}
    version = commit_step(db, step)
    assert erase_expired(db, tenants) == {TENANT: 1}
    with db.reading() as tx:
        assert [row.is_erased for row in tx.weights.episodes_of(version)] == [True]


def test_more_than_one_batch_goes_in_one_run(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        for _ in range(BATCH + 3):
            tx.episodes.fail(tx.episodes.create(EpisodeNew(TENANT, "bug_repair", "train-1", "train")), "outage")
    clock.advance(3 * DAY_S)
    assert erase_expired(db, {TENANT: TenantSettings(retention_days=2)}) == {TENANT: BATCH + 3}
