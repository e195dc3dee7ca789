"""World or model: what two windows of outcomes say."""

from __future__ import annotations

import pytest

from online_agent.drift.detectors import adwin_fires, change_point, page_hinkley_fires
from online_agent.drift.outcomes import Outcome, has_fallen, has_risen
from online_agent.drift.verdict import Culprit, judge


def outcomes(num: int, successes: int, errors: float | None, version: int) -> list[Outcome]:
    """``successes`` of ``num`` succeeded, spread evenly."""
    return [Outcome(float(i * successes // num != (i + 1) * successes // num), errors, version) for i in range(num)]


BEFORE = outcomes(60, 45, 0.1, version=4)


def test_the_same_weights_doing_worse_means_that_the_world_changed():
    judgement = judge(BEFORE, outcomes(30, 6, 0.1, version=4))
    assert judgement.culprit is Culprit.ENVIRONMENT
    assert "version 4" in judgement.reason


def test_tool_errors_under_every_version_mean_that_the_world_changed():
    judgement = judge(BEFORE, outcomes(20, 5, 0.5, version=5) + outcomes(20, 5, 0.5, version=6))
    assert judgement.culprit is Culprit.ENVIRONMENT
    assert "[5, 6]" in judgement.reason


def test_tool_errors_under_one_new_version_alone_are_the_models_fault():
    judgement = judge(BEFORE, outcomes(20, 15, 0.1, version=5) + outcomes(20, 2, 0.9, version=6))
    assert judgement.culprit is Culprit.MODEL
    assert "[6]" in judgement.reason


def test_tool_errors_with_a_single_version_seen_are_not_decided_yet():
    assert judge(BEFORE, outcomes(30, 6, 0.5, version=5)).culprit is Culprit.UNDECIDED


def test_a_fallen_reward_without_tool_errors_is_the_models_fault():
    assert judge(BEFORE, outcomes(40, 8, 0.1, version=5)).culprit is Culprit.MODEL


def test_no_change_is_no_verdict():
    assert judge(BEFORE, outcomes(40, 30, 0.1, version=5)).culprit is Culprit.UNDECIDED


def test_episodes_without_tool_calls_say_nothing_about_tools():
    silent = outcomes(40, 8, None, version=5)
    assert judge(outcomes(60, 45, None, version=4), silent).culprit is Culprit.MODEL


def test_a_shift_must_be_large_and_significant():
    assert has_risen([0.0] * 40, [1.0] * 10)
    assert not has_risen([0.0] * 400, [0.09] * 400), "too small to matter"
    assert not has_risen([0.0, 1.0] * 4, [1.0] * 3), "too few to tell"
    assert not has_risen([], [1.0] * 10)
    assert has_fallen([1.0] * 40, [0.0] * 10)
    assert not has_fallen([0.0] * 40, [1.0] * 10)


def test_detectors_fire_on_a_drop_and_not_on_a_steady_stream():
    steady = [float(i % 4 != 0) for i in range(300)]
    dropped = steady + [float(i % 4 == 0) for i in range(80)]
    assert not adwin_fires(steady, delta=0.002, min_values=40)
    assert not page_hinkley_fires(steady, min_values=40)
    assert adwin_fires(dropped, delta=0.002, min_values=40)
    assert page_hinkley_fires(dropped, min_values=40)
    assert change_point(dropped) == pytest.approx(300, abs=3)


def test_detectors_are_silent_during_warm_up():
    dropped = [1.0] * 20 + [0.0] * 19
    assert not adwin_fires(dropped, delta=0.002, min_values=40)
    assert not page_hinkley_fires(dropped, min_values=40)


def test_page_hinkley_looks_down_only():
    risen = [float(i % 4 == 0) for i in range(200)] + [1.0] * 100
    assert not page_hinkley_fires(risen, min_values=40)
