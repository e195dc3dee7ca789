"""The training queue and the learner's step, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from envs.types import Verdict
from online_agent.errors import Conflict, Fenced
from online_agent.store.expert_rows import pack_experts
from online_agent.store.models import StepEpisode
from online_agent.store.records import FeedbackNew, StepNew, TurnNew, VersionNew
from online_agent.store.session import Database
from online_agent.types import (
    EpisodeStatus,
    FeedbackFate,
    Span,
    SpanKind,
    StepStatus,
    StopReason,
    VersionOrigin,
    VersionState,
)
from tests.database_fixtures import ManualClock
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


def _status(db: Database, episode_id: str) -> EpisodeStatus:
    with db.reading() as tx:
        return tx.episodes.get(TENANT, episode_id).status


def test_a_step_takes_the_episodes_that_finished_first(db: Database, clock: ManualClock) -> None:
    seed_version(db)
    ids = []
    for _ in range(4):
        clock.advance(1)
        ids.append(finished_episode(db))
    for episode_id in reversed(ids):
        with db.transaction() as tx:
            tx.episodes.grade(episode_id, Verdict(1.0, True))
    step = reserve_step(db, 3)
    assert step == 1
    assert [_status(db, i) for i in ids] == [EpisodeStatus.RESERVED] * 3 + [EpisodeStatus.GRADED]


def test_reserved_episodes_arrive_laid_end_to_end(db: Database) -> None:
    episode_id = open_episode(db, temperature=0.7)
    with db.transaction() as tx:
        tx.episodes.add_turn(episode_id, make_turn(0, versions=(2,), num_tokens=2, logprob=-0.25))
        tx.episodes.add_turn(episode_id, make_turn(1, versions=(2, 3), num_tokens=2, logprob=-0.5))
        tx.episodes.finish(episode_id, StopReason.MAX_TOKENS, None)
        tx.episodes.grade(episode_id, Verdict(0.5, True))
    with db.transaction() as tx:
        (episode,) = tx.episodes.reserve(tx.steps.next_step(), 1, current_version=3, max_staleness=8)
        tx.connection.rollback()
    prompt, observation = [0, 1, 2, 3], [200, 201, 202]
    assert episode.token_ids.tolist() == [*prompt, 100, 101, *observation, *prompt, 100, 101, *observation]
    assert np.flatnonzero(episode.action_mask).tolist() == [4, 5, 13, 14]
    assert episode.logprobs[episode.action_mask].tolist() == [-0.25, -0.25, -0.5, -0.5]
    assert episode.versions[episode.action_mask].tolist() == [2, 2, 2, 3]
    assert (episode.reward, episode.temperature, episode.is_truncated) == (0.5, 0.7, True)


def test_reserved_episodes_carry_the_experts_of_every_token_an_action_was_sampled_behind(db: Database) -> None:
    """Two turns of 4 prompt, 2 action and 3 observation tokens: the engine computes 14 states for the second action."""
    chosen = np.arange(14 * 2 * 3, dtype=np.uint8).reshape(14, 2, 3)
    whole, partly = open_episode(db), open_episode(db)
    with db.transaction() as tx:
        for episode_id, second in ((whole, pack_experts(chosen[5:], 5)), (partly, None)):
            tx.episodes.add_turn(
                episode_id, replace(make_turn(0, num_tokens=2), routed_experts=pack_experts(chosen[:5], 0))
            )
            tx.episodes.add_turn(episode_id, replace(make_turn(1, num_tokens=2), routed_experts=second))
            tx.episodes.finish(episode_id, StopReason.SUBMITTED, None)
            tx.episodes.grade(episode_id, Verdict(1.0, True))
        experts = [episode.routed_experts for episode in tx.episodes.reserve(1, 2, 0, 8)]
        tx.connection.rollback()
    assert experts[0] is not None
    np.testing.assert_array_equal(experts[0], np.concatenate([chosen, np.zeros((4, 2, 3), np.uint8)]))
    assert experts[1] is None


def test_a_recipe_that_replays_experts_drops_those_without_and_the_next_one_takes_their_place(db: Database) -> None:
    chosen = np.zeros((5, 2, 3), np.uint8)
    seed_version(db)
    without, with_experts = open_episode(db), open_episode(db)
    with db.transaction() as tx:
        for episode_id, blob in ((without, None), (with_experts, pack_experts(chosen, 0))):
            tx.episodes.add_turn(episode_id, replace(make_turn(0, num_tokens=2), routed_experts=blob))
            tx.episodes.finish(episode_id, StopReason.SUBMITTED, None)
            tx.episodes.grade(episode_id, Verdict(1.0, True))
        reserved = tx.episodes.reserve(1, 1, 0, 8, needs_experts=True)
        assert [episode.id for episode in reserved] == [with_experts]
        assert tx.episodes.drops_by_reason() == {"no_experts": 1}
        tx.connection.rollback()


def test_too_few_episodes_reserve_nothing(db: Database) -> None:
    seed_version(db)
    episode_id = graded_episode(db)
    assert reserve_step(db, 2) is None
    assert _status(db, episode_id) is EpisodeStatus.GRADED
    with db.reading() as tx:
        assert tx.steps.last(5) == []


def test_fewer_episodes_are_reserved_when_that_is_allowed(db: Database) -> None:
    graded_episode(db)
    with db.transaction() as tx:
        assert len(tx.episodes.reserve(1, 5, 0, 8, allow_fewer=True)) == 1
        tx.connection.rollback()


def test_what_is_not_for_training_is_never_reserved(db: Database) -> None:
    """C04: an episode without action tokens never reaches the learner; nor does a held-out or greedy one."""
    seed_version(db)
    empty = graded_episode(db, versions=(0,), num_tokens=0)
    others = [graded_episode(db, split="heldout"), graded_episode(db, temperature=0.0)]
    open_episode(db)
    finished_episode(db)
    told = graded_episode(db)
    with db.transaction() as tx:
        tx.episodes.mark_untrainable(told, "operator said so")
    assert reserve_step(db, 1) is None
    with db.reading() as tx:
        assert tx.episodes.get(TENANT, empty).untrainable_reason == "no action tokens"
        assert tx.episodes.get(TENANT, told).untrainable_reason == "operator said so"
        assert tx.episodes.queue().num_ready == 0
    assert {_status(db, i) for i in [empty, *others, told]} == {EpisodeStatus.GRADED}


def test_staleness_8_is_accepted_and_9_is_dropped_alone_with_the_reason(db: Database) -> None:
    seed_version(db)
    stale = graded_episode(db, versions=(1, 9))
    edge = graded_episode(db, versions=(2, 9))
    fresh = graded_episode(db, versions=(10,))
    with db.transaction() as tx:
        step = tx.steps.next_step()
        taken = tx.episodes.reserve(step, 2, current_version=10, max_staleness=8)
        tx.steps.reserve(StepNew(step, [e.id for e in taken], "h", 10, 0, "learner", 60.0))
    assert [e.id for e in taken] == [edge, fresh]
    with db.reading() as tx:
        assert tx.episodes.drops_by_reason() == {"stale:9": 1}
        assert tx.episodes.get(TENANT, stale).status is EpisodeStatus.DROPPED


def test_dropping_the_stale_lasts_when_too_few_are_left(db: Database) -> None:
    seed_version(db)
    stale = graded_episode(db, versions=(0,))
    assert reserve_step(db, 1, current_version=20) is None
    assert _status(db, stale) is EpisodeStatus.DROPPED


def test_stale_episodes_that_were_never_for_training_are_left_alone(db: Database) -> None:
    heldout = graded_episode(db, versions=(0,), split="heldout")
    assert reserve_step(db, 1, current_version=20) is None
    assert _status(db, heldout) is EpisodeStatus.GRADED


def test_a_reservation_without_its_step_cannot_be_committed(db: Database) -> None:
    episode_id = graded_episode(db)
    with pytest.raises(IntegrityError), db.transaction() as tx:
        assert tx.episodes.reserve(tx.steps.next_step(), 1, 0, 8)
    assert _status(db, episode_id) is EpisodeStatus.GRADED


def test_a_commit_trains_every_episode_uses_feedback_and_makes_a_candidate(db: Database, clock: ManualClock) -> None:
    seed_version(db)
    ids = [graded_episode(db), graded_episode(db)]
    with db.transaction() as tx:
        tx.feedback.add(TENANT, ids[0], FeedbackNew("alice", reward=-1.0))
        tx.feedback.add(TENANT, ids[0], FeedbackNew("alice", text="meh"))
    step = reserve_step(db, 2)
    assert step is not None
    clock.advance(5)
    version = commit_step(db, step)
    with db.reading() as tx:
        record, made = tx.steps.get(step), tx.weights.get(version)
        trained = tx.weights.episodes_of(version)
        fates = [(f.fate, f.step) for f in tx.feedback.of_episode(TENANT, ids[0])]
        assert tx.control.get().current_version == version
        assert tx.episodes.trained_twice() == 0
        episode = tx.episodes.get(TENANT, ids[0])
    assert (record.status, record.version, record.metrics, record.num_episodes) == (
        StepStatus.COMMITTED,
        version,
        {"loss": 0.5},
        2,
    )
    assert (made.state, made.parent, made.step, made.metrics) == (VersionState.CANDIDATE, 0, step, {"loss": 0.5})
    assert [(t.episode_id, t.reward) for t in trained] == [(ids[0], 0.0), (ids[1], 1.0)]
    assert fates == [(FeedbackFate.USED, step), (FeedbackFate.ACCEPTED, None)]
    assert (episode.status, episode.step, episode.trained_at) == (EpisodeStatus.TRAINED, step, clock.now)


def test_a_step_commits_once(db: Database) -> None:
    seed_version(db)
    graded_episode(db)
    step = reserve_step(db, 1)
    assert step is not None
    commit_step(db, step)
    with pytest.raises(Fenced, match="is committed"):
        commit_step(db, step)
    with db.reading() as tx:
        assert [v.version for v in tx.weights.list()] == [1, 0]


def test_metrics_that_are_not_finite_are_kept_as_words(db: Database) -> None:
    seed_version(db)
    graded_episode(db)
    step = reserve_step(db, 1)
    assert step is not None
    with db.transaction() as tx:
        tx.steps.skip(step, "loss is not finite", {"loss": math.nan, "grads": [math.inf, np.float32(0.5)]})
    with db.reading() as tx:
        assert tx.steps.get(step).metrics == {"loss": "nan", "grads": ["inf", 0.5]}


def test_a_skipped_step_is_a_row_and_its_episodes_do_not_come_back(db: Database) -> None:
    seed_version(db)
    episode_id = graded_episode(db)
    step = reserve_step(db, 1)
    assert step is not None
    with db.transaction() as tx:
        tx.steps.skip(step, "empty mask", {})
    with db.reading() as tx:
        assert (tx.steps.get(step).status, tx.steps.get(step).reason) == (StepStatus.SKIPPED, "empty mask")
        assert tx.episodes.drops_by_reason() == {"skipped: empty mask": 1}
        assert tx.episodes.get(TENANT, episode_id).step == step
        assert tx.weights.latest() == tx.weights.get(0)
    assert reserve_step(db, 1) is None


def test_a_second_step_waits_for_the_first(db: Database) -> None:
    seed_version(db)
    first, second = graded_episode(db), graded_episode(db)
    assert reserve_step(db, 1) == 1
    with pytest.raises(Conflict, match="step 1 is reserved"):
        reserve_step(db, 1)
    assert [_status(db, i) for i in (first, second)] == [EpisodeStatus.RESERVED, EpisodeStatus.GRADED]


def test_an_expired_lease_gives_the_episodes_back_and_fences_the_late_commit(db: Database, clock: ManualClock) -> None:
    seed_version(db)
    episode_id = graded_episode(db)
    step = reserve_step(db, 1, lease_s=60.0)
    assert step is not None
    clock.advance(59)
    with db.transaction() as tx:
        assert tx.steps.abandon_expired() == []
    clock.advance(1)
    with db.transaction() as tx:
        assert tx.steps.abandon_expired() == [step]
    assert _status(db, episode_id) is EpisodeStatus.GRADED
    with pytest.raises(Fenced, match="is abandoned"):
        commit_step(db, step)
    again = reserve_step(db, 1)
    assert again == step + 1
    commit_step(db, again)
    assert _status(db, episode_id) is EpisodeStatus.TRAINED


def test_a_renewed_lease_does_not_expire(db: Database, clock: ManualClock) -> None:
    seed_version(db)
    graded_episode(db)
    step = reserve_step(db, 1, lease_s=60.0)
    assert step is not None
    clock.advance(50)
    with db.transaction() as tx:
        tx.steps.renew(step, fence=0, lease_s=60.0)
    clock.advance(50)
    with db.transaction() as tx:
        assert tx.steps.abandon_expired() == []
        with pytest.raises(Fenced):
            tx.steps.renew(step, fence=1, lease_s=60.0)


def test_a_learner_that_starts_gives_back_its_own_reservation_only(db: Database) -> None:
    seed_version(db)
    episode_id = graded_episode(db)
    step = reserve_step(db, 1)
    with db.transaction() as tx:
        assert tx.steps.release_own("someone else") == []
        assert tx.steps.release_own("learner") == [step]
    assert _status(db, episode_id) is EpisodeStatus.GRADED


def test_a_rollback_fences_the_running_step_and_marks_what_lies_behind_it(db: Database) -> None:
    """C31 (2): the step that was under way is discarded; its episodes and those of bad versions are judged."""
    seed_version(db)
    for _ in range(3):
        graded_episode(db, versions=(0,))
        step = reserve_step(db, 1)
        assert step is not None
        version = commit_step(db, step)
        with db.transaction() as tx:
            tx.weights.move(version, {VersionState.CANDIDATE}, VersionState.VERIFIED)
            tx.weights.move(version, {VersionState.VERIFIED}, VersionState.SERVING)
    good, bad = graded_episode(db, versions=(1,)), graded_episode(db, versions=(1, 3))
    running = reserve_step(db, 2, current_version=3)
    assert running is not None
    with db.transaction() as tx:
        fence = tx.control.fence_out(1)
        tx.weights.insert(VersionNew(tx.weights.next_version(), VersionOrigin.ROLLBACK, parent=1))
    assert fence == 1
    with pytest.raises(Fenced, match="is fenced"):
        commit_step(db, running, fence=0)
    with db.reading() as tx:
        assert [v.is_rolled_back for v in tx.weights.list()] == [False, True, True, False, False]
        assert tx.control.get().current_version == 4
    assert reserve_step(db, 2, current_version=4) is None
    with db.reading() as tx:
        assert tx.episodes.drops_by_reason() == {"rolled_back:2": 1}
    assert [_status(db, i) for i in (good, bad)] == [EpisodeStatus.GRADED, EpisodeStatus.DROPPED]


def test_a_rollback_rejects_versions_that_had_not_served_yet(db: Database) -> None:
    seed_version(db)
    graded_episode(db)
    step = reserve_step(db, 1)
    assert step is not None
    version = commit_step(db, step)
    with db.transaction() as tx:
        tx.control.fence_out(0)
        record = tx.weights.get(version)
    assert (record.state, record.is_rolled_back) == (VersionState.REJECTED, False)


def test_a_step_prepared_before_a_rollback_is_refused(db: Database) -> None:
    seed_version(db)
    graded_episode(db)
    with db.transaction() as tx:
        tx.control.fence_out(0)
    with db.transaction() as tx:
        step = tx.steps.next_step()
        taken = tx.episodes.reserve(step, 1, 0, 8)
        prepared = StepNew(step, [e.id for e in taken], "h", 0, 0, "learner", 60.0)
        with pytest.raises(Fenced, match="fence 0, which is now 1"):
            tx.steps.reserve(prepared)
        tx.connection.rollback()


def test_a_step_must_name_the_episodes_in_the_order_they_were_reserved(db: Database) -> None:
    seed_version(db)
    for _ in range(2):
        graded_episode(db)
    with db.transaction() as tx:
        step = tx.steps.next_step()
        ids = [e.id for e in tx.episodes.reserve(step, 2, 0, 8)]
        with pytest.raises(Conflict, match="other episodes"):
            tx.steps.reserve(StepNew(step, ids[::-1], "h", 0, 0, "learner", 60.0))
        tx.connection.rollback()


def test_the_database_itself_refuses_to_train_an_episode_twice(db: Database) -> None:
    seed_version(db)
    episode_id = graded_episode(db)
    step = reserve_step(db, 1)
    assert step is not None
    commit_step(db, step)
    row = {"step": step, "position": 9, "episode_id": episode_id, "tenant_id": TENANT, "reward": 0.0}
    with pytest.raises(IntegrityError), db.transaction() as tx:
        tx.connection.execute(insert(StepEpisode), {**row, "is_committed": True})


def test_an_episode_that_cannot_be_laid_out_is_dropped_and_the_next_one_takes_its_place(db: Database) -> None:
    """The untrainable mark is lost by hand here: the reservation checks the spans again and never trusts it."""
    seed_version(db)
    broken = open_episode(db)
    span = Span(SpanKind.ACTION, 0, np.array([1], np.int32), None, ())
    with db.transaction() as tx:
        tx.episodes.add_turn(broken, TurnNew(spans=[span]))
        tx.episodes.finish(broken, StopReason.SUBMITTED, None)
        tx.episodes.grade(broken, Verdict(1.0, True))
        tx.connection.exec_driver_sql("UPDATE episodes SET untrainable_reason = NULL")
    whole = graded_episode(db)
    assert reserve_step(db, 1) == 1
    assert [_status(db, i) for i in (broken, whole)] == [EpisodeStatus.DROPPED, EpisodeStatus.RESERVED]
