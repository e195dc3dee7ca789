"""``/v1/episodes/{id}/feedback``."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.auth import AgentCaller
from api.bodies import EpisodeName
from api.feedback import service
from api.feedback.schemas import FeedbackCreate, FeedbackList, FeedbackOut
from api.idempotency import IdempotencyKey, claim_of
from api.limits import StrictRoute
from api.runtime import RuntimeDep

router = APIRouter(prefix="/v1/episodes/{episode_id}/feedback", tags=["feedback"], route_class=StrictRoute)


@router.post("", status_code=201, response_model=FeedbackOut)
async def add_feedback(
    request: Request,
    runtime: RuntimeDep,
    caller: AgentCaller,
    episode_id: EpisodeName,
    body: FeedbackCreate,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Say how an episode went, before or after its end. A trained step never changes."""
    claim = claim_of(request, caller, idempotency_key, body)
    return (await service.add(runtime, caller, episode_id, body, claim)).response()


@router.get("")
async def list_feedback(runtime: RuntimeDep, caller: AgentCaller, episode_id: EpisodeName) -> FeedbackList:
    """All feedback on an episode and the fate of each: accepted, used, late, duplicate or quarantined."""
    return await service.of_episode(runtime, caller, episode_id)
