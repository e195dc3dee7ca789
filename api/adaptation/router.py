"""``/v1/adaptation`` and ``/v1/drift``: for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.adaptation import service
from api.adaptation.schemas import AdaptationOut, DriftOut
from api.auth import OperatorCaller
from api.limits import StrictRoute
from api.runtime import RuntimeDep
from online_agent.adaptation.report import DEFAULT_WINDOW

router = APIRouter(prefix="/v1", tags=["adaptation"], route_class=StrictRoute)


@router.get("/adaptation")
async def get_adaptation(
    runtime: RuntimeDep,
    caller: OperatorCaller,
    env: Annotated[str, Query(min_length=1, max_length=100)],
    window: Annotated[int, Query(ge=1, le=10_000)] = DEFAULT_WINDOW,
) -> AdaptationOut:
    """Success around each change and version: rates with n and 95 % interval, and episodes to recover."""
    return await service.adaptation(runtime, caller, env, window)


@router.get("/drift")
async def get_drift(runtime: RuntimeDep, caller: OperatorCaller) -> DriftOut:
    """State of each drift detector, its alarms, and the resets of the EWMA reference."""
    return await service.drift(runtime, caller)
