"""Every recipe on the live service, from the same seed policy and on the same tasks.

Each run is a service of its own: live traffic until the updates are done (steps of the critic's warm-up count), then
the held-out tasks of its seed, sampled, under the weights it ends with. Routing replay has nothing to replay in a dense
policy: its recipe runs on a mixture of experts grown from the same seed, beside the same recipe without replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.live.figures import recipes_figure
from benchmarks.live.records import RunSpec
from benchmarks.live.report import plan_of, read_report
from benchmarks.live.run import Plan
from benchmarks.live.statistics import WINDOW
from benchmarks.live.summary import COLLAPSED_BELOW, REFERENCE, REFERENCES, THRESHOLD, Row, rows
from benchmarks.live.tables import NOTHING, counts, figure, interval, percent, reach, separated, table
from online_agent.recipes import RECIPES, find_recipe

NAME = "recipes"
NUM_EPISODES = 480  # 60 updates of 8
BATCH_EPISODES = 8
NUM_HELDOUT = 96
OPEN_BATCHES = 4
SUCCESS_HEADER = ("recipe", "before", "after", "beyond the reference", "live", f"episodes to {THRESHOLD:g}")
TRAINING_HEADER = (
    "recipe",
    "masked",
    "clipped",
    "mean abs(log π − log μ)",
    "staleness",
    "ρ",
    "seconds per update",
    "of a run",
    "resets",
    "skipped",
    "dropped",
)


def plan_of_sizes(num_episodes: int = NUM_EPISODES, batch_episodes: int = BATCH_EPISODES) -> Plan:
    return Plan(num_episodes, batch_episodes, NUM_HELDOUT, max_open=OPEN_BATCHES * batch_episodes)


def run_specs(recipes: Sequence[str], num_seeds: int) -> list[RunSpec]:
    """All recipes of one seed before the next seed. Raises UnknownName."""
    found = [find_recipe(name) for name in recipes or RECIPES]
    specs = []
    for seed in range(num_seeds):
        specs += [RunSpec(recipe=r.name, seed=seed) for r in found if not r.replays_routing]
    for seed in range(num_seeds):
        for recipe in found:
            if recipe.replays_routing:
                without = recipe.name.removesuffix("-r3")
                specs += [RunSpec(recipe=name, seed=seed, policy="moe") for name in (without, recipe.name)]
    return specs


def render(path: Path, docs: Path) -> Path:
    """``docs/recipes.md`` and its picture say what the file holds, and nothing else."""
    report, results = read_report(path)
    all_rows = rows(results)
    recipes_figure(results, all_rows, docs / "recipes.svg")
    page = docs / "recipes.md"
    page.write_text(_page(report, all_rows))
    return page


def _page(report: Mapping[str, Any], all_rows: Sequence[Row]) -> str:
    return (
        "\n\n".join(
            [
                "# Every recipe on the live service",
                _how(report),
                "![Held-out success after training, and live curves](recipes.svg)",
                "## Success",
                table(SUCCESS_HEADER, [_success_cells(row) for row in all_rows]),
                _what_separates(all_rows),
                "## Training",
                table(TRAINING_HEADER, [_training_cells(row) for row in all_rows]),
                _columns(),
                "## What went wrong",
                _what_went_wrong(all_rows),
            ]
        )
        + "\n"
    )


def _how(report: Mapping[str, Any]) -> str:
    plan, machine = plan_of(report), report["machine"]
    episodes, batch = plan["num_episodes"], plan["batch_episodes"]
    return (
        f"Made by `online-agent bench recipes --render FILE` from the file of one bench; no number here is typed in. "
        f"Each run: {episodes} live episodes ({episodes // batch} updates of {batch}), then {plan['num_heldout']} "
        f"held-out tasks sampled at temperature 1 under the weights the run ends with. All recipes of a seed start "
        f"from the same policy, are sent the same tasks in the same order (recipes of groups each task several times) "
        f"and are measured on the same held-out tasks. Up to {plan['max_open']} episodes are under way or wait: "
        f"training is asynchronous, see the column on staleness. Learning rates are the service's defaults for every "
        f"recipe; Adam takes no notice of a loss's scale, so other aggregations need no rate of their own. "
        f"Updates of the critic's warm-up count, and recipes without a critic have none. A skipped step is counted and "
        f"does not end a run. The world does not change during a run. "
        f"Machine: {machine['num_cores']} cores ({machine['processor']}), torch {machine['torch']}, "
        f"sglang {machine['sglang']}, deepspeed {machine['deepspeed']}.\n\n"
        f"Intervals are 95 % of {_RESAMPLING}. With few seeds they are rough; differences smaller than they are wide "
        f"say nothing. *Beyond the reference* compares task by task on the same seeds with {REFERENCE}, for the "
        f"mixture (MoE) with {REFERENCES['moe']}. *Episodes to "
        f"{THRESHOLD:g}*: the end of the first {WINDOW} live episodes in a row with at least that success, median over "
        f"seeds; a seed that never got there counts as later than all others."
    )


_RESAMPLING = "a two-level bootstrap (seeds, then episodes within them; 10,000 draws)"


def _success_cells(row: Row) -> list[str]:
    live = NOTHING if row.live_rate is None else f"{row.live_rate:.2f}"
    beyond = interval(row.against_reference, is_signed=True)
    return [row.key.name, interval(row.before), interval(row.after), beyond, live, reach(row)]


def _training_cells(row: Row) -> list[str]:
    return [
        row.key.name,
        percent(row, "masked_share"),
        percent(row, "clipped_share"),
        figure(row, "mean_abs_logp", 4),
        figure(row, "staleness", 1),
        figure(row, "rho", 3),
        figure(row, "seconds_per_update", 2),
        f"{row.seconds_total:.0f}",
        str(sum(row.resets.values())),
        str(sum(row.skipped.values())),
        str(sum(row.dropped.values())),
    ]


def _what_separates(all_rows: Sequence[Row]) -> str:
    better = [row for row in separated(all_rows) if row.against_reference and row.against_reference.mean > 0]
    worse = [row for row in separated(all_rows) if row not in better]
    learned = [row for row in all_rows if row.gain and row.gain.low > 0]
    lines = [
        f"Of {len(all_rows)} rows {len(learned)} end above the seed policy by more than their interval"
        + (f" ({_names(learned)})." if learned else "."),
        f"Better than the reference by more than the interval: {_names(better)}. Worse: {_names(worse)}. "
        f"For all others this bench cannot tell which is better: {len(all_rows)} comparisons at 95 % are expected to "
        f"show about {0.05 * len(all_rows):.0f} by chance alone.",
    ]
    return "\n\n".join(lines)


def _columns() -> str:
    return (
        "Means over all updates after the critic's warm-up and over seeds; seconds per update are the learner's own "
        "(median of a run), of a run everything with start and evaluation. Staleness in versions. Masked: tokens that "
        "the trust region drops; clipped: those whose gradient its clip stops; ρ: the share that is left. Resets of "
        "the averaged reference, skipped steps and dropped episodes are sums over all seeds."
    )


def _what_went_wrong(all_rows: Sequence[Row]) -> str:
    lines = []
    for row in all_rows:
        parts = [f"failed: {reason}" for reason in row.failures]
        parts += [f"collapsed: {what}" for what in row.collapses]
        if row.non_finite:
            parts.append(f"not finite: {', '.join(row.non_finite)}")
        if row.skipped:
            parts.append(f"skipped steps: {counts(row.skipped)}")
        if row.dropped:
            parts.append(f"dropped episodes: {counts(row.dropped)}")
        if row.failed_episodes:
            parts.append(f"failed episodes: {row.failed_episodes}")
        if parts:
            lines.append(f"- **{row.key.name}**: {'; '.join(parts)}")
    num_runs, num_failed = sum(r.num_seeds for r in all_rows), sum(len(r.failures) for r in all_rows)
    updates = [u for r in all_rows for u in r.updates]
    num_collapsed = sum(len(r.collapses) for r in all_rows)
    head = (
        f"{num_failed} of {num_runs} runs failed; {num_collapsed} collapsed (ended below {COLLAPSED_BELOW:g} of the "
        f"seed policy's success); committed updates per run: {min(updates)} to {max(updates)}."
    )
    return "\n".join([head, "", *(lines or ["No run skipped a step, dropped an episode or met a value not finite."])])


def _names(some: Sequence[Row]) -> str:
    return ", ".join(row.key.name for row in some) or "none"
