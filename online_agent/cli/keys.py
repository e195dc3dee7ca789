"""``online-agent keys``: who may do what. Needs a key with the admin scope."""

from __future__ import annotations

from typing import Annotated

import typer

from online_agent.cli.output import AsJson, age, field, show_json, show_rows

app = typer.Typer(help="API keys: make, list, revoke.", no_args_is_help=True)

_COLUMNS = (
    field("id"),
    field("name"),
    ("scopes", lambda row: " ".join(row.get("scopes", ()))),
    age("created", "created_at"),
    age("revoked", "revoked_at"),
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    scope: Annotated[list[str], typer.Option(help="agent, operator or admin; may be given several times.")],
    as_json: AsJson = False,
) -> None:
    """Make a key. Its secret is printed once, on stdout, and stored nowhere."""
    from online_agent.cli.client import connect

    row = connect().post("/v1/keys", {"name": name, "scopes": scope})
    if as_json:
        show_json(row)
    else:
        typer.echo(f"key {row['id']}; keep this secret, it is not shown again:", err=True)
        typer.echo(row["secret"])


@app.command("list")
def list_keys(as_json: AsJson = False) -> None:
    """List keys, without their secrets."""
    from online_agent.cli.client import connect

    show_rows(connect().get("/v1/keys")["data"], _COLUMNS, as_json=as_json, empty="no keys")


@app.command()
def revoke(key_id: Annotated[str, typer.Argument(help="As `keys list` shows it.")]) -> None:
    """Revoke a key, at once."""
    from online_agent.cli.client import connect

    connect().delete(f"/v1/keys/{key_id}")
    typer.echo(f"key {key_id} is revoked")
