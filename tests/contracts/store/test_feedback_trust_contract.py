"""Feedback that is far from what was given before, comes in a burst, or counts by weight; and what it never touches."""

from __future__ import annotations

import math

import pytest
from sqlalchemy import text

from online_agent.errors import BadInput
from online_agent.store.outliers import OutlierRule
from online_agent.store.records import FeedbackNew, FeedbackRecord, FeedbackRule, FeedbackTrust
from online_agent.store.session import Database
from online_agent.types import FeedbackFate
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import TENANT, graded_episode, seed_version

OUTLIERS = FeedbackTrust(outliers=OutlierRule(min_history=10, window=20))
BURST = FeedbackTrust(burst_floor=3)


def give(
    db: Database, trust: FeedbackTrust, *rewards: float, source: str = "app", person: str | None = None
) -> list[FeedbackRecord]:
    """On one episode, in its own transaction; no two that follow each other may be equal."""
    episode_id = graded_episode(db)
    with db.transaction() as tx:
        return [
            tx.feedback.add(TENANT, episode_id, FeedbackNew(source, reward, str(number), person=person), trust)
            for number, reward in enumerate(rewards)
        ]


def test_a_reward_far_from_what_its_source_gave_before_waits_for_an_operator(db: Database) -> None:
    give(db, OUTLIERS, *[0.5, 0.6] * 6)
    [far, near] = give(db, OUTLIERS, -1.0, 0.55)
    assert (far.fate, far.fate_reason) == (FeedbackFate.QUARANTINED, "outlier: -1 is far from what 'app' gave before")
    assert near.fate is FeedbackFate.ACCEPTED
    [other] = give(db, OUTLIERS, -1.0, source="ci")
    assert other.fate is FeedbackFate.ACCEPTED, "another source has a history of its own"


def test_a_source_whose_rewards_change_for_good_is_held_back_once(db: Database) -> None:
    give(db, OUTLIERS, *[0.5, 0.6] * 6)
    fates = [row.fate for number in range(4) for row in give(db, OUTLIERS, -1.0 + 0.01 * number)]
    assert fates == ["quarantined", *["accepted"] * 3]


def test_what_an_operator_discarded_makes_nothing_usual(db: Database) -> None:
    give(db, OUTLIERS, *[0.5, 0.6] * 6)
    [far] = give(db, OUTLIERS, -1.0)
    with db.transaction() as tx:
        tx.feedback.discard(TENANT, far.id)
    assert give(db, OUTLIERS, -1.0)[0].fate is FeedbackFate.QUARANTINED


def test_a_person_does_not_become_usual_by_repeating_themselves_but_others_make_it_so(db: Database) -> None:
    give(db, OUTLIERS, *[0.5, 0.6] * 6, person="ann")
    attack = [give(db, OUTLIERS, -1.0, person="mallory")[0].fate for _ in range(4)]
    assert set(attack) == {FeedbackFate.QUARANTINED}
    [unhappy] = give(db, OUTLIERS, -1.0, person="bob")
    assert unhappy.fate is FeedbackFate.ACCEPTED, "he is the second to say so"


def test_the_only_person_of_a_source_may_change_their_mind(db: Database) -> None:
    give(db, OUTLIERS, *[0.5, 0.6] * 6, person="bot")
    fates = [give(db, OUTLIERS, -1.0, person="bot")[0].fate for _ in range(3)]
    assert fates == ["quarantined", "accepted", "accepted"]


def test_successes_count_behind_nothing_but_failures(db: Database) -> None:
    for _ in range(12):
        give(db, OUTLIERS, 0.0)
    assert {give(db, OUTLIERS, 1.0)[0].fate for _ in range(3)} == {FeedbackFate.ACCEPTED}


def test_a_person_is_measured_by_their_own_history_too(db: Database) -> None:
    """The source has both extremes; this person never gave the lower one."""
    give(db, OUTLIERS, *[1.0, -1.0] * 6, person="bob")
    give(db, OUTLIERS, *[0.8, 0.9] * 6, person="ann")
    [far] = give(db, OUTLIERS, -1.0, person="ann")
    assert far.fate_reason == "outlier: -1 is far from what this person gave before"
    [usual] = give(db, OUTLIERS, -1.0, person="bob")
    assert usual.fate is FeedbackFate.ACCEPTED


def test_a_minute_far_above_what_the_source_gives_in_a_day_is_a_burst_whoever_gives_it(
    db: Database, clock: ManualClock
) -> None:
    given = [give(db, BURST, 1.0, person=f"p{number}")[0] for number in range(5)]
    assert [row.fate for row in given] == ["accepted"] * 3 + ["quarantined"] * 2
    assert given[-1].fate_reason == "burst: 3 of this source in a minute, 0 are usual"
    clock.advance(61)
    assert give(db, BURST, 1.0)[0].fate is FeedbackFate.ACCEPTED


def test_as_many_in_a_minute_as_are_usual_are_no_burst(db: Database, clock: ManualClock) -> None:
    """1439 x 4 of the day before: 4 a minute are usual, up to 4 + 6 x 2 in one are no burst."""
    [first] = give(db, FeedbackTrust(), 1.0)
    with db.transaction() as tx:
        rows = [{"id": first.id, "at": clock.now - 61 - number} for number in range(4 * 1439)]
        tx.connection.execute(
            text(
                "INSERT INTO feedback (tenant_id, episode_id, source, reward, turns, fate, created_at)"
                " SELECT tenant_id, episode_id, source, reward, turns, fate, :at FROM feedback WHERE id = :id"
            ),
            rows,
        )
    given = [give(db, BURST, 1.0)[0].fate for _ in range(16)]
    assert given == ["accepted"] * 15 + ["quarantined"]


def test_a_weight_is_kept_with_what_was_given_and_counts_in_the_reward(db: Database) -> None:
    seed_version(db)
    episode_id = graded_episode(db, reward=1.0)
    with db.transaction() as tx:
        for source, reward, weight in (("reviewer", -1.0, 3.0), ("judge", 0.2, 0.5), ("bot", -1.0, 0.0)):
            tx.feedback.add(TENANT, episode_id, FeedbackNew(source, reward, weight=weight))
        assert [row.weight for row in tx.feedback.of_episode(TENANT, episode_id)] == [3.0, 0.5, 0.0]
        assert tx.clients.reward_of(episode_id) == pytest.approx((3 * -1.0 + 0.5 * 0.2) / 3.5)
        [row] = tx.episodes.reserve(1, 1, 0, 8, FeedbackRule.MEAN_WITH_VERDICT)
        assert row.reward == pytest.approx((3 * -1.0 + 0.5 * 0.2 + 1.0) / 4.5)
        tx.connection.rollback()


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_a_weight_that_cannot_count_is_refused(db: Database, weight: float) -> None:
    episode_id = graded_episode(db)
    with db.transaction() as tx, pytest.raises(BadInput, match="weight"):
        tx.feedback.add(TENANT, episode_id, FeedbackNew("app", 1.0, weight=weight))


def test_no_route_of_feedback_changes_anything_of_a_held_out_task(db: Database) -> None:
    """Given, given again by others, released, discarded, settled, and a reservation: the row stays as it was."""
    seed_version(db)
    episode_id = graded_episode(db, split="heldout", reward=1.0)

    def row() -> object:
        with db.reading() as tx:
            return tuple(tx.connection.execute(text("SELECT * FROM episodes")).one())

    before = row()
    with db.transaction() as tx:
        for source in ("app", "client", "judge"):
            given = tx.feedback.add(TENANT, episode_id, FeedbackNew(source, -1.0, weight=1000.0), OUTLIERS)
            assert (given.fate, given.fate_reason) == (FeedbackFate.QUARANTINED, "held-out task")
        tx.clients.settle(episode_id)
        assert tx.clients.reward_of(episode_id) is None
        assert tx.episodes.reserve(1, 1, 0, 8, allow_fewer=True) == []
    assert row() == before
