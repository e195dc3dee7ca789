"""Which reward is far from those before it."""

from __future__ import annotations

import numpy as np
import pytest

from online_agent.store.outliers import OutlierRule

rule = OutlierRule()


def test_the_modified_z_score_by_hand() -> None:
    """Median 0.5, MAD 0.1: 3.5 is reached at |x - 0.5| = 3.5 * 0.1 / 0.6745 = 0.5189."""
    history = [0.4] * 35 + [0.5] * 35 + [0.6] * 35
    deviations = sorted(abs(value - 0.5) for value in history)
    assert deviations[52] == pytest.approx(0.1)
    assert not rule.is_outlier(0.5 - 0.51, history)
    assert rule.is_outlier(0.5 - 0.53, history)
    assert rule.is_outlier(0.5 + 0.53, history)


def test_what_happened_before_is_usual_on_its_side_only() -> None:
    history = [0.4] * 35 + [0.5] * 35 + [0.6] * 35 + [-1.0]
    assert not rule.is_outlier(-1.0, history)
    assert not rule.is_outlier(-0.9, history)
    assert rule.is_outlier(1.1, history)


@pytest.mark.parametrize("rare", [1.0, -1.0, 0.5])
def test_where_most_answers_are_the_same_the_rarer_one_is_no_outlier(rare: float) -> None:
    assert not rule.is_outlier(rare, [0.0] * 200)
    assert not rule.is_outlier(rare, [0.0] * 101 + [0.2] * 99)


def test_little_history_says_nothing_and_old_history_is_not_looked_at() -> None:
    usual = [0.8, 0.9, 1.0] * 67
    assert not rule.is_outlier(-1.0, usual[:99])
    assert rule.is_outlier(-1.0, usual[:100])
    assert rule.is_outlier(-1.0, [-1.0] * 100 + usual)


@pytest.mark.parametrize("improved", [0.9, -0.9])
def test_a_source_that_changes_for_good_is_held_back_once(improved: float) -> None:
    history = np.random.default_rng(0).normal(0.1, 0.02, 200).tolist()
    held = 0
    for _ in range(50):
        held += rule.is_outlier(improved, history)
        history.append(improved)
    assert held == 1


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.05, 0.5, 0.99])
def test_successes_and_failures_all_count_however_rare_one_of_them_is(rate: float) -> None:
    """Also behind a start of nothing but failures, as when the quickest answers are the wrong ones."""
    history = [0.0] * 150
    for reward in (np.random.default_rng(1).random(600) < rate).astype(float).tolist():
        assert not rule.is_outlier(reward, history)
        history.append(reward)


def test_clean_rewards_are_rarely_held_back() -> None:
    """Of 600 normal rewards with mean 0.6 and deviation 0.1, under 1 %; one at -1 is."""
    rng = np.random.default_rng(3)
    history: list[float] = []
    num_held = 0
    for reward in np.clip(rng.normal(0.6, 0.1, 600), -1, 1).tolist():
        num_held += rule.is_outlier(reward, history)
        history.append(reward)
    assert num_held < 6
    assert rule.is_outlier(-1.0, history)
