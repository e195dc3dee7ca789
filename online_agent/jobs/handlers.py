"""The jobs. Each finds its work in the database, can run twice, and ends well when there is nothing to do."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import redis
from billiard import current_process  # type: ignore[import-untyped]
from celery import Celery, Task, shared_task
from celery.signals import worker_process_shutdown

from online_agent.drift.answers import scan_answers
from online_agent.drift.scan import scan
from online_agent.errors import BrokerUnavailable, Busy, Conflict, EngineError, EngineLost, OnlineAgentError
from online_agent.jobs.app import CHECK_ENGINE, GRADE, PUBLISH, REAP, RETAIN, ROLLBACK, SCAN_DRIFT
from online_agent.jobs.context import WorkerContext
from online_agent.jobs.enqueue import GRADE_WAKE_KEY
from online_agent.jobs.redis import connect
from online_agent.promotion.engine_check import check_engine
from online_agent.promotion.expiry import erase_expired
from online_agent.promotion.lease import SwapLimits
from online_agent.promotion.publish import publish_newest
from online_agent.promotion.retention import prune_versions, scored_versions
from online_agent.promotion.rollback import rollback
from online_agent.telemetry.logging import bound, get_logger

_log = get_logger(__name__)

# One grading job works this long before it hands over to the next message, so that a swap never waits long.
_GRADING_SLICE_S = 1.0

_context: WorkerContext | None = None


def context_of(task: Task) -> WorkerContext:
    """This process's context, built by its first job."""
    global _context
    if _context is None:
        app: Celery = task.app
        _context = WorkerContext(app.settings, slot=getattr(current_process(), "index", 0) + 1)
    return _context


@worker_process_shutdown.connect
def _close_context(**_: Any) -> None:
    global _context
    if _context is not None:
        _context.close()
        _context = None


@shared_task(bind=True, name=GRADE)
def grade(task: Task) -> None:
    """Grade what has finished. The wake-up key goes first: an episode that finishes from here on wakes the next job."""
    context = context_of(task)
    with contextlib.suppress(redis.RedisError), connect(task.app.conf.broker_url) as client:
        client.delete(GRADE_WAKE_KEY)
    until = time.monotonic() + _GRADING_SLICE_S
    while True:
        report = context.run(context.grader.grade_batch())
        if report.num_claimed < context.settings.jobs.grading_batch:
            return
        if time.monotonic() > until:
            with contextlib.suppress(BrokerUnavailable):
                context.queue.grade("more")
            return


@shared_task(bind=True, name=PUBLISH)
def publish(task: Task, version: int | None = None) -> None:
    """Take the newest candidate into service. Without work or with another swapper at it, the sweep comes back."""
    context = context_of(task)
    try:
        context.run(publish_newest(context.db, context.weights, context.engine, _limits(context)))
    except (Busy, EngineError, EngineLost) as error:
        _log.warning("the candidate waits", version=version, reason=str(error))


@shared_task(bind=True, name=ROLLBACK)
def roll_back(task: Task, target: int, actor: str, request_id: str) -> None:
    """Serve the content of ``target`` again under a new number. A refusal is an event, since nobody waits for this."""
    context = context_of(task)
    with bound(version=target):
        try:
            context.run(
                rollback(
                    context.db,
                    context.weights,
                    context.engine,
                    target,
                    actor,
                    limits=_limits(context),
                    request_id=request_id,
                )
            )
        except OnlineAgentError as error:
            _log.error("rollback failed", code=error.code, reason=str(error))
            with context.db.transaction() as tx:
                tx.events.add(
                    "rollback_refused",
                    {"target": target, "actor": actor, "code": error.code, "reason": str(error), "request": request_id},
                    version=target,
                )


@shared_task(bind=True, name=CHECK_ENGINE)
def check(task: Task) -> None:
    """An engine that came back with other weights gets the serving version again."""
    context = context_of(task)
    try:
        context.run(check_engine(context.db, context.weights, context.engine, _limits(context)))
    except (Busy, Conflict, EngineError, EngineLost) as error:
        _log.info("engine not checked", reason=str(error))


@shared_task(bind=True, name=SCAN_DRIFT)
def scan_drift(task: Task) -> None:
    """Feed the detectors what happened since the last scan."""
    context = context_of(task)
    scan(context.db, context.settings)
    for alarm in scan_answers(context.db, context.settings.drift):
        _log.warning("answers got worse", share=alarm.name, version=alarm.version, rose_to=alarm.share)


@shared_task(bind=True, name=REAP)
def reap(task: Task) -> None:
    """Give back what dead processes held: steps whose lease ran out return their episodes to the queue."""
    context = context_of(task)
    with context.db.transaction() as tx:
        abandoned = tx.steps.abandon_expired(time.time())
        for step in abandoned:
            tx.events.add("step_abandoned", {"reason": "lease ran out"}, step=step)
    if abandoned:
        _log.warning("steps abandoned", steps=abandoned)


@shared_task(bind=True, name=RETAIN)
def retain(task: Task) -> None:
    """Delete the directories of versions that nothing needs any more, and what tenants keep no longer."""
    context = context_of(task)
    keep = context.settings.weights.keep_versions
    prune_versions(context.db, context.weights, keep, scored_versions(context.settings))
    erase_expired(context.db, context.settings.tenants)


def _limits(context: WorkerContext) -> SwapLimits:
    settings = context.settings
    return SwapLimits(
        settings.engine.swap_timeout_s, settings.jobs.swap_lease_s, settings.weights.publish_every_versions
    )
