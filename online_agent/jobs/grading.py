"""Grades finished episodes: claim a batch by lease, verify all of it at once, write the verdicts in one transaction.

Invariants:
- the lease in the database decides who grades; a message delivered twice finds nothing left to claim
- no transaction is open while a verifier runs
- an outage (the sandbox or the verifier itself failed) is never a verdict: the episode is tried again when its lease
  runs out, and after ``max_attempts`` it is failed with the reason
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from opentelemetry.trace import Span

from envs.errors import EnvError
from envs.protocols import Environment
from envs.types import Task, Verdict
from online_agent.config.settings import JobsSettings
from online_agent.errors import BadInput, Conflict, NotFound
from online_agent.store.records import GradingClaim
from online_agent.store.session import Database
from online_agent.telemetry import tracing
from online_agent.telemetry.conventions import CONVERSATION_ID, ENV, SCORE
from online_agent.telemetry.logging import bound, get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Outage:
    """The verifier could not do its work; worth another attempt."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ungradable:
    """No attempt can succeed: the task or what was left behind does not exist."""

    reason: str


Outcome = Verdict | Outage | Ungradable


@dataclass(frozen=True, slots=True)
class GradingReport:
    num_claimed: int = 0
    num_graded: int = 0
    num_failed: int = 0
    num_retried: int = 0
    num_duplicates: int = 0


class Grader:
    """Grades for one worker process. ``worker`` names the holder of the leases."""

    def __init__(
        self, db: Database, environments: Mapping[str, Environment], settings: JobsSettings, worker: str
    ) -> None:
        self._db = db
        self._environments = environments
        self._settings = settings
        self._worker = worker

    async def grade_batch(self) -> GradingReport:
        """Claim up to ``grading_batch`` ungraded episodes and settle each of them."""
        with self._db.transaction() as tx:
            claims = tx.episodes.claim_ungraded(
                self._worker, self._settings.grading_lease_s, self._settings.grading_batch
            )
        if not claims:
            return GradingReport()
        # Whatever a verifier raises must not take the rest of the batch with it.
        answers = await asyncio.gather(*(self._verify(claim) for claim in claims), return_exceptions=True)
        return self._settle([(claim, _outcome(claim, answer)) for claim, answer in zip(claims, answers, strict=True)])

    async def _verify(self, claim: GradingClaim) -> Outcome:
        environment = self._environments.get(claim.env)
        if environment is None:
            return Ungradable(f"no environment named {claim.env!r}")
        if claim.artifact is None:
            return Ungradable("the episode left nothing to verify")
        try:
            task = _task(claim, environment)
        except (KeyError, TypeError) as error:
            return Ungradable(f"task {claim.task_id!r} of {claim.env!r} cannot be found: {error}")
        with bound(episode=claim.episode_id), grading_span(claim) as span:
            async with asyncio.timeout(self._settings.grading_lease_s):
                verdict = await environment.verify(task, claim.artifact)
            span.set_attribute(SCORE, verdict.reward)
            return verdict

    def _settle(self, results: list[tuple[GradingClaim, Outcome]]) -> GradingReport:
        graded = failed = retried = duplicates = 0
        with self._db.transaction() as tx:
            for claim, outcome in results:
                if isinstance(outcome, Outage) and claim.attempt < self._settings.max_grading_attempts:
                    retried += 1
                    continue
                try:
                    if isinstance(outcome, Verdict):
                        tx.episodes.grade(claim.episode_id, outcome)
                        graded += 1
                    else:
                        tx.episodes.fail(claim.episode_id, f"grading: {outcome.reason}")
                        failed += 1
                except (Conflict, NotFound):  # graded by another after our lease ran out, or erased meanwhile
                    duplicates += 1
                except BadInput as error:
                    tx.episodes.fail(claim.episode_id, f"grading: {error}")
                    failed += 1
        report = GradingReport(len(results), graded, failed, retried, duplicates)
        if failed or retried or duplicates:
            _log.warning("grading was not smooth", **{name: getattr(report, name) for name in report.__slots__})
        return report


def grading_span(claim: GradingClaim) -> AbstractContextManager[Span]:
    """``grade {env}`` in the trace that asked for the episode."""
    attributes = {CONVERSATION_ID: claim.episode_id, ENV: claim.env}
    return tracing.span(f"grade {claim.env}", attributes, parent=claim.traceparent)


def _outcome(claim: GradingClaim, answer: Outcome | BaseException) -> Outcome:
    if not isinstance(answer, BaseException):
        return answer
    if not isinstance(answer, Exception):
        raise answer
    is_expected = isinstance(answer, EnvError | OSError)  # TimeoutError is an OSError
    _log.warning(
        "verifier failed", episode=claim.episode_id, attempt=claim.attempt, exc_info=None if is_expected else answer
    )
    return Outage(repr(answer))


def _task(claim: GradingClaim, environment: Environment) -> Task:
    """The task the episode worked on: by its id, or as it was given with the request."""
    if claim.task is None:
        return environment.task(claim.task_id)
    return Task(claim.env, claim.task_id, "train", **claim.task)  # a verifier does not ask for the split
