"""``online-agent bench``: measurements on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from benchmarks.report import Report

app = typer.Typer(help="Measure parts of the system on this machine.", no_args_is_help=True)

JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the report to this file.")]


@app.callback()
def benches() -> None:
    """Measure parts of the system on this machine."""


@app.command()
def gae(json: JsonFile = None) -> None:
    """Vectorised advantages against a loop over token positions, 64 episodes of 2,048 tokens."""
    from benchmarks.gae import measure

    _show(measure(), json)


@app.command()
def learner(json: JsonFile = None) -> None:
    """One full update of the learner against a plain torch loop and TRL's PPO, two sizes of model."""
    from benchmarks.learner import has_trl, measure

    if not has_trl():
        typer.echo("vs_trl is left out: pip install --no-deps -r deploy/requirements/bench.lock", err=True)
    _show(measure(), json)


def _show(report: Report, json: Path | None) -> None:
    for name, value in (report.figures | report.ratios).items():
        typer.echo(f"{name:32} {value:.6g}")
    if json is not None:
        report.write(json)
