"""``online-agent drift``: what the detectors see."""

from __future__ import annotations

import typer

from online_agent.cli.output import AsJson, age, field, show_json, show_rows

_EVENTS = (field("id"), field("kind"), field("version"), field("data"), age("when", "at"))


def drift(as_json: AsJson = False) -> None:
    """Show detectors, alarms and resets."""
    from online_agent.cli.client import connect

    facts = connect().get("/v1/drift")
    if as_json:
        show_json(facts)
        return
    show_rows(
        facts["detectors"],
        (field("name"), ("state", lambda row: row["state"].get("summary", row["state"]))),
        as_json=False,
        empty="no detector has run yet",
    )
    for title in ("alarms", "resets"):
        typer.secho(f"\n{title}", bold=True)
        show_rows(facts[title], _EVENTS, as_json=False, empty="none")
