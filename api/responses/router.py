"""``/v1/responses``: a drop-in endpoint for clients of OpenAI's newer protocol."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.gateway.answering import EventStream, begin, checked, gone, receipt_headers, whole
from api.gateway.caller import AnsweredClientDep, AnsweredHeaders, told
from api.limits import StrictRoute
from api.responses import answers
from api.responses.schemas import ResponsesBody
from api.runtime import runtime_of

router = APIRouter(prefix="/v1/responses", tags=["clients"], route_class=StrictRoute)

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "A response, or its events", "content": {"application/json": {}, "text/event-stream": {}}}
}


@router.post("", response_model=None, responses=_STREAM, openapi_extra=told(AnsweredHeaders))
async def create_response(request: Request, caller: AnsweredClientDep, body: ResponsesBody) -> Response:
    """One answer of the served model to a client that runs its own tools; stored as a turn of its episode."""
    runtime = runtime_of(request)
    call = checked(runtime, body.call(is_recorded=caller.is_recorded))
    exchange = await begin(request, runtime, caller, call, body)
    if call.is_streamed:
        events = answers.events(exchange, body)
        return EventStream(runtime, exchange, events, answers.error_event, receipt_headers(exchange))
    answer = await whole(request, runtime, exchange)
    if answer is None:
        return gone()
    content = orjson.dumps(answers.response(exchange, answer, body))
    return Response(content, headers=receipt_headers(exchange, answer), media_type="application/json")
