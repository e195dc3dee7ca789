"""Erasing a person, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pytest

from envs.types import Artifact, Verdict
from online_agent.errors import BadInput, NotFound
from online_agent.store.records import EpisodeNew, FeedbackNew
from online_agent.store.repositories.people import ErasedPerson
from online_agent.store.session import Database
from online_agent.types import StopReason
from tests.fakes.episodes import TENANT, commit_step, make_turn, reserve_step, seed_version


def _episode_of(db: Database, person: object, tenant: str = TENANT) -> str:
    with db.transaction() as tx:
        metadata = {"person": person, "note": "ann"}
        episode_id = tx.episodes.create(EpisodeNew(tenant, "bug_repair", "train-1", "train", metadata=metadata))
        tx.episodes.add_turn(episode_id, make_turn())
        tx.episodes.finish(episode_id, StopReason.SUBMITTED, Artifact({"a.py": "x = 1\n"}, is_submitted=True))
        tx.episodes.grade(episode_id, Verdict(1.0, True))
    return episode_id


def test_a_persons_episodes_and_feedback_are_erased_and_nobody_elses(db: Database) -> None:
    mine = [_episode_of(db, "ann"), _episode_of(db, "ann")]
    others = [_episode_of(db, "bob"), _episode_of(db, None), _episode_of(db, "ann", tenant="rival")]
    with db.transaction() as tx:
        for person in ("ann", "bob"):
            tx.feedback.add(TENANT, others[0], FeedbackNew("app", 1.0, person=person))
        assert tx.people.erase(TENANT, "ann") == ErasedPerson(2, 1, 0, ())
    with db.transaction() as tx:
        for episode_id in mine:
            with pytest.raises(NotFound):
                tx.episodes.get(TENANT, episode_id)
        assert set(tx.episodes.progress(others)) == set(others)
        assert [row.person for row in tx.feedback.of_episode(TENANT, others[0])] == ["bob"]
        assert tx.people.erase(TENANT, "ann") == ErasedPerson(0, 0, 0, ())


def test_the_versions_trained_on_a_person_are_told(db: Database) -> None:
    seed_version(db)
    for person in ("ann", "bob", "ann"):
        _episode_of(db, person)
        step = reserve_step(db, 1)
        assert step is not None
        commit_step(db, step)
    with db.transaction() as tx:
        assert tx.people.erase(TENANT, "ann") == ErasedPerson(2, 0, 0, (1, 3))
        assert [row.is_erased for row in tx.weights.episodes_of(1)] == [True]


def test_an_episode_that_a_step_holds_stays_until_that_ends(db: Database) -> None:
    seed_version(db)
    _episode_of(db, "ann")
    step = reserve_step(db, 1)
    assert step is not None
    with db.transaction() as tx:
        assert tx.people.erase(TENANT, "ann") == ErasedPerson(0, 0, 1, ())
    commit_step(db, step)
    with db.transaction() as tx:
        assert tx.people.erase(TENANT, "ann") == ErasedPerson(1, 0, 0, (1,))


def test_a_person_without_a_name_is_refused(db: Database) -> None:
    with db.transaction() as tx, pytest.raises(BadInput, match="person"):
        tx.people.erase(TENANT, "")
