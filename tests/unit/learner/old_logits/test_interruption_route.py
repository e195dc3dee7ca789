"""The learner's side of an interruption: what it asks, scores, stores and lets go."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from online_agent.learner.old_logits.interruption import InterruptionRoute, Patience
from online_agent.store.records import InterruptionState, VersionNew
from online_agent.store.session import Database
from online_agent.types import VersionOrigin, VersionState
from tests.fakes.episodes import graded_episode, seed_version

QUICK = Patience(serving_s=0.2, answer_s=0.2)
PATIENT = Patience(serving_s=10.0, answer_s=10.0)


@pytest.fixture
def db(sqlite_url: str) -> Iterator[Database]:
    """Version 0 serves."""
    database = Database(sqlite_url)
    seed_version(database)
    yield database
    database.close()


class CountingScores:
    """A policy whose log-prob of a token is minus its position; counts what it was asked."""

    def __init__(self):
        self.num_tokens = []

    def __call__(self, episodes, chosen):
        self.num_tokens.append(sum(int(mask.sum()) for mask in chosen))
        return [np.where(mask, -np.arange(len(mask)), np.nan).astype(np.float32) for mask in chosen]


class Api(threading.Thread):
    """The other side: answers each request at once and never resumes."""

    def __init__(self, db):
        super().__init__()
        self._db, self._is_over = db, threading.Event()

    def run(self):
        while not self._is_over.wait(0.01):
            with self._db.transaction() as tx:
                current = tx.interruptions.current()
                if current is not None and current.state is InterruptionState.ASKED:
                    tx.interruptions.pause(current.number, time.time(), ())

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self._is_over.set()
        self.join()


def current_state(db):
    with db.reading() as tx:
        current = tx.interruptions.current()
    return None if current is None else current.state


def reserved_batch(db):
    with db.reading() as tx:
        return tx.old_logprobs.upcoming(10)


def serve(db, version):
    with db.transaction() as tx:
        tx.weights.insert(VersionNew(version, VersionOrigin.ROLLBACK))
        for before, after in (("candidate", "loading"), ("loading", "verified"), ("verified", "serving")):
            tx.weights.move(version, {VersionState(before)}, VersionState(after))


def test_the_tokens_of_the_current_version_are_scored_under_the_pause(db):
    graded_episode(db, [0])
    scores = CountingScores()
    route = InterruptionRoute(db, scores, PATIENT)

    with Api(db):
        (filled,) = route.fill(reserved_batch(db), version=0)

    assert current_state(db) is InterruptionState.PAUSED
    assert filled.old_logprobs[4:10].tolist() == [-4, -5, -6, -7, -8, -9]
    assert np.isnan(filled.old_logprobs[[0, 3, 10]]).all()
    assert route.cost().missing_tokens == 0
    assert route.cost().bytes == 2 * 6 * 4  # stored, and read for the batch


def test_a_token_is_scored_once(db):
    graded_episode(db, [0])
    scores = CountingScores()
    route = InterruptionRoute(db, scores, QUICK)
    for _ in range(2):
        route.fill((), version=0)
        route.settle(0)
    graded_episode(db, [0], num_tokens=3)
    route.fill((), version=0)
    assert scores.num_tokens == [6, 3]


def test_scores_of_an_earlier_version_are_read_back_and_never_made_later(db):
    graded_episode(db, [0, 1])
    scores = CountingScores()
    route = InterruptionRoute(db, scores, QUICK)
    route.fill((), version=0)
    route.settle(1)
    serve(db, 1)
    graded_episode(db, [0])  # stored too late for version 0

    filled = route.fill(reserved_batch(db), version=1)

    assert not np.isnan(filled[0].old_logprobs[4:10]).any()
    assert np.isnan(filled[1].old_logprobs).all()
    assert route.cost().missing_tokens == 6


def test_nothing_is_asked_while_another_version_serves(db):
    route = InterruptionRoute(db, CountingScores(), QUICK)
    with db.transaction() as tx:
        tx.weights.insert(VersionNew(1, VersionOrigin.STEP))
    started_at = time.monotonic()
    route.fill((), version=1)
    assert time.monotonic() - started_at >= 0.2
    assert current_state(db) is None


def test_a_version_that_the_engine_will_not_be_given_is_not_waited_for(db):
    route = InterruptionRoute(db, CountingScores(), Patience(serving_s=60.0, answer_s=60.0, every_versions=4))
    started_at = time.monotonic()
    route.fill((), version=3)
    assert time.monotonic() - started_at < 30


def test_an_api_that_does_not_answer_is_given_up_on_and_the_recorded_tokens_are_scored(db):
    graded_episode(db, [0])
    route = InterruptionRoute(db, CountingScores(), QUICK)
    (filled,) = route.fill(reserved_batch(db), version=0)
    assert route.cost().missing_tokens == 0
    assert filled.old_logprobs[4] == -4
    with db.reading() as tx:
        assert tx.interruptions.get(1).outcome == "withdrawn"


@pytest.mark.parametrize(
    ("every_versions", "version_after", "is_released"), [(1, 0, True), (1, 1, False), (4, 1, True), (4, 4, False)]
)
def test_the_engine_is_let_go_unless_it_will_be_given_a_new_version(db, every_versions, version_after, is_released):
    route = InterruptionRoute(db, CountingScores(), Patience(10.0, 10.0, every_versions))
    with Api(db):
        route.fill((), version=0)
    route.settle(version_after)
    assert current_state(db) is (InterruptionState.RELEASED if is_released else InterruptionState.PAUSED)


def test_a_learner_that_stops_lets_the_engine_go(db):
    route = InterruptionRoute(db, CountingScores(), PATIENT)
    with Api(db):
        route.fill((), version=0)
    route.close()
    assert current_state(db) is InterruptionState.RELEASED


def test_a_learner_that_was_killed_in_a_pause_lets_the_engine_go_when_it_starts_again(db):
    with Api(db):
        InterruptionRoute(db, CountingScores(), PATIENT).fill((), version=0)
    InterruptionRoute(db, CountingScores(), PATIENT)
    assert current_state(db) is InterruptionState.RELEASED


def test_each_pause_is_reported_once_when_it_has_ended(db):
    route = InterruptionRoute(db, CountingScores(), QUICK)
    seconds = []
    for paused_at, ended_at in ((100.0, 100.5), (200.0, 202.0)):
        with db.transaction() as tx:
            number = tx.interruptions.ask(0)
            tx.interruptions.pause(number, paused_at, ())
            tx.interruptions.end(number, "swapped", ended_at)
        route.fill((), version=7)
        seconds.append(route.cost().paused_seconds)
    route.fill((), version=7)
    assert [*seconds, route.cost().paused_seconds] == [0.5, 2.0, 0.0]
