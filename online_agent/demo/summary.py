"""The demo's last screen: what was measured, what was to be shown, and where the report lies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from online_agent.demo.report import PHASES


def print_summary(console: Console, report: Mapping[str, Any], directory: Path) -> None:
    table = Table(title="success on held-out tasks", title_justify="left")
    for column in ("", "sampled", "95 % interval", "n", "greedy", "95 % interval", "n"):
        table.add_column(column)
    for phase in PHASES:
        table.add_row(
            phase.replace("_", " "), *_cells(report, f"success_{phase}"), *_cells(report, f"success_{phase}_greedy")
        )
    console.print(table)
    console.print(
        f"{report['episodes_total']} episodes, {report['versions_published']} versions, {report['swaps']} hot swaps "
        f"(median {_milliseconds(report['swap_seconds_p50'])}, longest {_milliseconds(report['swap_seconds_max'])}), "
        f"{report['requests_during_swaps']} requests under way during swaps, {report['requests_failed']} failed"
    )
    for gate in report["gates"]:
        console.print(f"[green]✓[/] {gate['gate']}" if gate["met"] else f"[red]✗ {gate['gate']}[/]", highlight=False)
    console.print(f"report: {directory / 'report.html'} and {directory / 'report.json'}", highlight=False)


def _cells(report: Mapping[str, Any], key: str) -> tuple[str, str, str]:
    low, high = report[f"{key}_interval_95"]
    return f"{report[key]:.3f}", f"{low:.3f} to {high:.3f}", str(report[f"{key}_n"])


def _milliseconds(seconds: float | None) -> str:
    return "none" if seconds is None else f"{1000 * seconds:.0f} ms"
