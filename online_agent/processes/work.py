"""The job worker with its schedule: one Celery process that forks ``jobs.num_processes`` workers."""

from __future__ import annotations

from typing import Any

from celery.signals import setup_logging as celery_setup_logging
from celery.signals import worker_ready

from online_agent.config.environment import settings_of_environment
from online_agent.jobs.app import make_app
from online_agent.jobs.watch import add_silence_watch
from online_agent.supervisor.readiness import announce_ready
from online_agent.telemetry.logging import setup_logging


def main() -> None:
    """Work until SIGTERM, finish the jobs under way and return."""
    settings = settings_of_environment()
    setup_logging("worker", settings)
    app = make_app(settings)
    add_silence_watch(app)

    def keep_our_logging(**_: Any) -> None:
        """Connected, so that Celery installs no handlers of its own."""

    def announce(**_: Any) -> None:
        announce_ready(settings, "worker")

    celery_setup_logging.connect(keep_our_logging, weak=False)
    worker_ready.connect(announce, weak=False)
    app.worker_main(
        [
            "worker",
            f"--concurrency={settings.jobs.num_processes}",
            "--beat",
            "--scheduler=celery.beat:Scheduler",
            "--loglevel=WARNING",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ]
    )
