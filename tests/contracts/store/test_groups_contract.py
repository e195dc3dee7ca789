"""Groups in the training queue, on SQLite and on PostgreSQL."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.types import Verdict
from online_agent.errors import BadInput
from online_agent.store.records import EpisodeNew, StepNew, TurnNew
from online_agent.store.session import Database
from online_agent.types import EpisodeStatus, Span, SpanKind, StopReason, TrainingEpisode
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import (
    TENANT,
    commit_step,
    finish_member,
    grade_member,
    graded_episode,
    graded_group,
    open_group,
    reserve_step,
    seed_version,
)

SIZE = 4


def _status(db: Database, episode_id: str) -> EpisodeStatus:
    with db.reading() as tx:
        return tx.episodes.get(TENANT, episode_id).status


def _drops(db: Database) -> dict[str, int]:
    with db.reading() as tx:
        return tx.episodes.drops_by_reason()


def _num_ready(db: Database) -> int:
    with db.reading() as tx:
        return tx.episodes.queue(SIZE).num_ready


def _taken(db: Database, step: int | None) -> list[str]:
    assert step is not None
    with db.reading() as tx:
        rows = tx.connection.exec_driver_sql(
            f"SELECT episode_id FROM step_episodes WHERE step = {step} ORDER BY position"
        )
        return [row[0] for row in rows]


def test_a_group_is_created_whole_and_its_members_name_it(db: Database) -> None:
    group_id, members = open_group(db, 3)
    graded_episode(db)
    with db.reading() as tx:
        page = tx.episodes.list(TENANT, group_id=group_id)
        assert [record.id for record in page.items] == members[::-1]
        assert {(r.group_id, r.group_size, r.task_id) for r in page.items} == {(group_id, 3, "train-1")}
        assert tx.episodes.list("another", group_id=group_id).items == []


@pytest.mark.parametrize("size", [-1, 0, 1, 65])
def test_a_group_of_another_size_than_2_to_64_is_refused(db: Database, size: int) -> None:
    with pytest.raises(BadInput, match="group_size must be 2 to 64"), db.transaction() as tx:
        tx.episodes.create_group(EpisodeNew(TENANT, "bug_repair", "train-1", "train"), size)


def test_an_episode_alone_has_no_group(db: Database) -> None:
    episode_id = graded_episode(db)
    with db.reading() as tx:
        record = tx.episodes.get(TENANT, episode_id)
    assert (record.group_id, record.group_size) == (None, None)


def test_a_group_is_taken_when_its_last_member_is_graded(db: Database) -> None:
    seed_version(db)
    _, members = open_group(db, SIZE)
    for episode_id in members[:3]:
        grade_member(db, episode_id)
        assert reserve_step(db, 2, group_size=SIZE) is None
    finish_member(db, members[3])
    assert (_num_ready(db), reserve_step(db, 2, group_size=SIZE)) == (0, None)
    with db.transaction() as tx:
        tx.episodes.grade(members[3], Verdict(0.0, False))
    assert _num_ready(db) == SIZE
    assert _taken(db, reserve_step(db, 2, group_size=SIZE)) == members


def test_members_arrive_with_their_task_and_their_group(db: Database) -> None:
    group_id, members = open_group(db, 2)
    for episode_id, reward in zip(members, (0.0, 1.0), strict=True):
        grade_member(db, episode_id, reward=reward)
    with db.transaction() as tx:
        episodes = tx.episodes.reserve(1, 2, 0, 8, group_size=2)
        tx.connection.rollback()
    assert [(e.id, e.task_id, e.group_id, e.reward) for e in episodes] == [
        (members[0], "bug_repair/train-1", group_id, 0.0),
        (members[1], "bug_repair/train-1", group_id, 1.0),
    ]


def test_the_group_that_was_complete_first_goes_first(db: Database, clock: ManualClock) -> None:
    seed_version(db)
    (_, slow), (_, quick) = open_group(db, 2), open_group(db, 2)
    for episode_id in (slow[0], *quick, slow[1]):
        clock.advance(1)
        grade_member(db, episode_id)
    assert _taken(db, reserve_step(db, 2, group_size=2)) == quick


def test_whole_groups_fill_a_batch_without_exceeding_it(db: Database, clock: ManualClock) -> None:
    seed_version(db)
    groups = []
    for size in (3, 4, 2):
        clock.advance(1)
        groups.append(graded_group(db, size))
    assert _taken(db, reserve_step(db, 8, group_size=SIZE)) == [*groups[0], *groups[1]]


def test_fewer_groups_than_fill_a_batch_wait_for_the_next_unless_fewer_will_do(db: Database) -> None:
    seed_version(db)
    members = graded_group(db, 3)
    assert reserve_step(db, 4, group_size=SIZE) is None
    assert {_status(db, episode_id) for episode_id in members} == {EpisodeStatus.GRADED}
    with db.transaction() as tx:
        assert len(tx.episodes.reserve(1, 4, 0, 8, group_size=SIZE, allow_fewer=True)) == 3
        tx.connection.rollback()


def test_a_group_larger_than_the_batch_is_taken_whole(db: Database) -> None:
    seed_version(db)
    members = graded_group(db, 5)
    assert _taken(db, reserve_step(db, 2, group_size=2)) == members


def test_a_member_failed_by_an_outage_does_not_block_its_group(db: Database) -> None:
    seed_version(db)
    _, members = open_group(db, 3)
    grade_member(db, members[0])
    grade_member(db, members[2])
    assert reserve_step(db, 2, group_size=SIZE) is None
    with db.transaction() as tx:
        tx.episodes.fail(members[1], "EngineUnavailable: gone")
    assert _taken(db, reserve_step(db, 2, group_size=SIZE)) == [members[0], members[2]]


def test_a_member_that_is_untrainable_or_erased_does_not_block_its_group(db: Database) -> None:
    seed_version(db)
    _, members = open_group(db, SIZE)
    for episode_id in members[:2]:
        grade_member(db, episode_id)
    with db.transaction() as tx:
        tx.episodes.mark_untrainable(members[2], "operator said so")
        tx.episodes.erase(TENANT, members[3])
    assert _taken(db, reserve_step(db, 2, group_size=SIZE)) == members[:2]


def test_the_last_one_left_of_a_group_is_dropped_with_the_reason(db: Database) -> None:
    seed_version(db)
    _, members = open_group(db, 2)
    grade_member(db, members[0])
    with db.transaction() as tx:
        tx.episodes.fail(members[1], "outage")
    assert (_num_ready(db), reserve_step(db, 1, group_size=SIZE)) == (0, None)
    assert _drops(db) == {"group_too_small": 1}


def test_stale_members_are_dropped_one_by_one_and_the_others_are_taken(db: Database) -> None:
    seed_version(db)
    _, members = open_group(db, 3)
    for episode_id, version in zip(members, (10, 1, 9), strict=True):
        grade_member(db, episode_id, (version,))
    assert _taken(db, reserve_step(db, 2, current_version=10, group_size=SIZE)) == [members[0], members[2]]
    assert _drops(db) == {"stale:9": 1}


def test_a_group_of_which_one_is_not_stale_is_dropped_whole(db: Database) -> None:
    seed_version(db)
    _, members = open_group(db, 2)
    for episode_id, version in zip(members, (10, 1), strict=True):
        grade_member(db, episode_id, (version,))
    assert reserve_step(db, 1, current_version=10, group_size=SIZE) is None
    assert _drops(db) == {"stale:9": 1, "group_too_small": 1}


def test_a_member_that_cannot_be_laid_out_leaves_its_group_smaller(db: Database) -> None:
    seed_version(db)
    (_, pair), (_, trio) = open_group(db, 2), open_group(db, 3)
    broken = Span(SpanKind.ACTION, 0, np.array([1], np.int32), None, ())
    for episode_id in (pair[0], trio[0]):
        with db.transaction() as tx:
            tx.episodes.add_turn(episode_id, TurnNew(spans=[broken]))
            tx.episodes.finish(episode_id, StopReason.SUBMITTED, None)
            tx.episodes.grade(episode_id, Verdict(1.0, True))
            tx.connection.exec_driver_sql("UPDATE episodes SET untrainable_reason = NULL")
    for episode_id in (pair[1], *trio[1:]):
        grade_member(db, episode_id)
    assert _taken(db, reserve_step(db, 2, group_size=SIZE)) == trio[1:]
    assert _drops(db) == {"misaligned": 2, "group_too_small": 1}


def test_a_recipe_of_groups_drops_what_has_no_group_but_nothing_held_out(db: Database) -> None:
    seed_version(db)
    alone, heldout = graded_episode(db), [graded_episode(db, split="heldout"), *graded_group(db, 2, split="heldout")]
    members = graded_group(db, 2)
    assert _num_ready(db) == 2
    assert _taken(db, reserve_step(db, 2, group_size=2)) == members
    assert _drops(db) == {"ungrouped": 1}
    assert _status(db, alone) is EpisodeStatus.DROPPED
    assert {_status(db, episode_id) for episode_id in heldout} == {EpisodeStatus.GRADED}


def test_a_recipe_without_groups_takes_members_like_any_other(db: Database, clock: ManualClock) -> None:
    seed_version(db)
    _, members = open_group(db, 2)
    grade_member(db, members[0])
    clock.advance(1)
    alone = graded_episode(db)
    with db.reading() as tx:
        assert (tx.episodes.queue().num_ready, tx.episodes.queue(2).num_ready) == (2, 0)
    assert _taken(db, reserve_step(db, 2)) == [members[0], alone]


def test_what_a_recipe_without_groups_left_of_a_group_is_dropped(db: Database) -> None:
    seed_version(db)
    members = graded_group(db, 3)
    step = reserve_step(db, 1)
    assert step is not None
    commit_step(db, step)
    assert (_num_ready(db), reserve_step(db, 1, group_size=3)) == (0, None)
    assert _drops(db) == {"group_split": 2}
    assert _status(db, members[0]) is EpisodeStatus.TRAINED


def test_a_killed_learner_gives_the_whole_group_back(db: Database, clock: ManualClock) -> None:
    seed_version(db)
    members = graded_group(db, 3)
    step = reserve_step(db, 3, group_size=3, lease_s=60.0)
    assert _num_ready(db) == 0
    clock.advance(60)
    with db.transaction() as tx:
        assert tx.steps.abandon_expired() == [step]
    assert _num_ready(db) == 3
    again = reserve_step(db, 3, group_size=3)
    assert _taken(db, again) == members


def test_a_group_size_that_compares_nothing_is_refused(db: Database) -> None:
    with pytest.raises(BadInput, match="group_size must be >= 2"), db.transaction() as tx:
        tx.episodes.reserve(1, 4, 0, 8, group_size=1)


@dataclass
class _World:
    """Which members of each group (by id) may be taken; None for a group that is not complete."""

    groups: dict[str, list[str] | None]
    num_alone: int


FATES = ("graded", "graded", "graded", "failed", "untrainable", "stale", "cancelled", "open", "finished")


def _bring_about(db: Database, clock: ManualClock, fates: Sequence[Sequence[str]], num_alone: int) -> _World:
    world = _World({}, num_alone)
    for of_group in fates:
        group_id, members = open_group(db, len(of_group))
        for episode_id, fate in zip(members, of_group, strict=True):
            clock.advance(1)
            _meet(db, episode_id, fate)
        taken = [e for e, fate in zip(members, of_group, strict=True) if fate == "graded"]
        is_complete = not {"open", "finished"} & set(of_group)
        world.groups[group_id] = taken if is_complete and len(taken) > 1 else None
    for _ in range(num_alone):
        graded_episode(db, (10,))
    return world


def _meet(db: Database, episode_id: str, fate: str) -> None:
    if fate == "open":
        return
    if fate in ("graded", "stale"):
        grade_member(db, episode_id, (10,) if fate == "graded" else (0,))
        return
    with db.transaction() as tx:
        if fate == "failed":
            tx.episodes.fail(episode_id, "outage")
        elif fate == "cancelled":
            tx.episodes.finish(episode_id, StopReason.CANCELLED, None)
        elif fate == "untrainable":
            tx.episodes.mark_untrainable(episode_id, "greedy")
    if fate == "finished":
        finish_member(db, episode_id, (10,))


def _clear(db: Database) -> None:
    with db.transaction() as tx:
        tx.connection.exec_driver_sql("UPDATE episodes SET status = 'dropped'")


def _train_everything(db: Database, batch: int) -> list[list[TrainingEpisode]]:
    """Steps until nothing can be taken; every second one is given back once, as by a learner that was killed."""
    batches: list[list[TrainingEpisode]] = []
    is_killed = False
    while True:
        with db.transaction() as tx:
            step = tx.steps.next_step()
            taken = tx.episodes.reserve(step, batch, 10, 8, group_size=SIZE, allow_fewer=True)
            if not taken:
                return batches
            tx.steps.reserve(StepNew(step, [e.id for e in taken], "h", 10, 0, "learner", 60.0))
        is_killed = not is_killed
        if is_killed:
            with db.transaction() as tx:
                tx.steps.release_own("learner")
            continue
        commit_step(db, step)
        batches.append(taken)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fates=st.lists(st.lists(st.sampled_from(FATES), min_size=2, max_size=5), min_size=1, max_size=5),
    num_alone=st.integers(0, 2),
    batch=st.integers(1, 9),
)
def test_a_group_is_in_one_batch_whole_or_in_none(
    db: Database, clock: ManualClock, fates: list[list[str]], num_alone: int, batch: int
) -> None:
    _clear(db)
    world = _bring_about(db, clock, fates, num_alone)
    batches = _train_everything(db, batch)
    trained = [[(e.group_id, e.id) for e in episodes] for episodes in batches]
    expected = [[(group, e) for e in members] for group, members in world.groups.items() if members]
    assert [pair for episodes in trained for pair in episodes] == [pair for group in expected for pair in group]
    for episodes in trained:
        groups = {group for group, _ in episodes}
        assert len(episodes) <= batch or len(groups) == 1
        for group in groups:
            assert [e for of, e in episodes if of == group] == world.groups[str(group)]
    with db.reading() as tx:
        assert tx.episodes.trained_twice() == 0


NUM_CLIENTS, GROUPS_EACH = 4, 8


def _serve_groups(db: Database, seed: int) -> list[list[str]]:
    """The members of each group that can be trained on. Each one meets its fate in a transaction of its own."""
    chance = random.Random(seed)
    trainable = []
    for _ in range(GROUPS_EACH):
        _, members = open_group(db, chance.randint(2, 5))
        graded = []
        for episode_id in chance.sample(members, len(members)):
            if chance.random() < 0.75:
                graded.append(episode_id)
            _meet(db, episode_id, "graded" if episode_id in graded else chance.choice(("failed", "untrainable")))
        trainable.append(sorted(graded))
    return trainable


def test_groups_stay_whole_while_their_members_arrive_in_many_transactions(db: Database) -> None:
    seed_version(db)
    batches: list[list[str]] = []
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        clients = [pool.submit(_serve_groups, db, seed) for seed in range(NUM_CLIENTS)]
        while True:
            is_over = all(client.done() for client in clients)
            step = reserve_step(db, 6, current_version=10, group_size=SIZE)
            if step is not None:
                commit_step(db, step)
                batches.append(_taken(db, step))
            elif is_over:
                break
        groups = [members for client in clients for members in client.result() if len(members) > 1]
    left = {episode_id for batch in _train_everything(db, 6) for episode_id in (e.id for e in batch)}
    batch_of = {episode_id: number for number, batch in enumerate(batches) for episode_id in batch}
    assert sum(map(len, batches)) == len(batch_of)
    for members in groups:
        assert len({batch_of.get(episode_id) for episode_id in members}) == 1, members
        assert (members[0] in batch_of) != (members[0] in left)
    assert set(batch_of) | left == {episode_id for members in groups for episode_id in members}
