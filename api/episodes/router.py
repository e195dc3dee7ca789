"""``/v1/episodes``: the served agent works on tasks."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from api.auth import AgentCaller
from api.bodies import MAX_VERSION, Cursor, EpisodeName, PageSize
from api.episodes import service
from api.episodes.schemas import EpisodeCreate, EpisodeCreated, EpisodeDetail, EpisodeList, EpisodeOut, GroupOut
from api.episodes.service import Include
from api.episodes.stream import OnDisconnect, stream_response
from api.idempotency import IdempotencyKey, claim_of
from api.limits import StrictRoute
from api.runtime import RuntimeDep
from online_agent.types import EpisodeStatus

router = APIRouter(prefix="/v1/episodes", tags=["episodes"], route_class=StrictRoute)

_CREATED: dict[int | str, dict[str, Any]] = {
    201: {
        "description": "Created; with `wait` the graded episode or group, with `Accept: text/event-stream` its events",
        "model": EpisodeCreated | EpisodeOut | GroupOut,
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.post("", status_code=201, response_model=None, responses=_CREATED)
async def create_episode(
    request: Request,
    runtime: RuntimeDep,
    caller: AgentCaller,
    body: EpisodeCreate,
    wait: Annotated[bool, Query(description="Answer when all is graded or has failed")] = False,
    on_disconnect: Annotated[
        OnDisconnect, Query(description="Whether an episode goes on when the client leaves its stream")
    ] = "continue",
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Start an episode, or with `group_size` a group of them.

    A repeat with the same Idempotency-Key joins the first request: same ids, same wait, same stream. A stream tells of
    one episode, so a group cannot be streamed.
    """
    claim = claim_of(request, caller, idempotency_key, body)
    is_stream = "text/event-stream" in accept
    outcome = await service.create(runtime, caller, body, claim, is_stream=is_stream)
    if is_stream:
        return stream_response(runtime, outcome.body["id"], outcome.headers, on_disconnect)
    if wait:
        outcome = await service.joined(runtime, caller, outcome)
    return outcome.response()


@router.get("")
async def list_episodes(
    runtime: RuntimeDep,
    caller: AgentCaller,
    status: EpisodeStatus | None = None,
    env: Annotated[str | None, Query(min_length=1, max_length=100)] = None,
    weight_version: Annotated[int | None, Query(ge=0, le=MAX_VERSION)] = None,
    group_id: Annotated[str | None, Query(min_length=1, max_length=100)] = None,
    cursor: Cursor = None,
    limit: PageSize = 50,
) -> EpisodeList:
    """The tenant's episodes, newest first."""
    return await service.list_episodes(runtime, caller, status, env, weight_version, group_id, cursor, limit)


@router.get("/{episode_id}")
async def get_episode(
    runtime: RuntimeDep,
    caller: AgentCaller,
    episode_id: EpisodeName,
    include: Annotated[list[Include], Query(max_length=8, description="Repeat for several")] = [],  # noqa: B006
) -> EpisodeDetail:
    """One episode; `include=spans` reads it whole, token for token."""
    return await service.get(runtime, caller, episode_id, include)


@router.delete("/{episode_id}", status_code=204)
async def erase_episode(runtime: RuntimeDep, caller: AgentCaller, episode_id: EpisodeName) -> None:
    """Erase what was said and done in an episode."""
    await service.erase(runtime, caller, episode_id)
