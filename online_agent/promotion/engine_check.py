"""An engine that came back serves the current version or nothing: its label is compared with the database's."""

from __future__ import annotations

import asyncio

from online_agent.promotion.lease import SwapLimits, engine_lease
from online_agent.promotion.recovery import recover_unfinished, restore_serving
from online_agent.promotion.states import serving_version
from online_agent.serving.client import EngineClient
from online_agent.store.session import Database
from online_agent.telemetry.logging import get_logger
from online_agent.weights.store import WeightStore

_log = get_logger(__name__)


async def check_engine(
    db: Database, weights: WeightStore, engine: EngineClient, limits: SwapLimits | None = None
) -> bool:
    """Whether the engine held another version than the one that serves, and was put right.

    Raises Busy (a swap is under way: it will settle this), EngineError, EngineLost.
    """
    if await _held_version(db, engine) is None:
        return False
    limits = limits or SwapLimits()
    async with engine_lease(db, limits.lease_s):
        await recover_unfinished(db, weights, engine, limits.swap_timeout_s)
        wrong = await _held_version(db, engine)
        if wrong is None:
            return False
        serving = await restore_serving(db, weights, engine, limits.swap_timeout_s)
        await asyncio.to_thread(_record, db, wrong, serving.version)
    _log.warning("engine held another version", held=wrong, version=serving.version)
    return True


async def _held_version(db: Database, engine: EngineClient) -> str | None:
    """What the engine holds, if that is not the serving version."""
    serving = await asyncio.to_thread(serving_version, db)
    info = await engine.model_info()
    return None if info.weight_version == serving.version else str(info.weight_version)


def _record(db: Database, held: str, version: int) -> None:
    with db.transaction() as tx:
        tx.events.add("engine_reloaded", {"held": held, "version": version}, version=version)
