"""What one step says about itself. Every key is present at every step; what was not measured is None."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from online_agent.types import TrainingEpisode

Metric = float | None | list[int]

RATIO_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)

METRIC_KEYS: tuple[str, ...] = (
    "batch/episodes",
    "batch/tokens",
    "batch/non_pad_share",
    "batch/reward_mean",
    "batch/success_share",
    "tokens/total",
    "tokens/kept",
    "tokens/masked_share",
    "tokens/masked_low_share",
    "tokens/masked_high_share",
    "tokens/clipped_low_share",
    "tokens/clipped_high_share",
    "tokens/active_share",
    "mismatch/mean_abs_logp",
    "mismatch/max_abs_logp",
    "mismatch/current_version_tokens",
    "mismatch/current_version_mean_abs_logp",
    "mismatch/current_version_max_abs_logp",
    "ratio/mean",
    *(f"ratio/q{round(q * 100):02d}" for q in RATIO_QUANTILES),
    "ratio/effective_sample_share",
    "ratio/kl",
    "reference/mean_abs_log_ratio",
    "reference/mean_abs_discrepancy",
    "actor/loss",
    "actor/grad_norm",
    "actor/clip_ratio",
    "actor/lr",
    "actor/updates",
    "critic/loss",
    "critic/loss_last",
    "critic/grad_norm",
    "critic/clip_ratio",
    "critic/explained_variance",
    "critic/value_mean",
    "critic/lr",
    "critic/updates",
    "advantage/mean",
    "advantage/std",
    "staleness/mean_versions",
    "staleness/max_versions",
    "staleness/histogram",
    "ewma/active_share",
    "ewma/active_share_mask_only",
    "ewma/probed_tokens",
    "ewma/weight",
    "ewma/beta",
    "ewma/mean_age",
    "ewma/weighted_age",
    "ewma/resets",
    "sat/gate_rate",
    "sat/mean_eps_low",
    "sat/mean_eps_high",
    "sat/min_c",
    "sat/threshold",
    "old_logits/seconds",
    "old_logits/bytes",
    "old_logits/paused_seconds",
    "old_logits/missing_tokens",
    "seconds/total",
    "seconds/critic",
    "seconds/actor",
    "seconds/reference",
)


@dataclass(frozen=True, slots=True)
class ReferenceReset:
    """The EWMA reference forgot its past. ``active_share`` is the last rho measured, None where none was."""

    cause: str
    active_share: float | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """The outcome of one step.

    ``skip_reason`` set: the step was skipped. Weights, moments and learning rates are then bit-identical to before,
    unless ``needs_restore``: one of the updates was applied before another failed, and the caller must restore.
    """

    is_warmup: bool
    metrics: Mapping[str, Metric]
    skip_reason: str | None = None
    needs_restore: bool = False
    resets: tuple[ReferenceReset, ...] = field(default=())

    @property
    def is_applied(self) -> bool:
        return self.skip_reason is None


class MetricSheet:
    """The metrics of one step while it runs."""

    def __init__(self) -> None:
        self._values: dict[str, Metric] = dict.fromkeys(METRIC_KEYS)

    def put(self, **values: Metric) -> None:
        """``area__what`` sets ``area/what``; numbers that are not finite become None (JSON has no name for them)."""
        for name, value in values.items():
            key = name.replace("__", "/", 1)
            assert key in self._values, key
            self._values[key] = None if isinstance(value, float) and not np.isfinite(value) else value

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Wall time inside is added to ``seconds/<part>``."""
        started = time.perf_counter()
        yield
        so_far = self._values[f"seconds/{part}"]
        seconds = time.perf_counter() - started
        self._values[f"seconds/{part}"] = seconds + (so_far if isinstance(so_far, float) else 0.0)

    def done(self) -> dict[str, Metric]:
        return dict(self._values)


def clip_ratio(grad_norm: float, max_norm: float) -> float:
    """The factor the gradient was multiplied by: 1 when its norm was within ``max_norm``."""
    return min(1.0, max_norm / (grad_norm + 1e-6))


def staleness_of(episodes: Sequence[TrainingEpisode], version: int) -> list[int]:
    """Versions between the oldest token of each episode and ``version``; 0 for tokens the version itself sampled."""
    return [max(version - e.oldest_version, 0) for e in episodes if e.action_mask.any()]


def batch_metrics(sheet: MetricSheet, episodes: Sequence[TrainingEpisode], version: int, max_staleness: int) -> None:
    """What can be said of a batch before any network has seen it."""
    stale = staleness_of(episodes, version)
    rewards = np.array([e.reward for e in episodes], np.float64)
    histogram = np.bincount(np.minimum(stale, max_staleness), minlength=max_staleness + 1) if stale else None
    sheet.put(
        batch__episodes=float(len(episodes)),
        batch__tokens=float(sum(len(e.token_ids) for e in episodes)),
        batch__reward_mean=float(rewards.mean()) if len(rewards) else None,
        batch__success_share=float((rewards > 0.5).mean()) if len(rewards) else None,
        tokens__total=float(sum(e.num_action_tokens for e in episodes)),
        staleness__mean_versions=float(np.mean(stale)) if stale else None,
        staleness__max_versions=float(max(stale)) if stale else None,
        staleness__histogram=[0] * (max_staleness + 1) if histogram is None else [int(n) for n in histogram],
    )


_HEADLINE = (
    "tokens/total",
    "tokens/masked_share",
    "mismatch/current_version_max_abs_logp",
    "batch/reward_mean",
    "critic/explained_variance",
    "critic/grad_norm",
    "actor/grad_norm",
    "staleness/mean_versions",
    "ewma/active_share",
    "seconds/total",
)


def headline(metrics: Mapping[str, object]) -> dict[str, object]:
    """The metrics worth a log line, with names that are legal as fields."""
    return {key.replace("/", "_"): metrics[key] for key in _HEADLINE}
