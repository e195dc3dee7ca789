"""``online-agent changes``: alter the tools or the API under the agent while it serves."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from online_agent.cli.output import AsJson, age, field, show_json, show_rows

app = typer.Typer(help="Alter tools and API under the agent.", no_args_is_help=True)

_COLUMNS = (
    field("id"),
    field("state"),
    field("env"),
    field("kind"),
    field("params"),
    field("visibility"),
    ("from episode", lambda row: row.get("starts_at_episode")),
    ("to episode", lambda row: row.get("ends_at_episode")),
    age("created", "created_at"),
)


@app.command("list")
def list_changes(
    env: Annotated[str | None, typer.Option(help="Only changes of this environment.")] = None, as_json: AsJson = False
) -> None:
    """List changes, active and ended."""
    from online_agent.cli.client import connect

    rows = connect().get("/v1/changes")["data"]
    show_rows([row for row in rows if env in (None, row["env"])], _COLUMNS, as_json=as_json, empty="no changes")


@app.command()
def kinds(as_json: AsJson = False) -> None:
    """List the kinds of change with their parameters."""
    from online_agent.cli.client import connect

    known = connect().get("/v1/envs")["change_kinds"]
    if as_json:
        show_json(known)
        return
    show_rows(
        [{"kind": kind, "schema": schema} for kind, schema in sorted(known.items())],
        (
            field("kind"),
            ("parameters", lambda row: _parameters(row["schema"])),
            ("what", lambda row: _about(row["schema"])),
        ),
        as_json=False,
    )


@app.command()
def inject(
    env: Annotated[str, typer.Argument(help="The environment, for example bug_repair.")],
    kind: Annotated[str, typer.Argument(help="As `changes kinds` lists it.")],
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter; JSON or plain text.")
    ] = None,
    silent: Annotated[bool, typer.Option("--silent", help="Prompt and schemas keep the old state.")] = False,
    after: Annotated[int | None, typer.Option(min=1, metavar="N", help="Start after N more episodes.")] = None,
    ends_after: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N episodes.")] = None,
    mid_episode: Annotated[bool, typer.Option("--mid-episode", help="Also inside episodes under way.")] = False,
    as_json: AsJson = False,
) -> None:
    """Inject a change, now or after some episodes."""
    from online_agent.cli.client import connect

    body: dict[str, Any] = {
        "env": env,
        "kind": kind,
        "params": parse_params(param or []),
        "visibility": "silent" if silent else "documented",
        "starts": "now" if after is None else {"after_episodes": after},
        "mid_episode": mid_episode,
    }
    if ends_after is not None:
        body["ends"] = {"after_episodes": ends_after}
    row = connect().post("/v1/changes", body)
    if as_json:
        show_json(row)
    else:
        typer.echo(f"change {row['id']} is {row['state']}")


@app.command()
def revert(change_id: Annotated[str, typer.Argument(help="As `changes list` shows it.")]) -> None:
    """End a change."""
    from online_agent.cli.client import connect

    connect().delete(f"/v1/changes/{change_id}")
    typer.echo(f"change {change_id} has ended")


def parse_params(pairs: list[str]) -> dict[str, Any]:
    """``["tool=edit_file", "base=1"]`` → ``{"tool": "edit_file", "base": 1}``; values that are not JSON are text."""
    params: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--param")
        try:
            params[name] = json.loads(text)
        except ValueError:
            params[name] = text
    return params


def _parameters(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    return " ".join(name if name in required else f"[{name}]" for name in schema.get("properties", {}))


def _about(schema: dict[str, Any]) -> str:
    return str(schema.get("description", "")).split("\n\n")[0]
