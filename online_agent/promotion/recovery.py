"""The start-up rule of each state that a killed swapper can leave behind. Run under the engine lease.

loading     the engine may be paused, half loaded or on the new version: put the serving version back, then try again
verified    the engine held it, verified: if it still does it serves now, else try again
rejecting   the engine may still hold it: put the serving version back, then it is rejected
"""

from __future__ import annotations

import asyncio

from online_agent.errors import EngineError, SwapFailed
from online_agent.promotion.states import (
    SwapStart,
    back_to_candidate,
    reject,
    retry_or_reject,
    serve,
    serving_version,
    start_swap,
)
from online_agent.serving.client import EngineClient
from online_agent.serving.readiness import verify_served
from online_agent.serving.swap import SwapReport, restore
from online_agent.store.records import VersionRecord
from online_agent.store.session import Database
from online_agent.telemetry.logging import get_logger
from online_agent.types import VersionState
from online_agent.weights.store import WeightStore

_log = get_logger(__name__)
_UNFINISHED = (VersionState.LOADING, VersionState.VERIFIED, VersionState.REJECTING)


async def recover_unfinished(db: Database, weights: WeightStore, engine: EngineClient, timeout_s: float) -> None:
    """No version is in between any more. Raises EngineError or EngineLost when the engine cannot be brought back."""
    for record in await asyncio.to_thread(_unfinished, db):
        _log.warning("unfinished promotion found", version=record.version, state=record.state.value)
        if record.state is VersionState.VERIFIED:
            await _finish_or_retry(db, weights, engine, record)
        else:
            await restore_serving(db, weights, engine, timeout_s)
            if record.state is VersionState.REJECTING:
                await asyncio.to_thread(reject, db, record.version, record.state_reason or "rejected before a restart")
            else:
                await asyncio.to_thread(retry_or_reject, db, record.version, "the swap was cut off")


async def restore_serving(db: Database, weights: WeightStore, engine: EngineClient, timeout_s: float) -> VersionRecord:
    """The engine holds the serving version, verified, and generates."""
    serving = await asyncio.to_thread(serving_version, db)
    version_dir = await asyncio.to_thread(weights.open, serving.version)
    await restore(engine, version_dir, timeout_s=timeout_s)
    return serving


async def _finish_or_retry(db: Database, weights: WeightStore, engine: EngineClient, record: VersionRecord) -> None:
    start: SwapStart = await asyncio.to_thread(start_swap, db)
    serving = await asyncio.to_thread(serving_version, db)
    version_dir = await asyncio.to_thread(weights.open, record.version)
    try:
        await verify_served(engine, version_dir.serving_dir, record.version)
    except (EngineError, SwapFailed) as error:
        await asyncio.to_thread(back_to_candidate, db, record.version, str(error))
        return
    report = SwapReport(record.version, serving.version, 0.0, 0.0, 0, 0)
    await asyncio.to_thread(serve, db, report, start)


def _unfinished(db: Database) -> list[VersionRecord]:
    with db.reading() as tx:
        return tx.weights.in_states(_UNFINISHED)
