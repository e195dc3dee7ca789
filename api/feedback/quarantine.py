"""``/v1/feedback``: what operators decide about feedback that came too fast or too often to be trusted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from api.auth import OperatorCaller
from api.bodies import MAX_ROW_NUMBER, EventCursor, PageSize
from api.feedback import service
from api.feedback.schemas import FeedbackOut, QuarantineList
from api.limits import StrictRoute
from api.runtime import RuntimeDep

router = APIRouter(prefix="/v1/feedback", tags=["feedback"], route_class=StrictRoute)

FeedbackId = Annotated[int, Path(ge=0, le=MAX_ROW_NUMBER, description="A piece of feedback")]


@router.get("")
async def list_quarantined(
    runtime: RuntimeDep, caller: OperatorCaller, cursor: EventCursor = None, limit: PageSize = 50
) -> QuarantineList:
    """Feedback that waits for a decision, oldest first."""
    return await service.quarantined(runtime, caller, cursor, limit)


@router.post("/{feedback_id}/release")
async def release_feedback(runtime: RuntimeDep, caller: OperatorCaller, feedback_id: FeedbackId) -> FeedbackOut:
    """Let it count, unless its episode has been trained on by now."""
    return await service.decide(runtime, caller, feedback_id, counts=True)


@router.post("/{feedback_id}/discard")
async def discard_feedback(runtime: RuntimeDep, caller: OperatorCaller, feedback_id: FeedbackId) -> FeedbackOut:
    """Keep it and never let it count."""
    return await service.decide(runtime, caller, feedback_id, counts=False)
