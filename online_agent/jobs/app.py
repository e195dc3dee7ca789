"""The Celery application: delivery at least once, the effect made once by leases in the database.

Invariants:
- a message is a wake-up, never the work itself; every job finds its work in the database and can run twice
- a job is acknowledged after it ran, so a killed worker's message comes back after ``visibility_timeout_s``
- the visibility timeout is longer than the hard time limit, so a job that still runs is not handed out again
- messages are JSON; results are not kept
"""

from __future__ import annotations

from celery import Celery

from online_agent.config.settings import Settings
from online_agent.errors import ConfigError

GRADE = "jobs.grade"
PUBLISH = "jobs.publish"
ROLLBACK = "jobs.rollback"
CHECK_ENGINE = "jobs.check_engine"
SCAN_DRIFT = "jobs.scan_drift"
REAP = "jobs.reap"
RETAIN = "jobs.retain"

# How often, and after how many seconds, the transport looks for messages of a worker that was killed.
# Its default looks only about every 100 s.
_RESTORE_INTERVAL_POLLS = 2
_RESTORE_THROTTLE_S = 1
# A broker that accepts connections but never answers must not hold a caller.
CONNECT_TIMEOUT_S = 1.0


def make_app(settings: Settings, broker_url: str | None = None) -> Celery:
    """The application for this configuration. Raises ConfigError when no broker is configured or limits contradict."""
    url = broker_url or settings.broker.url
    if not url:
        raise ConfigError("broker.url is empty: give a Redis URL, or start the processes with `online-agent up`")
    jobs, visibility_s = settings.jobs, settings.broker.visibility_timeout_s
    if not jobs.soft_time_limit_s < jobs.hard_time_limit_s < visibility_s:
        raise ConfigError(
            f"jobs.soft_time_limit_s={jobs.soft_time_limit_s} < jobs.hard_time_limit_s={jobs.hard_time_limit_s} "
            f"< broker.visibility_timeout_s={visibility_s} does not hold"
        )
    app = Celery("online_agent", broker=url, set_as_current=False)
    app.conf.update(
        include=["online_agent.jobs.handlers"],
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        task_ignore_result=True,
        accept_content=["json"],
        task_serializer="json",
        event_serializer="json",
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        task_soft_time_limit=jobs.soft_time_limit_s,
        task_time_limit=jobs.hard_time_limit_s,
        task_publish_retry=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": visibility_s,
            "unacked_restore_interval": _RESTORE_INTERVAL_POLLS,
            "unacked_restore_throttle": _RESTORE_THROTTLE_S,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "max_retries": 1,
            "interval_start": 0,
            "interval_step": 0,
        },
        beat_schedule=_schedule(settings),
        # The schedule is rebuilt at each start: nothing is pickled to disk.
        beat_scheduler="celery.beat:Scheduler",
    )
    app.settings = settings
    return app


def _schedule(settings: Settings) -> dict[str, dict[str, object]]:
    jobs = settings.jobs
    every = {
        GRADE: jobs.grade_sweep_s,
        PUBLISH: jobs.publish_sweep_s,
        CHECK_ENGINE: jobs.engine_check_s,
        SCAN_DRIFT: settings.drift.scan_interval_s,
        REAP: jobs.reap_s,
        RETAIN: jobs.retention_s,
    }
    # A sweep that was not picked up before the next one is due is dropped: sweeps never pile up.
    return {
        name: {"task": name, "schedule": interval_s, "options": {"expires": max(1.0, interval_s)}}
        for name, interval_s in every.items()
    }
