"""The moves of a version in the database, each one transaction with the event that tells of it."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from online_agent.errors import Conflict, Fenced
from online_agent.serving.swap import SwapReport
from online_agent.store.records import VersionRecord
from online_agent.store.session import Database, Transaction
from online_agent.types import EpisodeStatus, VersionOrigin, VersionState

ATTEMPTS = "promotion/attempts"
# A version during whose swap the engine was lost this often is taken for the cause.
MAX_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class SwapStart:
    """What was true before the engine was touched: wall clock (unix seconds) and episodes failed so far."""

    at: float
    num_failed: int


def serving_version(db: Database) -> VersionRecord:
    """The version that serves. Raises Conflict when none does yet (nothing was ever published)."""
    with db.reading() as tx:
        serving = tx.weights.serving()
    if serving is None:
        raise Conflict("no weight version serves yet")
    return serving


def due_candidates(tx: Transaction, every_versions: int) -> list[VersionRecord]:
    """Candidates far enough above the serving version, and those that no learner step made; oldest first."""
    serving = tx.weights.serving()
    first_due = serving.version + every_versions if serving else 0
    return [c for c in tx.weights.candidates() if c.version >= first_due or c.origin is not VersionOrigin.STEP]


def take_newest_candidate(db: Database, every_versions: int = 1) -> VersionRecord | None:
    """The newest candidate that is due, now ``loading``; all older ones are retired as superseded. None without one."""
    with db.transaction() as tx:
        due = due_candidates(tx, every_versions)
        if not due:
            return None
        newest = due[-1]
        for record in tx.weights.candidates():
            if record.version < newest.version:
                reason = f"superseded by version {newest.version}"
                tx.weights.move(record.version, {VersionState.CANDIDATE}, VersionState.RETIRED, reason)
        tx.weights.move(newest.version, {VersionState.CANDIDATE}, VersionState.LOADING)
        return tx.weights.get(newest.version)


def start_swap(db: Database) -> SwapStart:
    with db.reading() as tx:
        return SwapStart(time.time(), tx.episodes.counts_by_status().get(EpisodeStatus.FAILED, 0))


def move_or_fenced(db: Database, version: int, from_states: Collection[VersionState], to_state: VersionState) -> None:
    """Raises Fenced when the version is in another state: a rollback overtook it."""
    with db.transaction() as tx:
        if not tx.weights.move(version, from_states, to_state):
            raise Fenced(f"version {version} was {tx.weights.get(version).state} instead of {sorted(from_states)}")


def serve(db: Database, report: SwapReport, start: SwapStart) -> None:
    """``verified`` becomes ``serving``, the version before is retired, and the swap is an event. Raises Fenced."""
    with db.transaction() as tx:
        if not tx.weights.move(report.version, {VersionState.VERIFIED}, VersionState.SERVING):
            raise Fenced(f"version {report.version} was {tx.weights.get(report.version).state} before it could serve")
        num_failed = tx.episodes.counts_by_status().get(EpisodeStatus.FAILED, 0) - start.num_failed
        tx.events.add(
            "swap",
            {
                "from": report.previous_version,
                "to": report.version,
                "seconds": report.seconds,
                "paused_s": report.paused_s,
                "held": report.num_waiting_at_pause,
                "retractions": report.num_running_at_pause,
                "failed": num_failed,
                "started": start.at,
                "ended": time.time(),
            },
            version=report.version,
        )


def reject(db: Database, version: int, reason: str) -> None:
    """The version never serves; the event says why."""
    with db.transaction() as tx:
        state = tx.weights.get(version).state
        if state is not VersionState.REJECTING:
            tx.weights.move(version, {state}, VersionState.REJECTING, reason)
        tx.weights.move(version, {VersionState.REJECTING}, VersionState.REJECTED, reason)
        tx.events.add("version_rejected", {"version": version, "reason": reason}, version=version)


def retry_or_reject(db: Database, version: int, reason: str) -> VersionState:
    """Back to ``candidate`` after the engine was lost under it, or ``rejected`` when that happened too often."""
    with db.transaction() as tx:
        record = tx.weights.get(version)
        attempts = int(record.metrics.get(ATTEMPTS, 0)) + 1
        tx.weights.add_metrics(version, {ATTEMPTS: attempts})
        if attempts < MAX_ATTEMPTS:
            tx.weights.move(version, {record.state}, VersionState.CANDIDATE, reason)
            return VersionState.CANDIDATE
    reject(db, version, f"{reason} ({attempts} times)")
    return VersionState.REJECTED


def back_to_candidate(db: Database, version: int, reason: str) -> None:
    """The engine was not touched; the version waits for the next try."""
    with db.transaction() as tx:
        tx.weights.move(version, {VersionState.LOADING, VersionState.VERIFIED}, VersionState.CANDIDATE, reason)
