"""``/v1/chat/completions`` and ``/v1/models``: a drop-in endpoint for OpenAI clients."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.auth import AgentCaller
from api.bodies import RowId
from api.chat import answers
from api.chat.schemas import ChatBody, ModelList, ModelOut
from api.gateway.answering import EventStream, begin, checked, gateway_of, gone, receipt_headers, whole
from api.gateway.caller import AnsweredClientDep, AnsweredHeaders, told
from api.limits import StrictRoute
from api.runtime import Runtime, RuntimeDep, runtime_of
from online_agent.errors import UnknownName

router = APIRouter(prefix="/v1", tags=["clients"], route_class=StrictRoute)

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A chat completion, or its chunks",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}


@router.post("/chat/completions", response_model=None, responses=_STREAM, openapi_extra=told(AnsweredHeaders))
async def create_chat_completion(request: Request, caller: AnsweredClientDep, body: ChatBody) -> Response:
    """One answer of the served model to a client that runs its own tools; stored as a turn of its episode."""
    runtime = runtime_of(request)
    call = checked(runtime, body.call(is_recorded=caller.is_recorded))
    renderer = gateway_of(runtime).renderer
    exchange = await begin(request, runtime, caller, call, body)
    if call.is_streamed:
        chunks = answers.chunks(exchange, renderer, includes_usage=body.includes_usage)
        return EventStream(runtime, exchange, chunks, answers.error_event, receipt_headers(exchange))
    answer = await whole(request, runtime, exchange)
    if answer is None:
        return gone()
    content = orjson.dumps(answers.completion(exchange, answer, renderer))
    return Response(content, headers=receipt_headers(exchange, answer), media_type="application/json")


@router.get("/models")
async def list_models(runtime: RuntimeDep, caller: AgentCaller) -> ModelList:
    """The policies that can be called: one, whatever version of it serves."""
    return ModelList(data=[await _model(runtime)])


@router.get("/models/{model}")
async def get_model(runtime: RuntimeDep, caller: AgentCaller, model: RowId) -> ModelOut:
    """One policy. An unknown name is 404."""
    served = await _model(runtime)
    if model != served.id:
        raise UnknownName(f"no model {model!r}; there is {served.id!r}", param="model")
    return served


async def _model(runtime: Runtime) -> ModelOut:
    serving = await runtime.read(lambda tx: tx.weights.serving())
    return ModelOut(
        id=gateway_of(runtime).model_name,
        created=0 if serving is None else int(serving.created_at),
        weight_version=None if serving is None else serving.version,
    )
