"""Is it alive, can it serve, and what do its counters say."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from api.health.schemas import Readiness
from api.runtime import Runtime
from api.scrape import Gauge, collect
from online_agent.errors import OnlineAgentError
from online_agent.store.session import Transaction
from online_agent.types import VersionState

# A version on its way into service is in the engine before the database says that it serves.
_EXPECTED_STATES = (VersionState.SERVING, VersionState.VERIFIED, VersionState.LOADING)


async def readiness(runtime: Runtime) -> Readiness:
    """Ready when episodes can be taken: not draining, database and engine answer, the engine holds what it should."""
    checks = {"accepting": not runtime.is_draining, "database": False, "engine": False, "version": False}
    with suppress(OnlineAgentError):  # what was not reached stays false, which is the answer
        expected = await runtime.read(_expected_versions)
        checks["database"] = True
        info = await runtime.engine.model_info()
        checks["engine"] = True
        checks["version"] = info.weight_version in expected
    return Readiness(status="ready" if all(checks.values()) else "not_ready", checks=checks)


def _expected_versions(tx: Transaction) -> set[int]:
    return {record.version for record in tx.weights.in_states(_EXPECTED_STATES)}


async def metrics_text(runtime: Runtime) -> bytes:
    in_use = runtime.db.num_connections_in_use  # before this scrape takes one itself
    facts = await runtime.read(lambda tx: collect(tx, runtime.settings.recipe.group_size))
    own = {"database_connections_in_use": Gauge("Database connections of this process that are held", in_use)}
    return runtime.metrics.render(replace(facts, gauges={**facts.gauges, **own}))
