"""``online-agent demo | up | down | doctor | seed-policy``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_STOP_TIMEOUT_S = 120.0


def demo(
    out: Annotated[Path, typer.Option(help="Where the report and the service's data go.")] = Path("var/demo"),
    seed: Annotated[int, typer.Option(help="Draws other tasks and another order.")] = 0,
) -> None:
    """Run the whole loop through the HTTP API: train, change the tools, recover, roll back, report."""
    from online_agent.demo.run import run

    raise typer.Exit(run(out, seed))


def up() -> None:
    """Run api, engine, learner, worker and broker here until Ctrl-C; restart what dies."""
    from online_agent.config.environment import settings_of_environment
    from online_agent.supervisor.up import run

    run(settings_of_environment())


def down(
    timeout_s: Annotated[float, typer.Option(min=1, help="How long to wait for the drain.")] = _STOP_TIMEOUT_S,
) -> None:
    """Drain and stop what `up` runs in this data directory."""
    from online_agent.config.environment import settings_of_environment
    from online_agent.supervisor.down import stop

    data_dir = settings_of_environment().data_dir
    pid = stop(data_dir, timeout_s)
    typer.echo(f"nothing runs in {data_dir}" if pid is None else f"process {pid} has drained and ended")


def doctor() -> None:
    """Say in plain words what is there and what is missing; exit code 1 when something needed is missing."""
    from online_agent.cli.doctor import report
    from online_agent.config.environment import settings_of_environment

    raise typer.Exit(0 if report(settings_of_environment()) else 1)


def seed_policy(
    out: Annotated[Path, typer.Argument(help="A directory that does not exist yet.")],
    moe: Annotated[bool, typer.Option("--moe", help="Grow a mixture of experts from the shipped one instead.")] = False,
    experts: Annotated[int, typer.Option(min=2, max=256, help="With --moe: how many experts a layer has.")] = 8,
    experts_per_token: Annotated[int, typer.Option(min=1, help="With --moe: how many of them a token uses.")] = 2,
) -> None:
    """Build the small model that the demo starts from, from scratch."""
    from online_agent.seed_policy.build import CHECKPOINT_DIR, build_seed_policy
    from online_agent.seed_policy.upcycle import Mixture, upcycle

    if moe:
        upcycle(CHECKPOINT_DIR, out, Mixture(num_experts=experts, experts_per_token=experts_per_token))
    else:
        build_seed_policy(out)
    typer.echo(f"seed policy written to {out}")
