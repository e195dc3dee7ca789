"""What the runs of one recipe say together, over seeds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.live.records import PolicyName, Results, RunRecord
from benchmarks.live.statistics import (
    Censored,
    Estimate,
    censored_median,
    episodes_to_threshold,
    paired_difference,
    rate,
    success_estimate,
)

REFERENCE = "sao"
REFERENCES: Mapping[PolicyName, str] = {"dense": REFERENCE, "moe": "sat-gspo"}
"""What the recipes on each policy are compared with; on the mixture, replay with the same recipe without it."""
THRESHOLD = 0.5
COLLAPSED_BELOW = 0.5
"""Of the seed policy's success; a run that ends lower has collapsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKey:
    """One row of a table: all seeds of a recipe under one policy and lag."""

    recipe: str
    policy: PolicyName = "dense"
    lag: int = 1

    @property
    def name(self) -> str:
        return f"{self.recipe} (MoE)" if self.policy == "moe" else self.recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``after`` and what compares with it are None when no seed was measured; ``figures`` are means over seeds."""

    key: RowKey
    num_seeds: int
    failures: tuple[str, ...]
    collapses: tuple[str, ...]
    before: Estimate | None
    after: Estimate | None
    gain: Estimate | None
    against_reference: Estimate | None
    live_rate: float | None
    reach: Censored
    updates: tuple[int, ...]
    skipped: Mapping[str, int]
    dropped: Mapping[str, int]
    resets: Mapping[str, int]
    failed_episodes: int
    swaps: float
    non_finite: tuple[str, ...]
    figures: Mapping[str, float]
    seconds_total: float


def rows(results: Results, threshold: float = THRESHOLD) -> list[Row]:
    """One row for each recipe, policy and lag, in the order in which they first ran."""
    keys = dict.fromkeys(
        RowKey(recipe=r.spec.recipe, policy=r.spec.policy, lag=r.spec.lag) for r in _in_order(results.runs)
    )
    return [summarise(results, key, threshold) for key in keys]


def summarise(results: Results, key: RowKey, threshold: float = THRESHOLD) -> Row:
    runs = runs_of(results, key)
    measured = [r for r in runs if r.heldout]
    live = [r.live for r in runs if r.live]
    return Row(
        key=key,
        num_seeds=len(runs),
        failures=tuple(r.failure for r in runs if r.failure is not None),
        collapses=tuple(_collapse(r, b) for r in measured if has_collapsed(r, b := _seed_outcomes(results, r))),
        before=_estimate([b for r in measured if (b := _seed_outcomes(results, r))]),
        after=_estimate([r.heldout for r in measured]),
        gain=_paired([(r.heldout, b) for r in measured if (b := _seed_outcomes(results, r))]),
        against_reference=_against_reference(results, key, measured),
        live_rate=statistics.fmean(rate(x) for x in live) if live else None,
        reach=censored_median([episodes_to_threshold(r.live, threshold) for r in runs]),
        updates=tuple(r.updates for r in runs),
        skipped=_sum(r.skipped for r in runs),
        dropped=_sum(r.dropped for r in runs),
        resets=_sum(r.resets for r in runs),
        failed_episodes=sum(r.failed_episodes for r in runs),
        swaps=statistics.fmean(r.swaps for r in runs),
        non_finite=tuple(sorted({key for r in runs for key in r.non_finite})),
        figures=_mean_figures(runs),
        seconds_total=statistics.fmean(r.seconds.get("total", 0.0) for r in runs),
    )


def against_lag(results: Results, key: RowKey, lag: int) -> Estimate | None:
    """Success beyond that of the same recipe at another lag, on seeds that both measured; None at that lag itself."""
    if key.lag == lag:
        return None
    other = {r.spec.seed: r.heldout for r in runs_of(results, replace(key, lag=lag)) if r.heldout}
    runs = [r for r in runs_of(results, key) if r.heldout and r.spec.seed in other]
    return _paired([(r.heldout, other[r.spec.seed]) for r in runs])


def has_collapsed(record: RunRecord, seed_outcomes: str) -> bool:
    return bool(seed_outcomes) and rate(record.heldout) < COLLAPSED_BELOW * rate(seed_outcomes)


def _collapse(record: RunRecord, seed_outcomes: str) -> str:
    return (
        f"seed {record.spec.seed} fell from {rate(seed_outcomes):.2f} to {rate(record.heldout):.2f}, its last live "
        f"success was number {record.live.rfind('1') + 1} of {len(record.live)}"
    )


def runs_of(results: Results, key: RowKey) -> list[RunRecord]:
    return [r for r in results.runs if (r.spec.recipe, r.spec.policy, r.spec.lag) == (key.recipe, key.policy, key.lag)]


def _in_order(runs: Sequence[RunRecord]) -> list[RunRecord]:
    return sorted(runs, key=lambda r: (r.spec.policy, r.spec.lag))


def _seed_outcomes(results: Results, record: RunRecord) -> str:
    baseline = results.baseline(record.spec.policy, record.spec.seed)
    return baseline.heldout if baseline else ""


def _against_reference(results: Results, key: RowKey, measured: Sequence[RunRecord]) -> Estimate | None:
    """Success beyond that of the reference under the same policy and lag, on the seeds that both measured."""
    reference = replace(key, recipe=REFERENCES[key.policy])
    if key == reference:
        return None
    by_seed = {r.spec.seed: r.heldout for r in runs_of(results, reference) if r.heldout}
    return _paired([(r.heldout, by_seed[r.spec.seed]) for r in measured if r.spec.seed in by_seed])


def _estimate(outcomes: Sequence[str]) -> Estimate | None:
    return success_estimate(outcomes) if outcomes else None


def _paired(pairs: Sequence[tuple[str, str]]) -> Estimate | None:
    return paired_difference(pairs) if pairs else None


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _mean_figures(runs: Sequence[RunRecord]) -> dict[str, float]:
    names = dict.fromkeys(name for r in runs for name in r.figures)
    means = {}
    for name in names:
        values = [value for r in runs if (value := r.figures.get(name)) is not None]
        if values:
            means[name] = statistics.fmean(values)
    return means
