"""``online-agent bench``: measurements on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from benchmarks.live.records import RunSpec
    from benchmarks.live.run import Plan
    from benchmarks.report import Report

app = typer.Typer(help="Measure parts of the system on this machine.", no_args_is_help=True)

JsonFile = Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Also write the report to this file.")]


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


@app.command()
def references(json: JsonFile = None) -> None:
    """One step by its reference: bypass, EWMA and the three exact routes, the engine of the last one real."""
    from benchmarks.references import measure

    _show(measure(progress=lambda line: typer.echo(line, err=True)), json)


@app.command()
def ingest(
    json: JsonFile = None,
    episodes: Annotated[int, typer.Option(min=1, help="Of 8 turns with 2,000 tokens each, a run.")] = 400,
    runs: Annotated[int, typer.Option(min=1)] = 3,
    postgres: Annotated[str | None, typer.Option(help="URL of a server; without it one is started.")] = None,
    directory: Annotated[Path | None, typer.Option(help="On the disk to measure.")] = None,
) -> None:
    """Durable episodes per second on SQLite and PostgreSQL, bytes per token, and what a kill -9 loses."""
    from benchmarks.ingest import measure

    _show(measure(episodes, runs, postgres, directory, progress=lambda line: typer.echo(line, err=True)), json)


@app.command()
def gateway(
    json: JsonFile = None,
    litellm: Annotated[
        Path | None,
        typer.Option(exists=True, envvar="ONLINE_AGENT_BENCH_LITELLM", help="Python of an environment with LiteLLM."),
    ] = None,
    reef: Annotated[
        Path | None,
        typer.Option(exists=True, envvar="ONLINE_AGENT_BENCH_REEF", help="Python of an environment with Reef."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1)] = 5,
    quick: Annotated[bool, typer.Option(help="Shorter trials: a quarter of an hour.")] = False,
) -> None:
    """Time added to an engine's reply and the highest rate kept, the turns durable, against other gateways."""
    from benchmarks.gateway import QUICK, Lengths, measure

    lengths = QUICK if quick else Lengths()
    _show(measure(runs, lengths, litellm, reef, progress=lambda line: typer.echo(line, err=True)), json)


def _show(report: Report, json: Path | None) -> None:
    for name, value in (report.figures | report.ratios).items():
        typer.echo(f"{name:32} {value:.6g}")
    if json is not None:
        report.write(json)


Resume = Annotated[bool, typer.Option("--resume", help="Go on where an earlier bench with the same file ended.")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="With --resume: run those that failed once more.")]
Render = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Measure nothing; make the page from the file of an earlier bench."),
]
Docs = Annotated[Path, typer.Option(file_okay=False, help="With --render: where the page and its picture go.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each recipe: a seed draws its own tasks.")]


@app.command()
def recipes(
    episodes: Annotated[int, typer.Option(min=1, help="Live episodes a run.")] = 480,
    seeds: Seeds = 3,
    json: JsonFile = None,
    recipes: Annotated[str, typer.Option(help="Names, comma-separated; all by default.")] = "",
    batch_episodes: Annotated[int, typer.Option(min=1, help="Episodes an update.")] = 8,
    resume: Resume = False,
    retry_failed: RetryFailed = False,
    render: Render = None,
    docs: Docs = Path("docs"),
) -> None:
    """Every recipe on the live service, same policy and tasks. Each run is on disk beside the file when it ends."""
    from benchmarks.recipes import NAME, plan_of_sizes, run_specs
    from benchmarks.recipes import render as render_page

    if render is not None:
        typer.echo(render_page(render, docs))
        return
    plan, specs = plan_of_sizes(episodes, batch_episodes), run_specs(_names(recipes), seeds)
    _run_live(NAME, specs, plan, json, is_resumed=resume, repeats_failed=retry_failed)


@app.command()
def staleness(
    lag: Annotated[str, typer.Option(help="Comma-separated; the engine gets every so many-th version.")] = "1,4,8,16",
    seeds: Seeds = 1,
    json: JsonFile = None,
    recipes: Annotated[str, typer.Option(help="Names, comma-separated; six by default.")] = "",
    updates: Annotated[int, typer.Option(min=1, help="Updates of each run; a multiple of every lag.")] = 64,
    resume: Resume = False,
    retry_failed: RetryFailed = False,
    render: Render = None,
    docs: Docs = Path("docs"),
) -> None:
    """Success and mismatch of recipes as the engine falls behind the learner."""
    from benchmarks.staleness import NAME, plan_of_lags, run_specs
    from benchmarks.staleness import render as render_page

    if render is not None:
        typer.echo(render_page(render, docs))
        return
    try:
        lags = [int(text) for text in _names(lag)]
    except ValueError as error:
        raise typer.BadParameter(f"{lag!r} is not a list of numbers", param_hint="--lag") from error
    plan, specs = plan_of_lags(lags, updates), run_specs(_names(recipes), lags, seeds)
    _run_live(NAME, specs, plan, json, is_resumed=resume, repeats_failed=retry_failed)


def _run_live(
    bench: str, specs: Sequence[RunSpec], plan: Plan, json: Path | None, *, is_resumed: bool, repeats_failed: bool
) -> None:
    from rich.console import Console

    from benchmarks.live.session import run_session

    path = _needed(json)
    run_session(bench, specs, plan, path, is_resumed=is_resumed, repeats_failed=repeats_failed, console=Console())


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _needed(json: Path | None) -> Path:
    if json is None:
        raise typer.BadParameter("say where the file goes", param_hint="--json")
    return json
