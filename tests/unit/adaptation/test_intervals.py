"""Rates with intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_agent.adaptation.intervals import Rate, success_rate, wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Textbook values of the Wilson score interval at 95 %.
        (8, 10, 0.490162, 0.943318),
        (0, 10, 0.0, 0.277533),
        (10, 10, 0.722467, 1.0),
        (50, 100, 0.403832, 0.596168),
    ],
)
def test_the_wilson_interval_of_known_counts(successes, n, low, high):
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=1e-6)


def test_nothing_seen_is_nothing_known():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert success_rate([]) == Rate(0, 0, None, None, None)


@pytest.mark.parametrize(("successes", "n"), [(-1, 5), (6, 5), (1, 0)])
def test_impossible_counts_are_refused(successes, n):
    with pytest.raises(ValueError, match="must lie in"):
        wilson_interval(successes, n)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate_and_mirrors(counts):
    successes, n = counts
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    assert low < high
    assert wilson_interval(n - successes, n) == pytest.approx((1 - high, 1 - low))


def test_a_rate_counts_its_successes():
    rate = success_rate([True, False, True, True])
    assert (rate.n, rate.num_successes, rate.rate) == (4, 3, 0.75)
    assert (rate.low, rate.high) == wilson_interval(3, 4)
