"""How the agent copes with what changed: success curves, and what the drift detectors say."""

from __future__ import annotations

from dataclasses import asdict

from api.adaptation.schemas import AdaptationOut, DetectorOut, DriftOut
from api.auth import Caller
from api.envs.service import environment
from api.events.schemas import EventOut
from api.events.service import is_visible
from api.runtime import Runtime
from online_agent.adaptation.markers import DRIFT_EVENTS, RESET_EVENT
from online_agent.adaptation.report import read_report
from online_agent.store.session import Transaction

MAX_EVENTS = 100


async def adaptation(runtime: Runtime, caller: Caller, env: str, window: int) -> AdaptationOut:
    """Raises UnknownName for an environment that does not exist."""
    environment(runtime, env)
    report = await runtime.read(lambda tx: read_report(tx, env, tenant_id=caller.tenant_id, window=window))
    return AdaptationOut(**asdict(report))


async def drift(runtime: Runtime, caller: Caller) -> DriftOut:
    def collect(tx: Transaction) -> DriftOut:
        alarms = tx.events.latest(DRIFT_EVENTS, MAX_EVENTS)
        return DriftOut(
            detectors=[
                DetectorOut(name=name, state=state.get("summary", {})) for name, state in tx.detectors.all().items()
            ],
            alarms=[EventOut.of(event) for event in alarms if is_visible(event, caller)],
            resets=[EventOut.of(event) for event in tx.events.latest((RESET_EVENT,), MAX_EVENTS)],
        )

    return await runtime.read(collect)
