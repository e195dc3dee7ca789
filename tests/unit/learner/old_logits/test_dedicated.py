"""A second process that scores: what it gives, what it does ahead, and what becomes of it."""

import os
import signal
import time
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

import numpy as np
import psutil
import pytest

from online_agent.config.training import LearnerSettings
from online_agent.learner.old_logits.dedicated import DedicatedRoute
from online_agent.learner.old_logits.second_model import SecondModel
from online_agent.learner.old_logits.snapshot import SnapshotRoute, num_missing
from online_agent.learner.old_logits.window import VersionWindow
from tests.fakes.policy_versions import VERSIONS, mixed_episodes
from tests.fakes.second_model import fill_and_wait

START_S = 60.0
"""A second process imports torch first; other tests may share the cores."""


@pytest.fixture(scope="module", autouse=True)
def learner(store, tmp_path_factory):
    """A learner with a second process of its own, and where it tells the pid of that one.

    Both import torch, one after the other: it is started before the first test, for the last.
    """
    told = tmp_path_factory.mktemp("learner") / "pid"
    process = get_context("spawn").Process(target=fill_and_wait, args=(str(store.root), str(told)))
    process.start()
    yield process, told
    process.kill()
    process.join()


@pytest.fixture(scope="module")
def upcoming():
    """What the route sees in the queue; empty before each test."""
    return []


@pytest.fixture(scope="module")
def shared_route(store, upcoming):
    route = make_route(store, upcoming=lambda: upcoming)
    yield route
    route.close()


@pytest.fixture
def route(shared_route, upcoming):
    upcoming.clear()
    shared_route.fill([], version=VERSIONS[-1])
    return shared_route


def make_route(store, **options):
    options = {"max_held_bytes": 10**9, "answer_timeout_s": START_S} | options
    return DedicatedRoute(store, LearnerSettings(), **options)


def differences(one, other):
    return [float(np.nanmax(np.abs(a.old_logprobs - b.old_logprobs))) for a, b in zip(one, other, strict=True)]


def test_it_gives_what_the_snapshots_give(route, store, scorer):
    episodes = mixed_episodes(6, VERSIONS)

    filled = route.fill(episodes, version=5)

    assert max(differences(filled, SnapshotRoute(scorer, VersionWindow(store, 10**9)).fill(episodes, version=5))) < 1e-5
    assert num_missing(filled) == route.cost().missing_tokens == 0
    assert route.cost().bytes == 4 * scorer.size_bytes  # three versions and the network that scores


def test_what_was_scored_ahead_costs_the_step_no_second_request(route, upcoming, monkeypatch):
    asked = []
    ask = SecondModel.ask
    monkeypatch.setattr(SecondModel, "ask", lambda self, e: (asked.append([x.id for x in e]), ask(self, e))[1])
    first, second = mixed_episodes(4, VERSIONS, seed=1)[:2], mixed_episodes(4, VERSIONS, seed=1)[2:]
    upcoming[:] = second

    route.fill(first, version=5)
    upcoming.clear()
    filled = route.fill(second, version=5)

    assert asked == [["e0", "e1"], ["e2", "e3"]]
    assert num_missing(filled) == 0


def test_what_was_scored_ahead_waits_for_the_batch_that_takes_it(route, upcoming, monkeypatch):
    one, two, three = mixed_episodes(3, VERSIONS, seed=2)
    upcoming[:] = [two, three]
    route.fill([one], version=5)
    upcoming[:] = [three]
    route.fill([two], version=5)
    upcoming.clear()
    monkeypatch.setattr(SecondModel, "ask", lambda *_: pytest.fail("scored twice"))
    assert num_missing(route.fill([three], version=5)) == 0


def test_a_killed_process_is_started_again_and_the_batch_is_scored(route):
    episodes = mixed_episodes(2, VERSIONS)
    route.fill(episodes, version=5)
    first = route.pid
    os.kill(first, signal.SIGKILL)

    filled = route.fill(episodes, version=5)

    assert num_missing(filled) == 0
    assert route.pid != first
    assert not psutil.pid_exists(first)


def test_processes_that_do_not_answer_in_time_leave_the_batch_unscored_and_the_learner_alive(store, monkeypatch):
    started = []
    monkeypatch.setattr(BaseProcess, "start", lambda self, start=BaseProcess.start: (start(self), started.append(self)))
    route = make_route(store, answer_timeout_s=0.05)

    filled = route.fill(mixed_episodes(1, VERSIONS), version=5)

    assert num_missing(filled) == route.cost().missing_tokens == filled[0].num_action_tokens
    assert route.pid is None
    assert [process.exitcode for process in started] == [-signal.SIGKILL] * 2


def test_it_dies_with_the_learner(learner):
    process, told = learner
    second = psutil.Process(int(_read_when_written(told)))
    assert second.ppid() == process.pid

    process.kill()
    process.join()

    gone, _ = psutil.wait_procs([second], timeout=10)
    assert gone == [second]


def _read_when_written(path):
    deadline = time.monotonic() + START_S
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return path.read_text()
