"""``/v1/messages``: a drop-in endpoint for Anthropic clients."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from api.bodies import Answer
from api.gateway.answering import EventStream, begin, checked, gateway_of, gone, receipt_headers, whole
from api.gateway.caller import AnsweredClientDep, AnsweredHeaders, CallingClientDep, CallingHeaders, told
from api.limits import StrictRoute
from api.messages import answers
from api.messages.schemas import CountBody, MessagesBody
from api.runtime import RuntimeDep, runtime_of

router = APIRouter(prefix="/v1/messages", tags=["clients"], route_class=StrictRoute)

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A message, or its events",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}


class TokenCount(Answer):
    """How many tokens the messages are to the model."""

    input_tokens: int = Field(ge=0)


@router.post("", response_model=None, responses=_STREAM, openapi_extra=told(AnsweredHeaders))
async def create_message(request: Request, caller: AnsweredClientDep, body: MessagesBody) -> Response:
    """One answer of the served model to a client that runs its own tools; stored as a turn of its episode."""
    runtime = runtime_of(request)
    call = checked(runtime, body.call(is_recorded=caller.is_recorded))
    exchange = await begin(request, runtime, caller, call, body)
    if call.is_streamed:
        events = answers.events(exchange)
        return EventStream(runtime, exchange, events, answers.error_event, receipt_headers(exchange))
    answer = await whole(request, runtime, exchange)
    if answer is None:
        return gone()
    content = orjson.dumps(answers.message(exchange, answer))
    return Response(content, headers=receipt_headers(exchange, answer), media_type="application/json")


@router.post("/count_tokens", openapi_extra=told(CallingHeaders))
async def count_tokens(runtime: RuntimeDep, caller: CallingClientDep, body: CountBody) -> TokenCount:
    """The length of a prompt without an answer. What is stored of the named episode counts as it is stored."""
    call = checked(runtime, body.call(is_recorded=caller.is_recorded))
    return TokenCount(input_tokens=await gateway_of(runtime).count(caller.caller, call))
