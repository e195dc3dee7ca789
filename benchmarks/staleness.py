"""Success and mismatch of recipes as the engine falls behind: it is given every n-th version only.

The number of updates is a multiple of every lag, so that what a run ends with also serves. Episodes may be as old as
the lag makes them: the bound on staleness grows with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.live.figures import staleness_figure
from benchmarks.live.records import Results, RunSpec
from benchmarks.live.report import plan_of, read_report
from benchmarks.live.run import Plan
from benchmarks.live.summary import REFERENCE, Row, against_lag, rows
from benchmarks.live.tables import counts, figure, interval, percent, separated, table
from online_agent.errors import BadInput
from online_agent.recipes import find_recipe

NAME = "staleness"
# No correction but a mask; the same against an average; a plain clip; the exact and the averaged decoupled reference;
# the endpoints that narrow with staleness.
RECIPES = ("sao", "sao-ewma", "ppo-bypass", "decoupled-exact", "ppo-ewma", "sat-grpo")
LAGS = (1, 4, 8, 16)
NUM_UPDATES = 64
BATCH_EPISODES = 8
NUM_HELDOUT = 96
OPEN_BATCHES = 4


def plan_of_lags(lags: Sequence[int], num_updates: int = NUM_UPDATES) -> Plan:
    """Raises BadInput for a lag after which no version would serve at the end."""
    for lag in lags:
        if lag < 1 or num_updates % lag:
            raise BadInput(f"{num_updates} updates are no multiple of lag {lag}", param="lag")
    return Plan(num_updates * BATCH_EPISODES, BATCH_EPISODES, NUM_HELDOUT, max_open=OPEN_BATCHES * BATCH_EPISODES)


def run_specs(recipes: Sequence[str], lags: Sequence[int], num_seeds: int) -> list[RunSpec]:
    """All of one seed before the next. Raises UnknownName."""
    names = [find_recipe(name).name for name in recipes or RECIPES]
    return [RunSpec(recipe=name, seed=seed, lag=lag) for seed in range(num_seeds) for lag in lags for name in names]


def render(path: Path, docs: Path) -> Path:
    """``docs/staleness.md`` and its picture say what the file holds, and nothing else."""
    report, results = read_report(path)
    all_rows = rows(results)
    staleness_figure(all_rows, docs / "staleness.svg")
    page = docs / "staleness.md"
    page.write_text(_page(report, results, all_rows))
    return page


def _page(report: Mapping[str, Any], results: Results, all_rows: Sequence[Row]) -> str:
    first = min(row.key.lag for row in all_rows)
    header = (
        "recipe", "lag", "success after", f"beyond {REFERENCE}", f"beyond lag {first}", "mean abs(log π − log μ)",
        "masked", "ρ", "effective sample", "staleness", "updates", "swaps", "skipped", "dropped", "resets",
    )  # fmt: skip
    body = [_cells(results, row, first) for row in sorted(all_rows, key=lambda r: (r.key.recipe, r.key.lag))]
    return (
        "\n\n".join(
            [
                "# Staleness: the engine gets every n-th version",
                _how(report),
                "![Success and mismatch as the lag grows](staleness.svg)",
                table(header, body),
                "## What separates and what does not",
                _findings(results, all_rows, first),
            ]
        )
        + "\n"
    )


def _cells(results: Results, row: Row, first: int) -> list[str]:
    return [
        row.key.recipe,
        str(row.key.lag),
        interval(row.after),
        interval(row.against_reference, is_signed=True),
        interval(against_lag(results, row.key, first), is_signed=True),
        figure(row, "mean_abs_logp", 4),
        percent(row, "masked_share"),
        figure(row, "rho", 3),
        percent(row, "effective_sample_share"),
        figure(row, "staleness", 1),
        ", ".join(map(str, row.updates)),
        f"{row.swaps:.0f}",
        str(sum(row.skipped.values())),
        str(sum(row.dropped.values())),
        str(sum(row.resets.values())),
    ]


def _how(report: Mapping[str, Any]) -> str:
    plan, machine = plan_of(report), report["machine"]
    updates = plan["num_episodes"] // plan["batch_episodes"]
    return (
        f"Made by `online-agent bench staleness --render FILE` from the file of one bench; no number here is typed in. "
        f"With `weights.publish_every_versions` the engine serves every n-th version only while the learner goes on: "
        f"episodes are trained up to n versions after the one that sampled them, besides those that pass while they "
        f"run and wait (up to {plan['max_open']} episodes are open). Each run: {updates} updates of "
        f"{plan['batch_episodes']} live episodes, then {plan['num_heldout']} held-out tasks under the last version, "
        f"which serves. Same seed policy, tasks and order for all. Staleness and mismatch are means over the updates "
        f"after the critic's warm-up. Intervals are 95 % of a two-level bootstrap (seeds, then episodes within them); "
        f"*beyond* compares task by task on the same seeds. Machine: {machine['num_cores']} cores "
        f"({machine['processor']}), torch {machine['torch']}, sglang {machine['sglang']}."
    )


def _findings(results: Results, all_rows: Sequence[Row], first: int) -> str:
    lines = []
    for lag in sorted({row.key.lag for row in all_rows}):
        here = [row for row in all_rows if row.key.lag == lag]
        apart = [f"{r.key.recipe} ({interval(r.against_reference, is_signed=True)})" for r in separated(here)]
        lines.append(f"- lag {lag}: apart from {REFERENCE} by more than the interval: {', '.join(apart) or 'none'}.")
    for recipe in dict.fromkeys(row.key.recipe for row in all_rows):
        lines.append(f"- {recipe}: {_along_lags(results, [r for r in all_rows if r.key.recipe == recipe], first)}")
    failures = [f"- failed: {r.key.recipe}, lag {r.key.lag}: {reason}" for r in all_rows for reason in r.failures]
    fallen = [f"- collapsed: {r.key.recipe}, lag {r.key.lag}: {what}" for r in all_rows for what in r.collapses]
    skipped = [f"- skipped: {r.key.recipe}, lag {r.key.lag}: {counts(r.skipped)}" for r in all_rows if r.skipped]
    num_runs = sum(row.num_seeds for row in all_rows)
    closing = (
        f"{num_runs} runs. Where nothing separates, this model, this number of updates and these seeds cannot show a "
        f"difference; that is no proof that there is none. Mismatch is measured on every token, so its trend is firm "
        f"long before that of success is."
    )
    return "\n".join([*lines, *failures, *fallen, *skipped, "", closing])


def _along_lags(results: Results, some: Sequence[Row], first: int) -> str:
    """How mismatch grows from the smallest lag to the largest, and where success differs from that at the smallest."""
    low, high = min(some, key=lambda r: r.key.lag), max(some, key=lambda r: r.key.lag)
    parts = []
    before, after = low.figures.get("mean_abs_logp"), high.figures.get("mean_abs_logp")
    if before and after and low is not high:
        parts.append(f"mean abs(log π − log μ) {before:.4f} at lag {low.key.lag}, {after:.4f} at lag {high.key.lag}")
    moved = {r.key.lag: e for r in some if (e := against_lag(results, r.key, first)) and e.low * e.high > 0}
    texts = [f"lag {lag} ({interval(e, is_signed=True)})" for lag, e in sorted(moved.items())]
    parts.append(f"success differs from lag {first} by more than the interval at: {', '.join(texts) or 'none'}")
    return "; ".join(parts) + "."
