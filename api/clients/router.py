"""``/v1/episodes/{id}/close``, ``/v1/episodes/{id}/completions`` and ``/v1/receipts/{id}``: clients' own episodes."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.auth import AgentCaller
from api.bodies import EpisodeName
from api.clients import service
from api.clients.schemas import ClientEpisodeOut, CompletionList, EpisodeClose, ReceiptOut
from api.idempotency import IdempotencyKey, claim_of
from api.limits import StrictRoute
from api.runtime import RuntimeDep

router = APIRouter(prefix="/v1", tags=["clients"], route_class=StrictRoute)

NOTHING_SAID = EpisodeClose()


@router.post("/episodes/{episode_id}/close", response_model=ClientEpisodeOut)
async def close_episode(
    request: Request,
    runtime: RuntimeDep,
    caller: AgentCaller,
    episode_id: EpisodeName,
    body: EpisodeClose = NOTHING_SAID,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Say that a client's episode is over, with its reward if it is known."""
    claim = claim_of(request, caller, idempotency_key, body)
    return (await service.close(runtime, caller, episode_id, body, claim)).response()


@router.get("/episodes/{episode_id}/completions")
async def list_completions(runtime: RuntimeDep, caller: AgentCaller, episode_id: EpisodeName) -> CompletionList:
    """The answers of a client's episode and how they hang together, with those that a retry replaced."""
    return await service.completions(runtime, caller, episode_id)


@router.get("/receipts/{completion_id}")
async def get_receipt(runtime: RuntimeDep, caller: AgentCaller, completion_id: EpisodeName) -> ReceiptOut:
    """What became of one answer: its episode, whether it was trained on, and the fate of the feedback on it."""
    return await service.receipt(runtime, caller, completion_id)
