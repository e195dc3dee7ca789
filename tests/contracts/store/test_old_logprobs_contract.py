"""Interruptions and the old log-probs they give, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from online_agent.store.records import InterruptionState, PartialGenerationNew
from online_agent.store.session import Database
from online_agent.types import Span, SpanKind, StopReason, TrainingEpisode, VersionRun
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import (
    TENANT,
    finished_episode,
    graded_episode,
    make_turn,
    open_episode,
    reserve_step,
    seed_version,
)

S = InterruptionState


def under_way(episode_id: str, runs: Sequence[tuple[int, int]], *, context: int = 4, first_id: int = 100):
    """``context`` ids, then as many sampled ones by each version as ``runs`` say."""
    ends = np.cumsum([0, *(num for _, num in runs)]).tolist()
    num = ends[-1]
    action = Span(
        SpanKind.ACTION,
        0,
        np.arange(first_id, first_id + num, dtype=np.int32),
        np.full(num, -0.5, np.float32),
        tuple(VersionRun(version, ends[i], ends[i + 1]) for i, (version, _) in enumerate(runs)),
    )
    return PartialGenerationNew(episode_id, [Span(SpanKind.PROMPT, 0, np.arange(context, dtype=np.int32)), action])


def interrupt(db: Database, version: int = 1, *partials: PartialGenerationNew) -> int:
    with db.transaction() as tx:
        number = tx.interruptions.ask(version)
    with db.transaction() as tx:
        assert tx.interruptions.pause(number, 0.0, partials)
    return number


def held_by(db: Database, version: int) -> dict[str, TrainingEpisode]:
    with db.reading() as tx:
        return {episode.id: episode for episode in tx.old_logprobs.held_by(version)}


def scores(episode: TrainingEpisode, version: int, start: float = -1.0) -> np.ndarray:
    """(T,) -1.0, -1.01, ... at the tokens of ``version``."""
    logp = np.full(len(episode.token_ids), np.nan, np.float32)
    mine = np.flatnonzero(episode.versions == version)
    logp[mine] = start - np.arange(len(mine), dtype=np.float32) / 100
    return logp


# --- the agreement --------------------------------------------------------------------------------------------------


def test_an_interruption_is_asked_paused_released_and_ended(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        number = tx.interruptions.ask(7)
    clock.advance(1)
    with db.transaction() as tx:
        assert tx.interruptions.pause(number, clock.now, ())
    with db.transaction() as tx:
        assert tx.interruptions.current().state is S.PAUSED
        assert tx.interruptions.release(number)
        assert tx.interruptions.current().state is S.RELEASED
    clock.advance(2)
    with db.transaction() as tx:
        assert tx.interruptions.end(number, "released")
        assert not tx.interruptions.end(number, "again")
        assert tx.interruptions.current() is None
        (ended,) = tx.interruptions.ended_after(0)
        assert tx.interruptions.ended_after(number) == []
    assert (ended.version, ended.outcome, ended.ended_at - ended.paused_at) == (7, "released", 2)


def test_one_that_was_withdrawn_is_not_paused_any_more(db: Database) -> None:
    with db.transaction() as tx:
        number = tx.interruptions.ask(7)
        assert tx.interruptions.release(number)
    episode_id = open_episode(db)
    with db.transaction() as tx:
        assert not tx.interruptions.pause(number, 0.0, [under_way(episode_id, [(7, 3)])])
        assert tx.interruptions.current() is None
        assert tx.interruptions.ended_after(0) == []  # the engine never stood still for it
    assert held_by(db, 7) == {}


def test_asking_again_ends_what_a_dead_learner_left_open(db: Database) -> None:
    left = interrupt(db)
    with db.transaction() as tx:
        number = tx.interruptions.ask(2)
        assert tx.interruptions.get(left).outcome == "superseded"
        assert tx.interruptions.current().number == number
        assert not tx.interruptions.release(left)


def test_the_database_refuses_two_open_interruptions(db: Database) -> None:
    interrupt(db)
    again = "INSERT INTO interruptions (version, state, is_open, asked_at) VALUES (1, 'asked', true, 0)"
    with pytest.raises(IntegrityError), db.transaction() as tx:
        tx.connection.execute(text(again))


# --- what is to be scored -------------------------------------------------------------------------------------------


def test_turns_of_every_episode_that_may_still_be_trained_are_held(db: Database) -> None:
    graded, finished, opened = graded_episode(db, [1, 2]), finished_episode(db, [2]), open_episode(db)
    with db.transaction() as tx:
        tx.episodes.add_turn(opened, make_turn(versions=[2]))
    graded_episode(db, [1])
    graded_episode(db, [2], split="heldout")
    graded_episode(db, [2], temperature=0.0)
    dropped = graded_episode(db, [2])
    with db.transaction() as tx:
        tx.episodes.drop(dropped, "tests")

    held = held_by(db, 2)

    assert set(held) == {graded, finished, opened}
    assert held[graded].versions.tolist() == [-1] * 4 + [1, 1, 1, 2, 2, 2] + [-1] * 3
    assert np.isnan(held[graded].old_logprobs).all()


def test_a_generation_under_way_is_held_behind_the_turns_of_its_episode(db: Database) -> None:
    episode_id = open_episode(db, temperature=0.7)
    with db.transaction() as tx:
        tx.episodes.add_turn(episode_id, make_turn(versions=[1]))
    recorded = [*range(4), *range(100, 106), *range(200, 203)]
    partial = under_way(episode_id, [(1, 2), (2, 3)], context=13, first_id=300)
    partial.spans[0].token_ids[:] = recorded
    interrupt(db, 2, partial)

    (episode,) = held_by(db, 2).values()

    assert episode.token_ids.tolist() == [*recorded, *range(300, 305)]
    assert episode.versions.tolist() == [-1] * 4 + [1] * 6 + [-1] * 3 + [1, 1, 2, 2, 2]
    assert np.array_equal(episode.action_mask, episode.versions >= 0)
    assert episode.temperature == 0.7


def test_a_generation_that_became_a_turn_meanwhile_is_held_once(db: Database) -> None:
    episode_id = open_episode(db)
    with db.transaction() as tx:
        tx.episodes.add_turn(episode_id, make_turn(versions=[2]))
    interrupt(db, 2, under_way(episode_id, [(2, 6)]))

    (episode,) = held_by(db, 2).values()
    assert len(episode.token_ids) == 13  # that of the turn, observations included


def test_the_next_pause_forgets_the_generations_of_the_last_one(db: Database) -> None:
    first, second = open_episode(db), open_episode(db)
    interrupt(db, 1, under_way(first, [(1, 3)]))
    interrupt(db, 1, under_way(second, [(1, 3)]))
    assert set(held_by(db, 1)) == {second}


def test_a_generation_with_a_null_log_prob_is_not_held(db: Database) -> None:
    episode_id = open_episode(db)
    partial = under_way(episode_id, [(1, 3)])
    partial.spans[1].logprobs[1] = np.nan
    interrupt(db, 1, partial)
    assert held_by(db, 1) == {}


def test_an_erased_episode_is_left_out_of_everything(db: Database) -> None:
    episode_id = graded_episode(db, [1])
    (episode,) = held_by(db, 1).values()
    with db.transaction() as tx:
        assert tx.old_logprobs.put([episode], 1, [scores(episode, 1)]) == 6 * 4
        tx.episodes.erase(TENANT, episode_id)
        assert tx.old_logprobs.put([episode], 1, [scores(episode, 1)]) == 0
    interrupt(db, 1, under_way(episode_id, [(1, 2)]))
    with db.reading() as tx:
        for table in ("old_logprobs", "partial_generations"):
            assert tx.connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0


def test_the_next_batch_is_the_oldest_of_the_queue(db: Database, clock: ManualClock) -> None:
    seed_version(db)
    reserved = graded_episode(db, [0])
    assert reserve_step(db, 1) == 1
    ids = []
    for reward in (1.0, 0.0, 1.0):
        clock.advance(1)
        ids.append(graded_episode(db, [0], reward=reward))
    graded_episode(db, [0], split="heldout")
    with db.reading() as tx:
        upcoming = tx.old_logprobs.upcoming(2)
    assert [episode.id for episode in upcoming] == ids[:2]
    assert reserved not in ids
    assert upcoming[0].num_action_tokens == 6


# --- what is stored -------------------------------------------------------------------------------------------------


def test_scores_come_back_where_they_belong_and_only_the_rest_is_left_to_score(db: Database) -> None:
    graded_episode(db, [1, 2])
    (episode,) = held_by(db, 1).values()
    of_1, of_2 = scores(episode, 1), scores(episode, 2, -2.0)
    with db.transaction() as tx:
        tx.old_logprobs.put([episode], 1, [of_1])
    (half,) = held_by(db, 2).values()
    assert np.array_equal(half.old_logprobs, of_1, equal_nan=True)
    with db.transaction() as tx:
        tx.old_logprobs.put([episode], 2, [of_2])
        tx.old_logprobs.put([episode], 2, [of_2])  # a step that is run twice
    with db.reading() as tx:
        (whole,) = tx.old_logprobs.fill([episode])
    assert np.array_equal(whole.old_logprobs, np.where(np.isnan(of_1), of_2, of_1), equal_nan=True)


def test_scores_of_a_partial_generation_are_those_of_the_turn_it_becomes(db: Database) -> None:
    episode_id = open_episode(db)
    interrupt(db, 1, under_way(episode_id, [(1, 3)]))
    (partial,) = held_by(db, 1).values()
    with db.transaction() as tx:
        tx.old_logprobs.put([partial], 1, [scores(partial, 1)])
        tx.old_logprobs.prune()
        tx.episodes.add_turn(episode_id, make_turn(versions=[1, 2]))
        tx.episodes.finish(episode_id, StopReason.SUBMITTED, None)
    (episode,) = held_by(db, 2).values()
    assert episode.old_logprobs[4:7].tolist() == scores(partial, 1)[4:7].tolist()
    assert np.isnan(episode.old_logprobs[7:]).all()


@pytest.mark.parametrize("changed", ["an id before", "the version"])
def test_a_score_does_not_fit_a_generation_that_was_sampled_again(db: Database, changed: str) -> None:
    graded_episode(db, [1])
    (episode,) = held_by(db, 1).values()
    with db.transaction() as tx:
        tx.old_logprobs.put([episode], 1, [scores(episode, 1)])
    other = replace(episode, token_ids=episode.token_ids.copy(), versions=episode.versions.copy())
    if changed == "the version":
        other.versions[4:10] = 2
    else:
        other.token_ids[3] = 99
    with db.reading() as tx:
        (same, again) = tx.old_logprobs.fill([episode, other])
    assert not np.isnan(same.old_logprobs[4:10]).any()
    assert np.isnan(again.old_logprobs).all()


def test_scores_of_episodes_that_are_over_are_pruned(db: Database) -> None:
    kept, dropped = graded_episode(db, [1]), graded_episode(db, [1])
    episodes = list(held_by(db, 1).values())
    with db.transaction() as tx:
        tx.old_logprobs.put(episodes, 1, [scores(e, 1) for e in episodes])
        tx.episodes.drop(dropped, "tests")
        tx.old_logprobs.prune()
        ids = tx.connection.execute(text("SELECT DISTINCT episode_id FROM old_logprobs")).scalars().all()
    assert ids == [kept]
