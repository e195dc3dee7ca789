"""``/v1/episodes/import`` and ``/v1/episodes/export``: people bring logs, and take theirs along."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from api.auth import OperatorCaller, ReadingCaller
from api.bodies import MAX_VERSION, Cursor
from api.idempotency import IdempotencyKey, claim_of
from api.limits import StrictRoute
from api.runtime import RuntimeDep
from api.transfer.exports import Selection, export_response
from api.transfer.imports import import_episodes as store
from api.transfer.schemas import ImportAnswer, ImportBody
from online_agent.transfer.formats import ExportFormat, Shape
from online_agent.types import EpisodeStatus

router = APIRouter(prefix="/v1/episodes", tags=["episodes"], route_class=StrictRoute)

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A stream of rows",
        "content": {
            "application/x-ndjson": {"schema": {"type": "string"}},
            "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.post("/import", status_code=201, response_model=None, responses={201: {"model": ImportAnswer}})
async def import_episodes(
    request: Request,
    runtime: RuntimeDep,
    caller: OperatorCaller,
    body: ImportBody,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Store 1 to 1,000 finished episodes from elsewhere, all or none; each counts once by its `id`.

    Those with token ids, log-probs and a weight version that is known here are trained on like any other.
    """
    claim = claim_of(request, caller, idempotency_key, body)
    return (await store(runtime, caller, body, claim)).response()


@router.get("/export", response_class=StreamingResponse, responses=_STREAM)
async def export_episodes(
    runtime: RuntimeDep,
    caller: ReadingCaller,
    export_format: Annotated[ExportFormat, Query(alias="format")] = ExportFormat.JSONL,
    shape: Annotated[Shape, Query(description="`native` can be imported again")] = Shape.NATIVE,
    status: EpisodeStatus | None = None,
    env: Annotated[str | None, Query(min_length=1, max_length=120)] = None,
    weight_version: Annotated[int | None, Query(ge=0, le=MAX_VERSION)] = None,
    cursor: Cursor = None,
) -> StreamingResponse:
    """The tenant's ended episodes as a stream, newest first; `cursor`: only those older than the episode of this id."""
    selection = Selection(status, env, weight_version, cursor)
    return await export_response(runtime, caller, selection, export_format, shape)
