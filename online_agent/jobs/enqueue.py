"""Typed sending of jobs. A message only wakes the worker: the work is a row in the database.

So a broker that is down loses nothing: the caller gets BrokerUnavailable within two seconds, and the sweeps of the
worker find the row when the broker is back.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import redis
from celery import Celery
from kombu.exceptions import KombuError

from online_agent.config.settings import Settings
from online_agent.errors import BrokerUnavailable
from online_agent.jobs.app import GRADE, PUBLISH, ROLLBACK, make_app
from online_agent.jobs.redis import connect
from online_agent.telemetry.logging import get_logger

_log = get_logger(__name__)
_Subject = TypeVar("_Subject")

# While this key exists a grading wake-up is under way; the worker deletes it before it looks for work, and it expires
# so that a lost message delays grading by no more than this.
GRADE_WAKE_KEY = "online-agent:grade-wake"
GRADE_WAKE_TTL_MS = 2000
# After a failure, further sends are refused at once for this long: callers do not queue up behind time-outs.
_REFUSE_AFTER_FAILURE_S = 2.0


class JobQueue:
    """Sends jobs to the worker. Safe to use from several threads. Every method raises BrokerUnavailable."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._app: Celery = make_app(settings)
        self._redis = connect(self._app.conf.broker_url)
        self._clock = clock
        self._refuse_until = 0.0
        self._lock = threading.Lock()

    def grade(self, episode_id: str) -> None:
        """Wake the grader for a finished episode. Wake-ups that are still under way are not repeated."""
        self._send(GRADE, {}, coalesce=True, subject=episode_id)

    def publish(self, version: int) -> None:
        """Ask for the promotion of a committed version."""
        self._send(PUBLISH, {"version": version}, coalesce=False, subject=version)

    def rollback(self, target: int, actor: str) -> str:
        """Ask for a rollback to ``target``; returns the request's id.

        Its outcome is a version whose metrics hold the id under ``promotion.rollback.REQUEST``, or an event
        ``rollback_refused`` with it as ``request``.
        """
        request_id = secrets.token_hex(8)
        request: dict[str, int | str] = {"target": target, "actor": actor, "request_id": request_id}
        self._send(ROLLBACK, request, coalesce=False, subject=target)
        return request_id

    def close(self) -> None:
        self._redis.close()
        self._app.close()

    def _send(self, name: str, kwargs: dict[str, int | str], *, coalesce: bool, subject: int | str) -> None:
        if self._clock() < self._refuse_until:
            raise BrokerUnavailable(f"{name}({subject}): the broker was not reachable a moment ago")
        try:
            if coalesce:
                if not self._redis.set(GRADE_WAKE_KEY, 1, nx=True, px=GRADE_WAKE_TTL_MS):
                    return
            else:
                self._redis.ping()
            self._app.send_task(name, kwargs=kwargs, retry=False)
        except (redis.RedisError, KombuError, OSError) as error:
            with self._lock:
                self._refuse_until = self._clock() + _REFUSE_AFTER_FAILURE_S
            raise BrokerUnavailable(f"{name}({subject}): {error}") from error


def tolerant(send: Callable[[_Subject], None]) -> Callable[[_Subject], None]:
    """The same sender, except that a broker that is down is logged and left to the sweeps."""

    def send_or_log(subject: _Subject) -> None:
        try:
            send(subject)
        except BrokerUnavailable as error:
            _log.warning("broker unavailable, left to the sweep", reason=str(error))

    return send_or_log
