"""The search for the highest rate, on sides whose limit is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.proxies.search import PRECISION, confirmed_rate, highest_rate


@given(limit=st.floats(2, 5000), start=st.floats(1, 5000))
def test_the_rate_found_is_kept_and_within_the_precision_of_the_limit(limit: float, start: float) -> None:
    found = highest_rate(lambda rate: rate <= limit, start)
    assert limit / (1 + PRECISION) <= found <= limit


def test_a_side_that_keeps_nothing_has_no_rate() -> None:
    assert highest_rate(lambda rate: False, 100.0) == 0.0
    assert confirmed_rate(lambda rate: False, 100.0) == 0.0


def test_few_trials_are_enough_when_the_search_starts_near_the_limit() -> None:
    asked: list[float] = []

    def keeps(rate: float) -> bool:
        asked.append(rate)
        return rate <= 310

    # 300 is kept, 450 is not; then 367, 332, 316 are not: 300 to 316 is near enough after one more halving.
    assert highest_rate(keeps, 300.0) == pytest.approx(307.8, rel=0.01)
    assert len(asked) == 6


def test_what_is_kept_for_a_while_is_lowered_until_it_is_kept_for_the_whole_time() -> None:
    assert confirmed_rate(lambda rate: rate <= 90, 100.0) == pytest.approx(100 * 0.93**2)
