"""The phases of a monitored environment, driven by made-up traffic."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence

import pytest

from online_agent.drift.monitor import BLAMED, CLEARED, CONFIRMED, DETECTED, REBASELINED, Finding, Monitor, Phase
from online_agent.drift.outcomes import Outcome

EPISODES_PER_VERSION = 64


def monitor() -> Monitor:
    return Monitor(min_episodes=40, cooldown_episodes=128, adwin_delta=0.002)


class Traffic:
    """Episodes of five tool calls each, at a given success and error rate; a new version every 64 episodes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = itertools.count()

    def take(self, num: int, success: float, errors: float) -> list[Outcome]:
        return [self._one(success, errors) for _ in range(num)]

    def _one(self, success: float, errors: float) -> Outcome:
        failed = sum(self._random.random() < errors for _ in range(5))
        reward = float(self._random.random() < success)
        return Outcome(reward, failed / 5, next(self._number) // EPISODES_PER_VERSION)


def in_scans(outcomes: Sequence[Outcome], size: int = 8) -> Iterator[Sequence[Outcome]]:
    for start in range(0, len(outcomes), size):
        yield outcomes[start : start + size]


def run(watcher: Monitor, outcomes: Sequence[Outcome]) -> list[Finding]:
    return [finding for part in in_scans(outcomes) for finding in watcher.observe(part)]


def kinds(findings: Sequence[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


@pytest.mark.parametrize("seed", range(5))
def test_steady_traffic_raises_nothing(seed):
    assert run(monitor(), Traffic(seed).take(800, 0.75, 0.1)) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_silent_change_of_the_tools_is_confirmed_once_and_asks_for_one_reset(seed):
    watcher, traffic = monitor(), Traffic(seed)
    assert run(watcher, traffic.take(300, 0.75, 0.1)) == []
    findings = run(watcher, traffic.take(400, 0.3, 0.5))
    assert kinds(findings) == [DETECTED, CONFIRMED]
    assert [finding.reset_cause is not None for finding in findings] == [False, True]
    detected = findings[0].data
    assert detected["before"]["reward"] > 0.65
    assert detected["after"]["reward"] < 0.45
    assert detected["before"]["tool_errors"] < 0.2 < detected["after"]["tool_errors"]


@pytest.mark.parametrize("seed", range(3))
def test_a_worse_model_is_blamed_once_and_no_reset_is_asked_for(seed):
    watcher, traffic = monitor(), Traffic(seed)
    # The drop comes with a new version: 320 is a multiple of 64.
    run(watcher, traffic.take(320, 0.75, 0.1))
    findings = run(watcher, traffic.take(300, 0.35, 0.1))
    assert kinds(findings) == [DETECTED, BLAMED]
    assert all(finding.reset_cause is None for finding in findings)
    assert watcher.phase is Phase.SUSPECTED, "the alarm stays while the drop lasts"
    assert kinds(run(watcher, traffic.take(100, 0.35, 0.1))) == []


def test_an_alarm_is_cleared_when_the_drop_is_over():
    watcher, traffic = monitor(), Traffic(1)
    run(watcher, traffic.take(320, 0.75, 0.1))
    run(watcher, traffic.take(200, 0.35, 0.1))
    assert kinds(run(watcher, traffic.take(200, 0.85, 0.05))) == [CLEARED]
    assert watcher.phase is Phase.WATCHING


def test_a_drop_never_becomes_its_own_baseline():
    watcher, traffic = monitor(), Traffic(0)
    run(watcher, traffic.take(320, 0.75, 0.1))
    reference = watcher.reference.value
    run(watcher, traffic.take(1000, 0.35, 0.1))
    assert watcher.reference.value == pytest.approx(reference, abs=0.02)
    assert watcher.phase is Phase.SUSPECTED
    assert len(watcher.window) <= 1024


def test_an_announced_change_is_confirmed_at_once_and_never_compared_across():
    watcher, traffic = monitor(), Traffic(2)
    run(watcher, traffic.take(300, 0.75, 0.1))
    (finding,) = watcher.announce(["chg_1"])
    assert finding.kind == CONFIRMED
    assert finding.data["by"] == "announcement"
    assert finding.reset_cause == "announced change: chg_1"
    assert run(watcher, traffic.take(400, 0.3, 0.5)) == []


def test_nothing_alarms_during_cool_down():
    watcher, traffic = monitor(), Traffic(3)
    run(watcher, traffic.take(300, 0.75, 0.1))
    watcher.announce(["chg_1"])
    run(watcher, traffic.take(64, 0.9, 0.05))
    assert run(watcher, traffic.take(56, 0.1, 0.8)) == []
    assert watcher.summary()["phase"] == "cooling_down"


def test_an_improvement_is_no_alarm_and_a_later_fall_from_it_is():
    watcher, traffic = monitor(), Traffic(4)
    assert run(watcher, traffic.take(200, 0.3, 0.3)) == []
    assert run(watcher, traffic.take(300, 0.9, 0.05)) == []
    assert DETECTED in kinds(run(watcher, traffic.take(100, 0.4, 0.4)))


def test_c33_a_rollback_restores_the_reference_of_its_target_and_says_so():
    watcher, traffic = monitor(), Traffic(5)
    run(watcher, traffic.take(192, 0.75, 0.1))
    target = 1
    stored = watcher.references[target]
    run(watcher, traffic.take(192, 0.3, 0.1))
    (finding,) = watcher.rolled_back(target)
    assert finding.kind == REBASELINED
    assert finding.data == {"cause": "rollback to version 1", "reference": stored}
    assert finding.reset_cause is None, "the rollback itself restores the learner's reference"
    assert watcher.reference.value == stored
    assert watcher.phase is Phase.WATCHING


def test_state_survives_json_at_any_point():
    traffic = Traffic(6)
    outcomes = traffic.take(300, 0.75, 0.1) + traffic.take(200, 0.3, 0.5)
    straight = monitor()
    expected = run(straight, outcomes)
    restored, findings = monitor(), []
    for part in in_scans(outcomes):
        state = json.loads(json.dumps(restored.to_json()))
        restored = monitor()
        restored.load(state)
        findings += restored.observe(part)
    assert findings == expected
    assert CONFIRMED in kinds(findings)
    assert restored.to_json() == straight.to_json()


def test_the_summary_names_the_phase():
    watcher, traffic = monitor(), Traffic(7)
    assert watcher.summary()["phase"] == "warming_up"
    run(watcher, traffic.take(100, 0.75, 0.1))
    assert watcher.summary() == {
        "phase": "watching",
        "reference": watcher.reference.value,
        "num_episodes": 100,
        "cooldown_left": 0,
        "is_model_blamed": False,
    }
