"""``online-agent keys``: who may do what. Needs a key with the admin scope, or for ``--tenant`` the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from online_agent.cli.output import AsJson, age, due, field, show_json, show_rows

app = typer.Typer(help="API keys: make, rotate, list, revoke.", no_args_is_help=True)

_HOUR_S = 3600.0
_DAY_S = 86_400.0
_COLUMNS = (
    field("id"),
    field("name"),
    ("scopes", lambda row: " ".join(row.get("scopes", ()))),
    age("created", "created_at"),
    age("used", "last_used_at"),
    due("expires", "expires_at"),
    ("calls/min", lambda row: row.get("requests_per_minute")),
    ("tokens/day", lambda row: row.get("tokens_per_day")),
    age("revoked", "revoked_at"),
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    scope: Annotated[list[str], typer.Option(help="agent, operator or admin; may be given several times.")],
    expires_in_days: Annotated[float | None, typer.Option(help="After that it opens nothing.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="More are answered with 429.")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(help="Prompt and sampled tokens per UTC day.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Of this tenant, new or not: written to the database, past the service.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. Its secret is printed once, on stdout, and stored nowhere."""

    limits: dict[str, float | None] = {"requests_per_minute": requests_per_minute, "tokens_per_day": tokens_per_day}
    if expires_in_days is not None:
        limits["expires_in_s"] = expires_in_days * _DAY_S
    given = {key: value for key, value in limits.items() if value is not None}
    _show_secret(_made(name, scope, given) if tenant is None else _made_for(tenant, name, scope, given), as_json)


def _made(name: str, scopes: list[str], limits: Mapping[str, float]) -> Mapping[str, Any]:
    from online_agent.cli.client import connect

    answer: Mapping[str, Any] = connect().post("/v1/keys", {"name": name, "scopes": scopes, **limits})
    return answer


def _made_for(tenant: str, name: str, scopes: list[str], limits: Mapping[str, float]) -> Mapping[str, Any]:
    """The service makes keys for the caller's own tenant only: who holds the database needs no leave."""
    from online_agent.config.environment import settings_of_environment
    from online_agent.supervisor.bootstrap import make_key
    from online_agent.types import Scope

    unknown = sorted(set(scopes) - set(Scope))
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(Scope)}", param_hint="--scope")
    made = make_key(settings_of_environment(), tenant, name, frozenset(map(Scope, scopes)), **limits)
    typer.echo(f"written to {made.database}", err=True)
    return {"id": made.id, "tenant_id": tenant, "name": name, "scopes": sorted(scopes), "secret": made.secret}


@app.command()
def rotate(
    key_id: Annotated[str, typer.Argument(help="As `keys list` shows it.")],
    overlap_hours: Annotated[float, typer.Option(help="For how long the secret so far stays good.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret; it is printed once, on stdout."""
    from online_agent.cli.client import connect

    _show_secret(connect().post(f"/v1/keys/{key_id}/rotate", {"overlap_s": overlap_hours * _HOUR_S}), as_json)


def _show_secret(row: Mapping[str, Any], as_json: bool) -> None:
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
