"""``/v1/training``: for operators."""

from __future__ import annotations

from fastapi import APIRouter

from api.auth import OperatorCaller
from api.bodies import NumberCursor, PageSize
from api.limits import StrictRoute
from api.runtime import RuntimeDep
from api.training import service
from api.training.schemas import PauseOut, StepList, TrainingOut

router = APIRouter(prefix="/v1/training", tags=["training"], route_class=StrictRoute)


@router.get("")
async def get_training(runtime: RuntimeDep, caller: OperatorCaller) -> TrainingOut:
    """State of the learner, its queue, what was dropped and why, and its last steps."""
    return await service.overview(runtime)


@router.get("/steps")
async def list_steps(
    runtime: RuntimeDep,
    caller: OperatorCaller,
    cursor: NumberCursor = None,
    limit: PageSize = 50,
) -> StepList:
    """Steps with their metrics, newest first."""
    return await service.list_steps(runtime, cursor, limit)


@router.post("/pause")
async def pause_training(runtime: RuntimeDep, caller: OperatorCaller) -> PauseOut:
    """Stop after the step under way. Episodes go on and wait in the queue."""
    return await service.pause(runtime)


@router.post("/resume")
async def resume_training(runtime: RuntimeDep, caller: OperatorCaller) -> PauseOut:
    """Let the learner take episodes again."""
    return await service.resume(runtime)
