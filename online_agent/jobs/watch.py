"""Ends a worker that no longer gets messages although its broker is there, so that it is started afresh.

A Redis that goes away while a job is being acknowledged leaves Celery's consumer waiting for ever, and a dead beat
process is not noticed by its worker. Both look the same from here: the sweeps stop arriving.
"""

from __future__ import annotations

import time
from typing import Any

from celery import Celery, bootsteps
from celery.signals import task_received
from celery.worker import state

from online_agent.config.settings import Settings
from online_agent.jobs.redis import is_redis_up
from online_agent.telemetry.logging import get_logger

_log = get_logger(__name__)
_CHECK_EVERY_S = 2.0
# So many sweeps in a row do not get lost by chance.
_MISSED_SWEEPS = 4
_EX_SOFTWARE = 70


class SilenceWatch(bootsteps.StartStopStep):  # type: ignore[misc]
    """A step of the consumer: looks on the worker's own timer."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **_: Any) -> None:
        settings: Settings = parent.app.settings
        self._broker_url: str = parent.app.conf.broker_url
        self._max_silence_s = _MISSED_SWEEPS * max(settings.jobs.grade_sweep_s, _CHECK_EVERY_S)
        self._heard_at = time.monotonic()
        self._timer: Any = None

    def start(self, parent: Any) -> None:
        self._heard_at = time.monotonic()
        task_received.connect(self._on_received, weak=False)
        self._timer = parent.timer.call_repeatedly(_CHECK_EVERY_S, self._check)

    def stop(self, parent: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        task_received.disconnect(self._on_received)

    def _on_received(self, **_: Any) -> None:
        self._heard_at = time.monotonic()

    def _check(self) -> None:
        silent_s = time.monotonic() - self._heard_at
        if state.active_requests or not is_redis_up(self._broker_url):
            self._heard_at = time.monotonic()
        elif silent_s > self._max_silence_s:
            _log.error("no message although the broker is up: the worker ends", silent_s=round(silent_s, 1))
            state.should_stop = _EX_SOFTWARE


def add_silence_watch(app: Celery) -> None:
    app.steps["consumer"].add(SilenceWatch)
