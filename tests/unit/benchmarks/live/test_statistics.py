"""Intervals, thresholds and figures of runs, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.live.statistics import (
    censored_median,
    episodes_to_threshold,
    non_finite_metrics,
    paired_difference,
    running_rate,
    step_figures,
    success_estimate,
)

OUTCOMES = st.text("01", min_size=1, max_size=60)


def test_the_threshold_is_reached_at_the_end_of_the_first_full_window() -> None:
    assert episodes_to_threshold("0001101", 0.5, window=4) == 5


def test_a_window_right_at_the_start_counts_once_it_is_full() -> None:
    assert episodes_to_threshold("1100", 0.5, window=4) == 4


def test_a_good_start_shorter_than_the_window_does_not_count() -> None:
    assert episodes_to_threshold("111", 0.5, window=4) is None


def test_what_is_never_reached_is_none() -> None:
    assert episodes_to_threshold("0100010001", 0.5, window=4) is None


@given(OUTCOMES, st.integers(1, 8), st.sampled_from([0.25, 0.5, 1.0]))
def test_the_threshold_agrees_with_looking_at_every_window(live: str, window: int, threshold: float) -> None:
    ends = [e for e in range(window, len(live) + 1) if live[e - window : e].count("1") >= threshold * window]
    assert episodes_to_threshold(live, threshold, window) == (ends[0] if ends else None)


@given(OUTCOMES, st.integers(1, 8))
def test_the_running_rate_is_the_mean_of_each_full_window(live: str, window: int) -> None:
    expected = [live[e - window : e].count("1") / window for e in range(window, len(live) + 1)]
    assert running_rate(live, window) == pytest.approx(expected)


def test_a_seed_that_never_got_there_counts_as_later_than_the_others() -> None:
    assert censored_median([100, None, 200]).median == 200
    assert censored_median([100, None, 200]).num_reached == 2


def test_when_most_seeds_never_got_there_there_is_no_median() -> None:
    assert censored_median([100, None, None]).median is None
    assert censored_median([100, None]).median is None


def test_success_is_the_mean_over_seeds_inside_its_interval() -> None:
    estimate = success_estimate(["1" * 30 + "0" * 10, "1" * 20 + "0" * 20])
    assert estimate.mean == pytest.approx(0.625)
    assert 0.35 < estimate.low < 0.625 < estimate.high < 0.9


def test_seeds_that_differ_widen_the_interval_beyond_that_of_their_episodes() -> None:
    alike = success_estimate(["10" * 50] * 3)
    apart = success_estimate(["1" * 90 + "0" * 10, "10" * 50, "1" * 10 + "0" * 90])
    assert alike.mean == apart.mean == 0.5
    assert apart.high - apart.low > 2 * (alike.high - alike.low)


def test_one_seed_has_the_interval_of_a_proportion() -> None:
    estimate = success_estimate(["1" * 50 + "0" * 50])
    assert (estimate.low, estimate.high) == (pytest.approx(0.40, abs=0.015), pytest.approx(0.60, abs=0.015))


def test_the_same_outcomes_differ_by_nothing() -> None:
    difference = paired_difference([("0110" * 10, "0110" * 10)])
    assert (difference.mean, difference.low, difference.high) == (0.0, 0.0, 0.0)


def test_pairs_are_compared_task_by_task() -> None:
    better = paired_difference([("1" * 40, "10" * 20)])
    assert better.mean == 0.5
    assert 0.3 < better.low < 0.5 < better.high < 0.7


WARMUP = {"actor/updates": 0.0, "seconds/total": 9.0, "tokens/masked_share": 0.9}


def step(**more: float | None) -> dict[str, float | None]:
    values = {
        "actor/updates": 1.0,
        "actor/loss": 0.1,
        "actor/grad_norm": 0.2,
        "tokens/total": 100.0,
        "tokens/kept": 80.0,
        "tokens/masked_share": 0.2,
        "mismatch/mean_abs_logp": 0.01,
        "seconds/total": 1.0,
    }
    return values | {name.replace("__", "/"): value for name, value in more.items()}


def test_figures_leave_out_the_warm_up_and_take_the_median_of_seconds() -> None:
    figures = step_figures(
        [WARMUP, step(), step(seconds__total=2.0), step(seconds__total=30.0, tokens__masked_share=0.5)]
    )
    assert figures["seconds_per_update"] == 2.0
    assert figures["masked_share"] == pytest.approx(0.3)
    assert figures["kept_share"] == pytest.approx(0.8)
    assert figures["explained_variance"] is None


def test_figures_of_no_step_at_all_are_none() -> None:
    assert set(step_figures([]).values()) == {None}


def test_a_metric_that_was_not_finite_is_named() -> None:
    assert non_finite_metrics([step(), step(actor__loss=None), step(actor__grad_norm=float("nan"))]) == (
        "actor/grad_norm",
        "actor/loss",
    )


def test_a_warm_up_step_needs_no_actor_metrics() -> None:
    assert non_finite_metrics([WARMUP, step()]) == ()
