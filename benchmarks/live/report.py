"""The file of a bench of runs: figures and ratios for machines, and every run behind them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.live.records import Baseline, Results, RunRecord
from benchmarks.live.summary import REFERENCES, Row, RowKey, rows
from benchmarks.report import describe_machine


def build_report(bench: str, plan: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """``runs``: the plan, the untouched policy on each seed's held-out tasks, then one row a run."""
    table = rows(results)
    return {
        "bench": bench,
        "ratios": _ratios(table),
        "figures": {name: value for row in table for name, value in _figures(row).items()},
        "runs": [{"plan": dict(plan)}, *results.to_rows()],
        "machine": describe_machine(**{name: version(name) for name in ("torch", "sglang", "deepspeed")}),
    }


def write_report(report: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def read_report(path: Path) -> tuple[Mapping[str, Any], Results]:
    """The whole report, and its runs as records."""
    report = json.loads(path.read_text())
    results = Results()
    for row in report["runs"]:
        if "baseline" in row:
            results.baselines.append(Baseline(**row["baseline"]))
        elif "run" in row:
            results.runs.append(RunRecord.of_json(row["run"]))
    return report, results


def plan_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    plan: Mapping[str, Any] = report["runs"][0]["plan"]
    return plan


def _figures(row: Row) -> dict[str, float]:
    prefix = slug(row.key)
    figures = {f"{prefix}/{name}": value for name, value in row.figures.items()}
    for name, estimate in (("before", row.before), ("after", row.after), ("beyond_reference", row.against_reference)):
        if estimate is not None:
            figures |= {
                f"{prefix}/success_{name}": round(estimate.mean, 4),
                f"{prefix}/success_{name}_low": round(estimate.low, 4),
                f"{prefix}/success_{name}_high": round(estimate.high, 4),
            }
    if row.reach.median is not None:
        figures[f"{prefix}/episodes_to_threshold"] = row.reach.median
    return figures | {f"{prefix}/runs": row.num_seeds, f"{prefix}/failed_runs": len(row.failures)}


def _ratios(table: list[Row]) -> dict[str, float]:
    """Seconds per update of each recipe, as multiples of those of the reference under the same policy and lag."""
    seconds = {row.key: row.figures.get("seconds_per_update") for row in table}
    ratios = {}
    for key, value in seconds.items():
        reference = seconds.get(replace(key, recipe=REFERENCES[key.policy]))
        if value and reference:
            ratios[f"{slug(key)}/seconds_per_update_vs_reference"] = round(value / reference, 3)
    return ratios


def slug(key: RowKey) -> str:
    parts = [key.recipe, *(["moe"] if key.policy == "moe" else []), *([f"lag{key.lag}"] if key.lag > 1 else [])]
    return "/".join(parts)
