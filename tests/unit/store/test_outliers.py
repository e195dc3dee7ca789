"""Which reward is far from those before it."""

from __future__ import annotations

import numpy as np
import pytest

from online_agent.store.outliers import OutlierRule

rule = OutlierRule()


def test_the_modified_z_score_by_hand() -> None:
    """Median 0.5, MAD 0.1: 3.5 is reached at |x - 0.5| = 3.5 * 0.1 / 0.6745 = 0.5189."""
    history = [0.4] * 10 + [0.5] * 10 + [0.6] * 10
    deviations = sorted(abs(value - 0.5) for value in history)
    assert (deviations[14] + deviations[15]) / 2 == pytest.approx(0.1)
    assert not rule.is_outlier(0.5 - 0.51, history)
    assert rule.is_outlier(0.5 - 0.53, history)


def test_where_the_mad_is_0_the_mean_deviation_stands_in() -> None:
    """59 of 60 gave 1: the mean deviation is 2/60, and -1 lies 2 away, but as far as one before it: 1/60 > 1 %."""
    assert not rule.is_outlier(-1.0, [1.0] * 59 + [-1.0])
    assert rule.is_outlier(-1.0, [1.0] * 59 + [0.9])
    assert rule.is_outlier(0.0, [1.0] * 60)


def test_the_rarer_of_two_answers_is_no_outlier() -> None:
    assert not rule.is_outlier(0.0, [1.0] * 90 + [0.0] * 10)


def test_little_history_says_nothing_and_old_history_is_not_looked_at() -> None:
    assert not rule.is_outlier(-1.0, [1.0] * 29)
    assert rule.is_outlier(-1.0, [1.0] * 30)
    assert rule.is_outlier(-1.0, [-1.0] * 100 + [1.0] * 200)


def test_clean_rewards_are_rarely_held_back() -> None:
    """Of 600 normal rewards with mean 0.6 and deviation 0.1, under 1 %; every one at -1 is."""
    rng = np.random.default_rng(3)
    history: list[float] = []
    num_held = 0
    for reward in np.clip(rng.normal(0.6, 0.1, 600), -1, 1).tolist():
        if rule.is_outlier(reward, history):
            num_held += 1
        else:
            history.append(reward)
    assert num_held < 6
    assert rule.is_outlier(-1.0, history)
