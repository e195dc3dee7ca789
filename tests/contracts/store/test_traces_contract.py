"""A step finds the traces that asked for what it trains on, on both databases."""

from __future__ import annotations

from envs.types import Verdict
from online_agent.store.records import EpisodeNew, FeedbackNew
from online_agent.store.repositories.traces import EpisodeTrace
from online_agent.store.session import Database
from online_agent.types import StopReason
from tests.fakes.client_episodes import answer, open_client
from tests.fakes.episodes import TENANT, finish_member, reserve_step, seed_version

ASKED, FIRST, SECOND, CUT = (f"00-{number:032x}-{number:016x}-01" for number in range(1, 5))


def own_episode(db: Database, traceparent: str | None) -> str:
    with db.transaction() as tx:
        new = EpisodeNew(tenant_id=TENANT, env="bug_repair", task_id="train-1", split="train", traceparent=traceparent)
        episode_id = tx.episodes.create(new)
    finish_member(db, episode_id)
    return episode_id


def traces_of(db: Database, step: int) -> list[EpisodeTrace]:
    with db.reading() as tx:
        return tx.traces.of_step(step)


def test_own_episodes_and_each_answer_that_may_be_trained_on_name_their_trace(db: Database) -> None:
    own = own_episode(db, ASKED)
    client = open_client(db)
    answer(db, client, "p", traceparent=FIRST)
    answer(db, client, "q", parent=0, parent_completion="c-p", traceparent=SECOND)
    answer(db, client, "r", traceparent=CUT, untrainable_reason="greedy")
    with db.transaction() as tx:
        tx.episodes.grade(own, Verdict(1.0, True))
        tx.clients.close(client, StopReason.CLOSED)
        tx.feedback.add(TENANT, client, FeedbackNew("ann", 1.0))
        tx.clients.settle(client)
    seed_version(db)
    step = reserve_step(db, 2)
    assert step is not None
    assert traces_of(db, step) == [EpisodeTrace(own, ASKED), EpisodeTrace(client, FIRST), EpisodeTrace(client, SECOND)]
    assert traces_of(db, step + 1) == []


def test_an_episode_without_a_trace_is_left_out_and_grading_gets_the_trace(db: Database) -> None:
    own_episode(db, None)
    own_episode(db, ASKED)
    with db.transaction() as tx:
        claims = tx.episodes.claim_ungraded("worker", 30.0, limit=2)
    assert [claim.traceparent for claim in claims] == [None, ASKED]
    for claim in claims:
        with db.transaction() as tx:
            tx.episodes.grade(claim.episode_id, Verdict(1.0, True))
    seed_version(db)
    step = reserve_step(db, 2)
    assert step is not None
    assert [trace.traceparent for trace in traces_of(db, step)] == [ASKED]
