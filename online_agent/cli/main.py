"""The command line: ``online-agent``. Commands import what they need when they run, so that help is instant."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from online_agent.cli import (
    bench,
    changes,
    episodes,
    insight,
    keys,
    processes,
    recipes,
    service,
    tenant,
    training,
    weights,
)
from online_agent.cli.failures import exit_code, one_line
from online_agent.errors import OnlineAgentError

EPILOG = """\
[bold]Examples[/bold]

  online-agent demo [dim]                      # the whole loop, with a report[/dim]

  online-agent up [dim]                        # run the service until Ctrl-C[/dim]

  online-agent episodes run bug_repair [dim]   # one task, and what the agent did[/dim]

  online-agent changes inject bug_repair remove_tool -p tool=list_files

  online-agent weights rollback 12 [dim]       # serve what version 12 held[/dim]

[bold]Exit codes[/bold]

  0 done, 1 failed, 2 wrong usage or input, 3 service not reachable,

  4 key missing or not allowed, 5 not found, 6 conflict or busy

The service is found in <data_dir>/run/api.json, or by ONLINE_AGENT_URL and _KEY.
"""

RUN = "Run it"
TALK = "Talk to it"
PROCESSES = "One process each, for containers"

app = typer.Typer(
    name="online-agent",
    help="A coding agent served over HTTP that keeps learning in production.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"online-agent {version('online-agent')}")
        raise typer.Exit


@app.callback()
def options(
    data_dir: Annotated[
        Path | None, typer.Option(help="Where database, weights, logs and keys live.", show_default="var/online_agent")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file; the environment (ONLINE_AGENT_*) overrides it.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    # Options become environment, so that every process started from here sees the same configuration.
    if data_dir is not None:
        os.environ["ONLINE_AGENT_DATA_DIR"] = str(data_dir)
    if config is not None:
        os.environ["ONLINE_AGENT_CONFIG"] = str(config)


app.command(rich_help_panel=RUN)(service.demo)
app.command(rich_help_panel=RUN)(service.up)
app.command(rich_help_panel=RUN)(service.down)
app.command(rich_help_panel=RUN)(service.doctor)
app.command("seed-policy", rich_help_panel=RUN)(service.seed_policy)
app.command(rich_help_panel=RUN)(recipes.recipes)
app.add_typer(bench.app, name="bench", rich_help_panel=RUN)
app.add_typer(episodes.app, name="episodes", rich_help_panel=TALK)
app.add_typer(weights.app, name="weights", rich_help_panel=TALK)
app.add_typer(changes.app, name="changes", rich_help_panel=TALK)
app.add_typer(training.app, name="training", rich_help_panel=TALK)
app.command(rich_help_panel=TALK)(insight.drift)
app.add_typer(keys.app, name="keys", rich_help_panel=TALK)
app.add_typer(tenant.app, name="tenant", rich_help_panel=TALK)
app.command(rich_help_panel=PROCESSES)(processes.serve)
app.command(rich_help_panel=PROCESSES)(processes.engine)
app.command(rich_help_panel=PROCESSES)(processes.learn)
app.command(rich_help_panel=PROCESSES)(processes.work)


def main() -> None:
    """Run the command line; expected failures are one line on stderr and an exit code of ``EPILOG``."""
    try:
        app()
    except OnlineAgentError as error:
        typer.echo(f"error: {one_line(error)}", err=True)
        sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
