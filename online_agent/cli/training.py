"""``online-agent training``: what the learner does, and holding it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from online_agent.cli.output import AsJson, age, field, show_facts, show_rows

app = typer.Typer(help="The learner: state, steps, pause.", no_args_is_help=True)


_SHOWN_METRICS = {
    "success": "batch/success_share",
    "staleness": "staleness/mean_versions",
    "seconds": "seconds/total",
}


def _metric(name: str) -> Any:
    return lambda row: _short(row.get("metrics", {}).get(name))


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


_COLUMNS = (
    field("step"),
    field("status"),
    field("version"),
    ("episodes", lambda row: row.get("num_episodes")),
    *((title, _metric(name)) for title, name in _SHOWN_METRICS.items()),
    age("ended", "ended_at"),
    ("why", lambda row: row.get("reason") or ""),
)


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show what the learner does, its queue and what was dropped."""
    from online_agent.cli.client import connect

    facts = connect().get("/v1/training")
    if not as_json:
        facts = {name: value for name, value in facts.items() if name != "steps"}
    show_facts(facts, as_json=as_json)


@app.command()
def steps(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20, as_json: AsJson = False
) -> None:
    """List steps, newest first; a skipped one says why."""
    from online_agent.cli.client import connect

    show_rows(connect().rows("/v1/training/steps", limit), _COLUMNS, as_json=as_json, empty="no steps")


@app.command()
def pause() -> None:
    """Let the learner finish its step and then wait."""
    from online_agent.cli.client import connect

    connect().post("/v1/training/pause")
    typer.echo("training is paused")


@app.command()
def resume() -> None:
    """Let the learner go on."""
    from online_agent.cli.client import connect

    connect().post("/v1/training/resume")
    typer.echo("training goes on")
