"""Feedback and its fate, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math

import pytest

from envs.types import Verdict
from online_agent.errors import BadInput, Conflict, NotFound
from online_agent.store.records import (
    EpisodeNew,
    FeedbackCaps,
    FeedbackNew,
    FeedbackRecord,
    FeedbackRule,
    FeedbackTrust,
)
from online_agent.store.session import Database
from online_agent.types import FeedbackFate
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import (
    TENANT,
    commit_step,
    finished_episode,
    graded_episode,
    open_episode,
    reserve_step,
    seed_version,
)


def _add(db: Database, episode_id: str, source: str, reward: float | None = None, text: str | None = None) -> None:
    with db.transaction() as tx:
        tx.feedback.add(TENANT, episode_id, FeedbackNew(source, reward, text))


def _fates(db: Database, episode_id: str) -> list[FeedbackFate]:
    with db.reading() as tx:
        return [record.fate for record in tx.feedback.of_episode(TENANT, episode_id)]


def _reserved_reward(db: Database, rule: FeedbackRule) -> float:
    with db.transaction() as tx:
        (episode,) = tx.episodes.reserve(tx.steps.next_step(), 1, 0, 8, rule)
        tx.connection.rollback()
    return episode.reward


def test_feedback_is_kept_with_source_text_turns_and_time(db: Database, clock: ManualClock) -> None:
    episode_id = graded_episode(db)
    with db.transaction() as tx:
        added = tx.feedback.add(TENANT, episode_id, FeedbackNew("alice", 0.5, "nice\x00", turns=[0]))
    with db.reading() as tx:
        assert tx.feedback.of_episode(TENANT, episode_id) == [added]
    assert (added.source, added.reward, added.text, added.turns) == ("alice", 0.5, "nice\x00", (0,))
    assert (added.fate, added.created_at) == (FeedbackFate.ACCEPTED, clock.now)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (FeedbackRule.MEAN_WITH_VERDICT, (0.5 + -1.0 + 1.0) / 3),
        (FeedbackRule.FEEDBACK_FIRST, (0.5 + -1.0) / 2),
        (FeedbackRule.VERDICT_ONLY, 1.0),
    ],
)
def test_the_latest_reward_of_each_source_counts(db: Database, rule: FeedbackRule, expected: float) -> None:
    episode_id = graded_episode(db, reward=1.0)
    for source, reward in [("alice", -0.5), ("bob", -1.0), ("alice", 0.5)]:
        _add(db, episode_id, source, reward)
    _add(db, episode_id, "alice", text="only words")
    assert _reserved_reward(db, rule) == pytest.approx(expected)


@pytest.mark.parametrize("rule", FeedbackRule)
def test_without_feedback_the_verdict_is_the_reward(db: Database, rule: FeedbackRule) -> None:
    graded_episode(db, reward=0.25)
    assert _reserved_reward(db, rule) == 0.25


def test_feedback_before_the_verdict_counts(db: Database) -> None:
    episode_id = open_episode(db)
    _add(db, episode_id, "alice", -1.0)
    finished = finished_episode(db)
    _add(db, finished, "alice", -1.0)
    with db.transaction() as tx:
        tx.episodes.grade(finished, Verdict(1.0, True))
    assert _fates(db, episode_id) == [FeedbackFate.ACCEPTED]
    assert _reserved_reward(db, FeedbackRule.MEAN_WITH_VERDICT) == 0.0


def test_a_repeated_source_is_kept_and_an_exact_repeat_is_a_duplicate(db: Database) -> None:
    episode_id = graded_episode(db)
    for reward in (0.5, 0.5, -0.5, 0.5):
        _add(db, episode_id, "alice", reward)
    accepted, duplicate = FeedbackFate.ACCEPTED, FeedbackFate.DUPLICATE
    assert _fates(db, episode_id) == [accepted, duplicate, accepted, accepted]


def test_feedback_after_the_reservation_is_late_and_changes_no_trained_step(db: Database) -> None:
    seed_version(db)
    episode_id = graded_episode(db, reward=1.0)
    step = reserve_step(db, 1)
    assert step is not None
    _add(db, episode_id, "alice", -1.0)
    version = commit_step(db, step)
    _add(db, episode_id, "bob", -1.0)
    assert _fates(db, episode_id) == [FeedbackFate.LATE, FeedbackFate.LATE]
    with db.reading() as tx:
        (trained,) = tx.weights.episodes_of(version)
        reasons = [f.fate_reason for f in tx.feedback.of_episode(TENANT, episode_id)]
    assert trained.reward == 1.0
    assert reasons == ["episode is reserved", "episode is trained"]


def test_late_feedback_counts_again_when_the_reservation_came_to_nothing(db: Database) -> None:
    seed_version(db)
    episode_id = graded_episode(db, reward=1.0)
    assert reserve_step(db, 1) is not None
    _add(db, episode_id, "alice", -1.0)
    with db.transaction() as tx:
        tx.steps.release_own("learner")
    assert _fates(db, episode_id) == [FeedbackFate.ACCEPTED]
    assert _reserved_reward(db, FeedbackRule.MEAN_WITH_VERDICT) == 0.0


def test_feedback_never_touches_a_held_out_task(db: Database) -> None:
    episode_id = graded_episode(db, split="heldout")
    _add(db, episode_id, "alice", -1.0)
    assert _fates(db, episode_id) == [FeedbackFate.QUARANTINED]


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1.0001, -2.0])
def test_a_bad_reward_is_refused_by_value(db: Database, reward: float) -> None:
    episode_id = graded_episode(db)
    with pytest.raises(BadInput, match=str(reward)):
        _add(db, episode_id, "alice", reward)
    assert _fates(db, episode_id) == []


def test_feedback_that_says_nothing_or_names_no_turn_is_refused(db: Database) -> None:
    episode_id = graded_episode(db)
    with pytest.raises(BadInput, match="reward or a text"):
        _add(db, episode_id, "alice")
    with pytest.raises(BadInput, match="turns must be below 1, got 1"), db.transaction() as tx:
        tx.feedback.add(TENANT, episode_id, FeedbackNew("alice", 1.0, turns=[1]))
    with pytest.raises(BadInput, match="source"):
        _add(db, episode_id, "", 1.0)


def test_a_turn_that_an_open_episode_does_not_have_yet_is_refused(db: Database) -> None:
    with db.transaction() as tx:
        episode_id = tx.episodes.create(EpisodeNew(TENANT, "shop", "order-1", "train"))
    refusal = "turns must be left out while the episode has none, got 0"
    with pytest.raises(BadInput, match=refusal), db.transaction() as tx:
        tx.feedback.add(TENANT, episode_id, FeedbackNew("alice", 1.0, turns=[0]))


def test_another_tenants_episode_takes_no_feedback(db: Database) -> None:
    episode_id = graded_episode(db)
    with pytest.raises(NotFound), db.transaction() as tx:
        tx.feedback.add("rival", episode_id, FeedbackNew("mallory", 1.0))


# --- caps, and what an operator decides -----------------------------------------------------------------------------

CAPS = FeedbackTrust(FeedbackCaps(per_minute=2, per_day=3))


def _give(db: Database, reward: float, source: str = "app", person: str | None = None) -> FeedbackRecord:
    """On an episode of its own, so that nothing is a duplicate."""
    episode_id = graded_episode(db)
    with db.transaction() as tx:
        return tx.feedback.add(TENANT, episode_id, FeedbackNew(source, reward, person=person), CAPS)


def test_what_is_over_a_cap_of_the_minute_or_of_the_day_is_quarantined(db: Database, clock: ManualClock) -> None:
    assert [_give(db, 1.0).fate for _ in range(3)] == ["accepted", "accepted", "quarantined"]
    clock.advance(60)
    assert [_give(db, 1.0).fate_reason for _ in range(2)] == [None, "more than 3 in a day"]
    clock.advance(86_400)
    assert _give(db, 1.0).fate is FeedbackFate.ACCEPTED


def test_a_cap_is_for_one_person_of_one_source(db: Database) -> None:
    givers = [("app", "ann"), ("app", "bob"), ("ci", "ann"), ("app", None)]
    assert [_give(db, 1.0, *giver).fate for giver in givers * 2] == ["accepted"] * 8
    assert [_give(db, 1.0, *giver).fate for giver in givers] == ["quarantined"] * 4


def _quarantined(db: Database, reward: float = -1.0) -> FeedbackRecord:
    while (given := _give(db, reward)).fate is not FeedbackFate.QUARANTINED:
        pass
    return given


def test_what_is_quarantined_does_not_count_until_it_is_released(db: Database) -> None:
    seed_version(db)
    given = _quarantined(db)
    with db.transaction() as tx:
        assert [row.id for row in tx.feedback.quarantined(TENANT, limit=10)] == [given.id]
        assert tx.feedback.quarantined(TENANT, limit=10, after_id=given.id) == []
        assert tx.clients.reward_of(given.episode_id) is None
        assert tx.feedback.release(TENANT, given.id).fate is FeedbackFate.ACCEPTED
        assert tx.clients.reward_of(given.episode_id) == -1.0
        assert tx.feedback.quarantined(TENANT, limit=10) == []
        with pytest.raises(Conflict, match="accepted"):
            tx.feedback.release(TENANT, given.id)


def test_what_is_released_after_the_reservation_is_late(db: Database) -> None:
    seed_version(db)
    given = _quarantined(db)
    reserve_step(db, 3)
    with db.transaction() as tx:
        released = tx.feedback.release(TENANT, given.id)
    assert (released.fate, released.fate_reason) == (FeedbackFate.LATE, "episode is reserved")


def test_what_is_discarded_is_kept_and_stays_out(db: Database) -> None:
    given = _quarantined(db)
    with db.transaction() as tx:
        discarded = tx.feedback.discard(TENANT, given.id)
        assert (discarded.fate, discarded.fate_reason) == (FeedbackFate.QUARANTINED, "discarded by an operator")
        assert tx.feedback.quarantined(TENANT, limit=10) == []
        assert tx.feedback.of_episode(TENANT, given.episode_id) == [discarded]
        with pytest.raises(Conflict, match="discarded"):
            tx.feedback.release(TENANT, given.id)


def test_nobody_can_release_feedback_on_a_held_out_task_or_of_another_tenant(db: Database) -> None:
    held_out = graded_episode(db, split="heldout")
    with db.transaction() as tx:
        on_held_out = tx.feedback.add(TENANT, held_out, FeedbackNew("app", 1.0), CAPS)
        assert tx.feedback.quarantined(TENANT, limit=10) == []
        with pytest.raises(Conflict, match="held-out"):
            tx.feedback.release(TENANT, on_held_out.id)
    given = _quarantined(db)
    with db.transaction() as tx:
        for decide in (tx.feedback.release, tx.feedback.discard):
            with pytest.raises(NotFound):
                decide("rival", given.id)
