"""Weight versions: what exists, what each was made of, and asking for another one to serve.

A rollback or promotion is done by the job worker; the request waits for its outcome in the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from api.auth import Caller
from api.idempotency import Claim, Outcome, once
from api.runtime import Runtime
from api.weights.schemas import TrainedEpisode, VersionDetail, VersionEpisodes, VersionList, VersionMoved, VersionOut
from online_agent.errors import Conflict, CorruptVersion, SwapFailed
from online_agent.promotion.publish import check_candidate
from online_agent.promotion.rollback import REQUEST, check_target
from online_agent.store.records import VersionRecord
from online_agent.store.session import Transaction
from online_agent.types import VersionState
from online_agent.weights.manifest import MANIFEST_NAME, read_manifest

POLL_S = 0.1
NUM_RECENT = 50  # versions and events looked through for the outcome of a rollback
REFUSED = "rollback_refused"
_FAILED = (VersionState.REJECTING, VersionState.REJECTED)
_PROMOTABLE = (VersionState.CANDIDATE, VersionState.LOADING, VersionState.VERIFIED)


async def list_versions(runtime: Runtime, cursor: int | None, limit: int) -> VersionList:
    def collect(tx: Transaction) -> VersionList:
        versions, serving = tx.weights.list(limit, before=cursor), tx.weights.serving()
        return VersionList(
            data=[VersionOut.of(version) for version in versions],
            next_cursor=str(versions[-1].version) if len(versions) == limit else None,
            serving=serving.version if serving else None,
        )

    return await runtime.read(collect)


async def get(runtime: Runtime, version: int) -> VersionDetail:
    """One version with its metrics and checksums. Raises NotFound."""
    record = await runtime.read(lambda tx: tx.weights.get(version))
    files = await runtime.on_thread(lambda: _checksums(runtime, version))
    return VersionDetail.of(record, config_hash=record.config_hash, metrics=dict(record.metrics), files=files)


def _checksums(runtime: Runtime, version: int) -> dict[str, str] | None:
    try:
        manifest = read_manifest(runtime.weights.path(version) / MANIFEST_NAME)
    except CorruptVersion:
        return None  # pruned, or damaged on disk; the row is still true
    return {path: entry.sha256 for path, entry in sorted(manifest.files.items())}


async def episodes_of(runtime: Runtime, caller: Caller, version: int) -> VersionEpisodes:
    """The tenant's episodes among those that made ``version``. Raises NotFound for an unknown version."""

    def collect(tx: Transaction) -> VersionEpisodes:
        episodes = tx.weights.episodes_of(version, caller.tenant_id)
        return VersionEpisodes(version=version, data=[TrainedEpisode.of(episode) for episode in episodes])

    return await runtime.read(collect)


async def set_pinned(runtime: Runtime, version: int, is_pinned: bool) -> VersionOut:
    """A pinned version is never pruned."""

    def move(tx: Transaction) -> VersionRecord:
        (tx.weights.pin if is_pinned else tx.weights.unpin)(version)
        return tx.weights.get(version)

    return VersionOut.of(await runtime.write(move))


async def promote(runtime: Runtime, version: int) -> VersionMoved:
    """The candidate serves, or the wait is over.

    Raises, before anything is asked for, Conflict for a version in another state, and CorruptVersion or ForeignVersion
    for one that must not serve.
    """
    record = await runtime.read(lambda tx: tx.weights.get(version))
    if record.state is not VersionState.SERVING:
        if record.state not in _PROMOTABLE:
            raise Conflict(f"version {version} is {record.state}; only a candidate can be promoted, use rollback")
        await runtime.on_thread(lambda: check_candidate(runtime.db, runtime.weights, version))
        await runtime.on_thread(lambda: runtime.jobs.publish(version))
    outcome = await _wait(runtime, lambda tx: tx.weights.get(version))
    return VersionMoved(version=version, target=version, is_serving=outcome is not None)


async def rollback(runtime: Runtime, caller: Caller, target: int, claim: Claim | None) -> Outcome:
    """A new version with the content of ``target`` serves (200), or is still on its way after the wait (202).

    Raises, before anything is asked for, what ``check_target`` raises for a version that cannot be restored.
    """

    async def effect() -> Outcome:
        await runtime.on_thread(lambda: check_target(runtime.db, runtime.weights, target))
        request_id = await runtime.on_thread(lambda: runtime.jobs.rollback(target, caller.key_id))
        made = await _wait(runtime, lambda tx: _made_by(tx, request_id))
        version = made.version if made else None
        moved = VersionMoved(version=version, target=target, is_serving=made is not None)
        return Outcome(200 if made else 202, moved.model_dump())

    return await once(runtime, claim, effect)


def _made_by(tx: Transaction, request_id: str) -> VersionRecord | None:
    """The version that the request led to, if it exists already. Raises Conflict when the worker refused it."""
    for event in tx.events.latest((REFUSED,), NUM_RECENT):
        if event.data.get("request") == request_id:
            raise Conflict(f"the rollback was refused: {event.data.get('reason')}")
    return next((v for v in tx.weights.list(NUM_RECENT) if v.metrics.get(REQUEST) == request_id), None)


async def _wait(runtime: Runtime, look: Callable[[Transaction], VersionRecord | None]) -> VersionRecord | None:
    """The version once it serves; None when the wait is over. Raises SwapFailed when it was rejected."""
    deadline = asyncio.get_running_loop().time() + runtime.settings.api.held_timeout_s
    while True:
        record = await runtime.read(look)
        if record is not None and _is_settled(record):
            return record
        if asyncio.get_running_loop().time() > deadline:
            return None
        await asyncio.sleep(POLL_S)


def _is_settled(record: VersionRecord) -> bool:
    """True once the version has served. Raises SwapFailed or Conflict when it never will."""
    if record.state in _FAILED:
        raise SwapFailed(f"version {record.version} was rejected: {record.state_reason or 'no reason recorded'}")
    if record.state is VersionState.RETIRED and record.served_at is None:
        raise Conflict(f"version {record.version} did not serve: {record.state_reason or 'retired'}")
    return record.state in (VersionState.SERVING, VersionState.RETIRED)
