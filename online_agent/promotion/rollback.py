"""Serves the content of an earlier version again, under a new number, and takes the learner back with it.

The rule for what bad versions left behind: versions above the target that served are marked rolled back, and episodes
that they sampled are dropped when the next batch is reserved. Episodes of the target and of versions before it stay in
the queue and are judged by their staleness as always; the new number counts as one version later.

Order, so that a crash between any two leaves either nothing or a candidate that the sweep promotes:
target checked → number taken → content copied → (fence raised, running step fenced out, version inserted) → swap
"""

from __future__ import annotations

import asyncio

from online_agent.errors import Conflict, SwapFailed
from online_agent.promotion.lease import SwapLimits, engine_lease
from online_agent.promotion.publish import publish_under_lease
from online_agent.promotion.states import serving_version
from online_agent.serving.client import EngineClient
from online_agent.store.records import VersionNew, VersionRecord
from online_agent.store.session import Database
from online_agent.telemetry.logging import get_logger
from online_agent.types import VersionOrigin, VersionState
from online_agent.weights.fit import check_fits
from online_agent.weights.store import WeightStore
from online_agent.weights.version_dir import VersionDir

_log = get_logger(__name__)
REQUEST = "rollback/request"
_NUM_RECENT = 100


async def rollback(
    db: Database,
    weights: WeightStore,
    engine: EngineClient,
    target: int,
    actor: str,
    *,
    limits: SwapLimits | None = None,
    request_id: str = "",
) -> int:
    """The number of the new version, which serves. The same ``request_id`` twice makes one version.

    Raises NotFound, Conflict (the target never served, or its files were pruned), CorruptVersion, ForeignVersion:
    nothing has changed then. Raises SwapFailed when the engine refused it, EngineError and EngineLost when the engine
    is not there: the new version waits for it as a candidate. Raises Busy when another swap did not end in time.
    """
    limits = limits or SwapLimits()
    async with engine_lease(db, limits.lease_s, wait_s=limits.lease_s):
        version = await asyncio.to_thread(_already_made, db, request_id)
        if version is None:
            version = await asyncio.to_thread(_make_version, db, weights, target, actor, request_id)
        await publish_under_lease(db, weights, engine, limits)
    with db.reading() as tx:
        made = tx.weights.get(version)
    if made.state in (VersionState.REJECTING, VersionState.REJECTED):
        raise SwapFailed(f"version {version} (a copy of {target}) was rejected: {made.state_reason}")
    _log.info("rolled back", version=version, target=target, actor=actor)
    return version


def check_target(db: Database, weights: WeightStore, target: int) -> VersionDir:
    """The directory of ``target``, whole, finite and fitting what serves. Changes nothing; raises as ``rollback``."""
    with db.reading() as tx:
        record = tx.weights.get(target)
    if record.served_at is None:
        raise Conflict(f"version {target} is {record.state}: only a version that served can be restored")
    if target not in weights.versions():
        raise Conflict(f"the files of version {target} were pruned: neither engine nor learner could go back to it")
    version_dir = weights.open(target)
    check_fits(version_dir, weights.open(serving_version(db).version).manifest)
    return version_dir


def _make_version(db: Database, weights: WeightStore, target: int, actor: str, request_id: str) -> int:
    check_target(db, weights, target)
    with db.transaction() as tx:
        version = tx.weights.next_version()
    copy = weights.copy_as(target, version)
    with db.transaction() as tx:
        serving = tx.weights.serving()
        old = tx.weights.get(target)
        fence = tx.control.fence_out(target)
        tx.weights.insert(
            VersionNew(
                version=version,
                origin=VersionOrigin.ROLLBACK,
                parent=target,
                content_hash=copy.manifest.content_hash,
                config_hash=old.config_hash,
                recipe=old.recipe,
                metrics={REQUEST: request_id},
            )
        )
        tx.events.add(
            "rollback",
            {"from": serving.version if serving else None, "target": target, "version": version, "actor": actor,
             "fence": fence},
            version=version,
        )  # fmt: skip
    return version


def _already_made(db: Database, request_id: str) -> int | None:
    if not request_id:
        return None
    with db.reading() as tx:
        recent: list[VersionRecord] = tx.weights.list(_NUM_RECENT)
    return next((record.version for record in recent if record.metrics.get(REQUEST) == request_id), None)
