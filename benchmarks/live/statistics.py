"""Numbers out of runs: intervals, episodes to a threshold, and what the steps of one run say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WINDOW = 64
NUM_RESAMPLES = 10_000
_BOOTSTRAP_SEED = 0

# Figures of a run that are means over its updates after the critic's warm-up.
MEANS = {
    "masked_share": "tokens/masked_share",
    "masked_low_share": "tokens/masked_low_share",
    "masked_high_share": "tokens/masked_high_share",
    "mean_abs_logp": "mismatch/mean_abs_logp",
    "staleness": "staleness/mean_versions",
    "rho": "tokens/active_share",
    "clipped_low_share": "tokens/clipped_low_share",
    "clipped_high_share": "tokens/clipped_high_share",
    "ewma_active_share": "ewma/active_share",
    "ewma_mean_age": "ewma/mean_age",
    "sat_gate_rate": "sat/gate_rate",
    "old_logits_seconds": "old_logits/seconds",
    "reference_mean_abs_log_ratio": "reference/mean_abs_log_ratio",
    "effective_sample_share": "ratio/effective_sample_share",
    "explained_variance": "critic/explained_variance",
    "actor_grad_norm": "actor/grad_norm",
    "reward_mean": "batch/reward_mean",
}
MUST_BE_FINITE = ("actor/loss", "actor/grad_norm", "tokens/masked_share", "mismatch/mean_abs_logp")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with the interval that holds it in 95 of 100 cases."""

    mean: float
    low: float
    high: float


def rate(outcomes: str) -> float:
    """Share of successes. Raises ZeroDivisionError without outcomes."""
    return outcomes.count("1") / len(outcomes)


def success_estimate(outcomes_by_seed: Sequence[str]) -> Estimate:
    """Mean success over seeds; seeds are drawn again with replacement, and within each its episodes."""
    draws = _redraw([np.frombuffer(o.encode(), np.uint8) - ord("0") for o in outcomes_by_seed])
    return _interval(statistics.fmean(rate(o) for o in outcomes_by_seed), draws)


def paired_difference(pairs: Sequence[tuple[str, str]]) -> Estimate:
    """Mean over seeds of the success of the first minus that of the second, task by task on the same tasks."""
    differences = [
        np.frombuffer(a.encode(), np.uint8).astype(float) - np.frombuffer(b.encode(), np.uint8) for a, b in pairs
    ]
    return _interval(statistics.fmean(float(d.mean()) for d in differences), _redraw(differences))


def _redraw(samples: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Means of two-level resamples: which seeds, then which of their episodes.

    Drawing n episodes with replacement is one multinomial draw over the few values that they have.
    """
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    shape = (NUM_RESAMPLES, len(samples))
    by_seed = []
    for sample in samples:
        values, counts = np.unique(sample, return_counts=True)
        by_seed.append(rng.multinomial(len(sample), counts / len(sample), shape) @ values / len(sample))
    chosen = rng.integers(0, len(samples), shape)
    means: np.ndarray[Any, Any] = np.take_along_axis(np.stack(by_seed, -1), chosen[..., None], -1)[..., 0].mean(-1)
    return means


def _interval(mean: float, draws: np.ndarray[Any, Any]) -> Estimate:
    low, high = np.quantile(draws, (0.025, 0.975))
    return Estimate(mean, float(low), float(high))


def episodes_to_threshold(live: str, threshold: float, window: int = WINDOW) -> int | None:
    """Episodes until a full window of them has succeeded at the threshold or above; None when none ever did."""
    running = live[:window].count("1")
    for end in range(window, len(live) + 1):
        if end > window:
            running += (live[end - 1] == "1") - (live[end - 1 - window] == "1")
        if running >= threshold * window:
            return end
    return None


def running_rate(live: str, window: int = WINDOW) -> list[float]:
    """Mean of the last ``window`` outcomes, from the first full window on."""
    counts = np.cumsum([0, *(c == "1" for c in live)])
    return [float(x) for x in (counts[window:] - counts[:-window]) / window] if len(live) >= window else []


@dataclass(frozen=True, slots=True)
class Censored:
    """Median over seeds, counting a seed that never got there as later than all others: None when the median is one."""

    median: float | None
    num_reached: int
    num_seeds: int


def censored_median(values: Sequence[int | None]) -> Censored:
    reached = [v for v in values if v is not None]
    median = statistics.median([math.inf if v is None else v for v in values])
    return Censored(median if math.isfinite(median) else None, len(reached), len(values))


def is_warmup(metrics: Mapping[str, Any]) -> bool:
    return not metrics.get("actor/updates")


def step_figures(metrics_by_step: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The figures of one run from the metrics of its committed steps; None for what no step measured."""
    after_warmup = [m for m in metrics_by_step if not is_warmup(m)]
    figures: dict[str, float | None] = {name: _mean(after_warmup, key) for name, key in MEANS.items()}
    total, kept = _mean(after_warmup, "tokens/total"), _mean(after_warmup, "tokens/kept")
    figures["kept_share"] = kept / total if kept is not None and total else None
    low, high = figures["clipped_low_share"], figures["clipped_high_share"]
    figures["clipped_share"] = None if low is None or high is None else low + high
    seconds = [m["seconds/total"] for m in after_warmup if m.get("seconds/total") is not None]
    figures["seconds_per_update"] = statistics.median(seconds) if seconds else None
    stalest = [m["staleness/max_versions"] for m in after_warmup if m.get("staleness/max_versions") is not None]
    figures["staleness_max"] = max(stalest, default=None)
    return figures


def non_finite_metrics(metrics_by_step: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Metrics that an actor update has to have and did not, or not as a finite number (JSON has no name for those)."""
    bad = {
        key
        for metrics in metrics_by_step
        if not is_warmup(metrics)
        for key in MUST_BE_FINITE
        if metrics.get(key) is None or not math.isfinite(metrics[key])
    }
    return tuple(sorted(bad))


def _mean(metrics_by_step: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [m[key] for m in metrics_by_step if m.get(key) is not None]
    return statistics.fmean(values) if values else None
