"""Whose episodes a step may claim: those of tenants that opted in, on SQLite and on PostgreSQL."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import text

from envs.types import Verdict
from online_agent.errors import BadInput
from online_agent.store.records import EpisodeNew, FeedbackNew, ImportNew, TenantRecord, TurnNew
from online_agent.store.repositories.consent import NOT_OPTED_IN, OPTED_OUT
from online_agent.store.session import Database
from online_agent.types import EpisodeStatus, FeedbackFate, Span, SpanKind, StopReason, VersionRun
from tests.database_fixtures import ManualClock
from tests.fakes.client_episodes import answer
from tests.fakes.episodes import (
    TENANT,
    commit_step,
    grade_member,
    graded_episode,
    graded_group,
    open_group,
    reserve_step,
    seed_version,
)

NEWCOMER = "newcomer"


@pytest.fixture(autouse=True)
def _served(db: Database) -> None:
    seed_version(db)


def opt(db: Database, trains: bool, tenant: str = NEWCOMER) -> TenantRecord:
    with db.transaction() as tx:
        return tx.tenants.set_training(tenant, trains)


def reasons(db: Database, tenant: str = NEWCOMER) -> list[str | None]:
    with db.reading() as tx:
        return [episode.untrainable_reason for episode in tx.episodes.list(tenant).items]


def of_a_client(db: Database, tenant: str = NEWCOMER) -> str:
    """A closed and rewarded episode of the tenant's own agent."""
    with db.transaction() as tx:
        episode_id = tx.clients.open(EpisodeNew(tenant, "client", "prompt-1", "train"))
    answer(db, episode_id)
    with db.transaction() as tx:
        tx.clients.close(episode_id, StopReason.CLOSED)
        tx.feedback.add(tenant, episode_id, FeedbackNew("app", 1.0))
        tx.clients.settle(episode_id)
    return episode_id


def imported(db: Database, tenant: str = NEWCOMER) -> str:
    action = Span(
        SpanKind.ACTION, 0, np.array([7, 8], np.int32), np.array([-1, -1], np.float32), (VersionRun(0, 0, 2),)
    )
    new = EpisodeNew(tenant, "imported:shop", "order-1", "train")
    item = ImportNew("log-1", "c", new, (TurnNew([action]),), Verdict(1.0, True, {}), StopReason.SUBMITTED)
    with db.transaction() as tx:
        [outcome] = tx.imports.add(tenant, [item])
    return outcome.episode_id


def in_a_group(db: Database, tenant: str = NEWCOMER) -> str:
    _, members = open_group(db, 2, tenant=tenant)
    for member in members:
        grade_member(db, member)
    return members[0]


def by_every_route(db: Database) -> list[str]:
    return [graded_episode(db, tenant=NEWCOMER), of_a_client(db), imported(db), in_a_group(db)]


def test_a_tenant_that_never_said_anything_trains_nothing_by_any_route_and_each_episode_says_why(db: Database) -> None:
    by_every_route(db)
    assert reasons(db) == [NOT_OPTED_IN] * 5
    with db.reading() as tx:
        assert {episode.status for episode in tx.episodes.list(NEWCOMER).items} == {EpisodeStatus.GRADED}
        assert tx.episodes.queue().num_ready == tx.episodes.queue(2).num_ready == 0
        assert tx.tenants.get(NEWCOMER) == TenantRecord(NEWCOMER, False, None, 0, ())
    assert reserve_step(db, 1) is None
    assert reserve_step(db, 2, group_size=2) is None


@pytest.mark.parametrize("group_size", [None, 2])
@pytest.mark.parametrize("consent", ["no row", "false"])
def test_an_episode_that_lost_its_mark_is_not_claimed_and_gets_it_back(
    db: Database, consent: str, group_size: int | None
) -> None:
    """Fault injection: the marks vanish. The claim asks the tenant itself, and takes only what others gave."""
    by_every_route(db)
    if consent == "false":
        opt(db, trains=False)
    with db.transaction() as tx:
        tx.connection.execute(text("UPDATE episodes SET untrainable_reason = NULL"))
    theirs = graded_group(db, 2)
    assert reserve_step(db, 4, group_size=group_size) is None, "two episodes of partakers wait, not four"
    assert reserve_step(db, 2, group_size=group_size) is not None
    with db.reading() as tx:
        held = tx.connection.execute(text("SELECT episode_id, tenant_id FROM step_episodes")).all()
        assert {tuple(row) for row in held} == {(episode_id, TENANT) for episode_id in theirs}
    assert reasons(db) == [NOT_OPTED_IN] * 5


def test_the_claim_query_itself_leaves_out_what_is_not_given(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault injection: neither mark nor the sweep before the claim is there."""
    by_every_route(db)
    with db.transaction() as tx:
        tx.connection.execute(text("UPDATE episodes SET untrainable_reason = NULL"))
        monkeypatch.setattr(type(tx.episodes), "_bar_without_consent", lambda self: None)
        assert tx.episodes.reserve(1, 1, 0, 8, allow_fewer=True) == []
        assert tx.old_logprobs.upcoming(10) == tx.old_logprobs.held_by(0) == []
        assert tx.episodes.reserve(1, 2, 0, 8, allow_fewer=True, group_size=2) == []


def test_opting_in_is_for_episodes_opened_later(db: Database, clock: ManualClock) -> None:
    graded_episode(db, tenant=NEWCOMER)
    assert opt(db, trains=True) == TenantRecord(NEWCOMER, True, clock.now, 0, ())
    later = graded_episode(db, tenant=NEWCOMER)
    assert reasons(db) == [None, NOT_OPTED_IN]
    assert reserve_step(db, 2) is None
    step = reserve_step(db, 1)
    assert step is not None
    with db.reading() as tx:
        assert tx.episodes.get(NEWCOMER, later).step == step


def test_opting_out_bars_what_waits_for_good_and_tells_the_versions_trained_before(db: Database) -> None:
    opt(db, trains=True)
    for tenant in (NEWCOMER, TENANT, NEWCOMER):
        graded_episode(db, tenant=tenant)
        step = reserve_step(db, 1)
        assert step is not None
        commit_step(db, step)
    waiting = by_every_route(db)
    said = opt(db, trains=False)
    assert (said.trains_shared_weights, said.versions, said.num_held) == (False, (1, 3), 0)
    assert reserve_step(db, 1) is None
    assert reserve_step(db, 2, group_size=2) is None
    opt(db, trains=True)
    assert reserve_step(db, 1) is None, "what was barred stays barred"
    with db.reading() as tx:
        assert {tx.episodes.get(NEWCOMER, episode_id).untrainable_reason for episode_id in waiting} == {OPTED_OUT}


def test_what_a_step_holds_is_told_and_not_claimed_again_when_the_step_comes_to_nothing(db: Database) -> None:
    opt(db, trains=True)
    episode_id = graded_episode(db, tenant=NEWCOMER)
    step = reserve_step(db, 1)
    assert step is not None
    assert opt(db, trains=False).num_held == 1
    with db.transaction() as tx:
        assert tx.steps.release_own("learner") == [step]
    assert reserve_step(db, 1) is None
    with db.reading() as tx:
        assert tx.episodes.get(NEWCOMER, episode_id).untrainable_reason == NOT_OPTED_IN


def test_feedback_on_what_is_never_trained_says_so(db: Database) -> None:
    theirs, given = graded_episode(db, tenant=NEWCOMER), graded_episode(db)
    with db.transaction() as tx:
        barred = tx.feedback.add(NEWCOMER, theirs, FeedbackNew("app", 1.0))
        counts = tx.feedback.add(TENANT, given, FeedbackNew("app", 1.0))
    assert (barred.fate, barred.fate_reason) == (FeedbackFate.ACCEPTED, NOT_OPTED_IN)
    assert (counts.fate, counts.fate_reason) == (FeedbackFate.ACCEPTED, None)


def test_taking_part_by_default_does_not_undo_what_was_said(db: Database) -> None:
    opt(db, trains=False)
    with db.transaction() as tx:
        tx.tenants.opt_in_once(NEWCOMER)
        assert not tx.tenants.get(NEWCOMER).trains_shared_weights


def test_a_tenant_without_a_name_is_refused(db: Database) -> None:
    with db.transaction() as tx, pytest.raises(BadInput, match="tenant_id"):
        tx.tenants.set_training("", True)
