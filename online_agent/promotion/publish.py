"""Takes a committed version into service: candidate → loading → verified → serving, or rejecting → rejected.

Invariants:
- every move is a compare-and-set in the database, made by the holder of the engine lease
- only the newest candidate that is due is loaded; older ones are retired as superseded
- the database says ``serving`` only after the engine was seen to hold the version, byte for byte
- each state found after a crash has a rule (``recovery.py``) and none of them asks a person
- an engine that cannot be reached rejects nothing: the version stays a candidate and the sweep comes back
"""

from __future__ import annotations

import asyncio

from online_agent.errors import EngineError, EngineLost, Fenced, SwapFailed, WeightsError
from online_agent.promotion.lease import SwapLimits, engine_lease
from online_agent.promotion.recovery import recover_unfinished
from online_agent.promotion.states import (
    back_to_candidate,
    due_candidates,
    move_or_fenced,
    reject,
    serve,
    serving_version,
    start_swap,
    take_newest_candidate,
)
from online_agent.serving.client import EngineClient
from online_agent.serving.swap import swap
from online_agent.store.records import VersionRecord
from online_agent.store.session import Database
from online_agent.telemetry.logging import bound, get_logger
from online_agent.types import VersionState
from online_agent.weights.fit import check_fits
from online_agent.weights.store import WeightStore

_log = get_logger(__name__)


async def publish(
    db: Database, weights: WeightStore, engine: EngineClient, version: int, limits: SwapLimits | None = None
) -> VersionRecord:
    """Promote ``version`` or what supersedes it, and return its row as it is then.

    Raises NotFound, Busy (another swapper is at it), EngineError and EngineLost (the version waits for the engine).
    A version that is refused is no error here: its row says ``rejected`` and why.
    """
    with db.reading() as tx:
        record = tx.weights.get(version)
    if record.state is not VersionState.SERVING:
        await publish_newest(db, weights, engine, limits)
    with db.reading() as tx:
        return tx.weights.get(version)


async def publish_newest(
    db: Database, weights: WeightStore, engine: EngineClient, limits: SwapLimits | None = None
) -> int | None:
    """Settle every waiting version; returns the one that serves now if this call changed it.

    Raises Busy, EngineError, EngineLost.
    """
    limits = limits or SwapLimits()
    if not await asyncio.to_thread(_is_work_waiting, db, limits.every_versions):
        return None
    async with engine_lease(db, limits.lease_s):
        return await publish_under_lease(db, weights, engine, limits)


def check_candidate(db: Database, weights: WeightStore, version: int) -> None:
    """Returns when the files of ``version`` are whole, finite and fit what serves; changes nothing.

    Raises CorruptVersion or ForeignVersion, and Conflict when nothing serves.
    """
    check_fits(weights.open(version), weights.open(serving_version(db).version).manifest)


async def publish_under_lease(
    db: Database, weights: WeightStore, engine: EngineClient, limits: SwapLimits
) -> int | None:
    """``publish_newest`` for a caller that already holds the engine lease."""
    served: int | None = None
    await recover_unfinished(db, weights, engine, limits.swap_timeout_s)
    while (candidate := await asyncio.to_thread(take_newest_candidate, db, limits.every_versions)) is not None:
        with bound(version=candidate.version):
            if await _promote(db, weights, engine, candidate.version, limits):
                served = candidate.version
    return served


async def _promote(db: Database, weights: WeightStore, engine: EngineClient, version: int, limits: SwapLimits) -> bool:
    """Whether the version serves now. It was ``loading`` and ends as serving, rejected, or a candidate again."""
    serving = await asyncio.to_thread(serving_version, db)
    last_good = await asyncio.to_thread(weights.open, serving.version)
    start = await asyncio.to_thread(start_swap, db)
    try:
        target = await asyncio.to_thread(weights.open, version)
        report = await swap(engine, target, last_good=last_good, timeout_s=limits.swap_timeout_s)
    except EngineLost as error:
        # The version stays ``loading``: its start-up rule brings the engine back before anything else is tried.
        _log.error("engine lost in a swap", reason=str(error))
        raise
    except (WeightsError, SwapFailed) as error:
        await asyncio.to_thread(reject, db, version, f"{error.code}: {error}")
        _log.error("version rejected", reason=str(error))
        return False
    except EngineError as error:
        await asyncio.to_thread(back_to_candidate, db, version, str(error))
        raise
    try:
        await asyncio.to_thread(move_or_fenced, db, version, {VersionState.LOADING}, VersionState.VERIFIED)
        await asyncio.to_thread(serve, db, report, start)
    except Fenced as error:
        _log.warning("version overtaken by a rollback", reason=str(error))
        return False
    _log.info("version serves", seconds=report.seconds, previous=report.previous_version)
    return True


def _is_work_waiting(db: Database, every_versions: int) -> bool:
    unfinished = {VersionState.LOADING, VersionState.VERIFIED, VersionState.REJECTING}
    with db.reading() as tx:
        return bool(tx.weights.in_states(unfinished) or due_candidates(tx, every_versions))
