"""``online-agent up``: prepare what is missing, run everything, say where it answers."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from online_agent.config.settings import Settings
from online_agent.supervisor.bootstrap import prepare
from online_agent.supervisor.lock import DataDirLock
from online_agent.supervisor.plan import api_file, plan_deployment, write_api_file
from online_agent.supervisor.status import StatusDisplay
from online_agent.supervisor.supervisor import Supervisor
from online_agent.telemetry.logging import setup_logging


def run(settings: Settings, console: Console | None = None) -> None:
    """Return after a signal has drained everything.

    Raises Conflict when the data directory is already run, ConfigError, StartFailed.
    """
    console = console or Console()
    with DataDirLock(settings.data_dir):
        api_file(settings.data_dir).unlink(missing_ok=True)
        setup_logging("supervisor", settings)
        with console.status("preparing database, weights and keys"):
            key_file = prepare(settings)
        deployment = plan_deployment(settings)
        with StatusDisplay(console) as display:

            def announce(pids: dict[str, int]) -> None:
                write_api_file(settings, deployment.api_url, key_file, pids)
                display.print(_where(deployment.api_url, key_file, settings.logs_dir))

            try:
                Supervisor(deployment.plan, settings.logs_dir, on_ready=announce, on_change=display.update).run()
            finally:
                api_file(settings.data_dir).unlink(missing_ok=True)


def _where(url: str, key_file: Path, logs_dir: Path) -> str:
    return (
        f"\nserving on {url}  (page: {url}/dashboard, reference: {url}/openapi.json)\n"
        f"key in {key_file}\nlogs in {logs_dir}\nCtrl-C drains and stops; a second one stops at once"
    )
