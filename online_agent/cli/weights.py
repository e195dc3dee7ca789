"""``online-agent weights``: which versions exist, which one serves, and going back."""

from __future__ import annotations

from typing import Annotated

import typer

from online_agent.cli.output import AsJson, age, field, show_facts, show_rows

app = typer.Typer(help="Weight versions: look, keep, go back.", no_args_is_help=True)

_ROLLBACK_TIMEOUT_S = 180.0
Version = Annotated[int, typer.Argument(min=0, help="The number of the version.")]
_COLUMNS = (
    field("version"),
    field("state"),
    field("origin"),
    field("parent"),
    field("step"),
    ("pinned", lambda row: "yes" if row.get("is_pinned") else ""),
    ("rolled back", lambda row: "yes" if row.get("is_rolled_back") else ""),
    age("created", "created_at"),
    ("why", lambda row: row.get("reason") or ""),
)


@app.command("list")
def list_versions(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20, as_json: AsJson = False
) -> None:
    """List versions, newest first."""
    from online_agent.cli.client import connect

    show_rows(connect().rows("/v1/weights", limit), _COLUMNS, as_json=as_json, empty="no versions")


@app.command()
def show(version: Version, as_json: AsJson = False) -> None:
    """Show one version with its metrics and the checksums of its files."""
    from online_agent.cli.client import connect

    show_facts(connect().get(f"/v1/weights/{version}"), as_json=as_json)


@app.command()
def pin(version: Version) -> None:
    """Keep a version's files whatever the retention says."""
    from online_agent.cli.client import connect

    connect().post(f"/v1/weights/{version}/pin")
    typer.echo(f"version {version} is pinned")


@app.command()
def unpin(version: Version) -> None:
    """Leave a version to the retention again."""
    from online_agent.cli.client import connect

    connect().post(f"/v1/weights/{version}/unpin")
    typer.echo(f"version {version} is no longer pinned")


@app.command()
def rollback(version: Version, as_json: AsJson = False) -> None:
    """Serve the content of an earlier version again, under a new number; the learner goes back with it."""
    from online_agent.cli.client import connect

    moved = connect(_ROLLBACK_TIMEOUT_S).post(f"/v1/weights/{version}/rollback")
    if as_json:
        show_facts(moved, as_json=True)
    elif moved["is_serving"]:
        typer.echo(f"version {moved['version']} serves, with the content of version {version}")
    else:
        typer.echo("asked for, but it does not serve yet: look at `online-agent weights list`")
