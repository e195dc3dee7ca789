"""``online-agent tenant``: what the key's tenant agreed to. Needs a key with the admin scope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from online_agent.cli.output import AsJson, show_json

app = typer.Typer(help="Whether the tenant's episodes train the shared weights.", no_args_is_help=True)

_PATH = "/v1/tenant"


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show what was said, and which versions were trained on the tenant's episodes."""
    from online_agent.cli.client import connect

    _show(connect().get(_PATH), as_json)


@app.command("opt-in")
def opt_in(as_json: AsJson = False) -> None:
    """Let episodes opened from now on train the shared weights."""
    _say(trains=True, as_json=as_json)


@app.command("opt-out")
def opt_out(as_json: AsJson = False) -> None:
    """Bar all episodes that were not trained on, for good; tells the versions trained on the others."""
    _say(trains=False, as_json=as_json)


def _say(*, trains: bool, as_json: bool) -> None:
    from online_agent.cli.client import connect

    _show(connect().put(_PATH, {"trains_shared_weights": trains}), as_json)


def _show(tenant: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(tenant)
        return
    does = "train" if tenant["trains_shared_weights"] else "do not train"
    typer.echo(f"episodes of {tenant['tenant_id']} {does} the shared weights")
    versions = ", ".join(map(str, tenant["versions"])) or "none"
    typer.echo(f"versions trained on its episodes: {versions}")
    if tenant["num_held"]:
        typer.echo(f"{tenant['num_held']} of its episodes are in a step that runs")
