"""Answers of ``/v1/chat/completions``: whole, and as the chunks of a stream."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson

from api.errors import error_body
from api.gateway.answering import Told
from online_agent.errors import OnlineAgentError
from online_agent.gateway.calls import CallAnswer, ChoiceAnswer, Finish, TokenLogprob, Usage
from online_agent.gateway.markup import Called, Fragment, Said, Thought
from online_agent.rendering import ChatRenderer

_FINISH: dict[Finish, str] = {
    "stop": "stop",
    "stop_string": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "cancelled": "stop",
}
DONE = b"data: [DONE]\n\n"


def completion(exchange: Told, answer: CallAnswer, renderer: ChatRenderer) -> dict[str, Any]:
    """The body of a plain answer."""
    body = {
        **_head(exchange, "chat.completion"),
        "choices": [_choice(exchange, choice, renderer) for choice in answer.choices],
        "usage": usage_json(answer.usage),
    }
    return body if answer.receipt.episode_id is None else {**body, "receipt": answer.receipt.to_json()}


async def chunks(exchange: Told, renderer: ChatRenderer, *, includes_usage: bool) -> AsyncIterator[bytes]:
    """The events of a streamed answer. The last chunk before ``[DONE]`` carries the receipt; by then it is stored."""
    head = _head(exchange, "chat.completion.chunk")
    if includes_usage:
        head["usage"] = None
    num_choices = exchange.call.num_choices
    for index in range(num_choices):
        yield event({**head, "choices": [_delta(index, {"role": "assistant", "content": ""})]})
    async for delta in exchange.deltas():
        logprobs = _logprobs(delta.logprobs, renderer) if delta.logprobs else None
        for fragment in delta.fragments or [Said("")]:
            yield event({**head, "choices": [_delta(delta.choice, _said(fragment), logprobs)]})
            logprobs = None
    answer = await exchange.answer()
    closing = [{**head, "choices": [_delta(c.index, {}, finish=_FINISH[c.finish])]} for c in answer.choices]
    if includes_usage:
        closing.append({**head, "choices": [], "usage": usage_json(answer.usage)})
    if answer.receipt.episode_id is not None:
        closing[-1]["receipt"] = answer.receipt.to_json()
    for chunk in closing:
        yield event(chunk)
    yield DONE


def error_event(error: OnlineAgentError) -> bytes:
    """What a client's library raises on: the stream ends with it, without ``[DONE]``."""
    return event(error_body(error))


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _head(exchange: Told, kind: str) -> dict[str, Any]:
    return {
        "id": exchange.completion_id,
        "object": kind,
        "created": int(exchange.created_at),
        "model": exchange.call.model,
    }


def _choice(exchange: Told, choice: ChoiceAnswer, renderer: ChatRenderer) -> dict[str, Any]:
    answer = choice.answer
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.text if answer.text or not answer.calls else None,
        "refusal": None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [_tool_call(call) for call in answer.calls]
    wants_logprobs = exchange.call.num_top_logprobs is not None
    return {
        "index": choice.index,
        "message": message,
        "logprobs": _logprobs(choice.logprobs, renderer) if wants_logprobs else None,
        "finish_reason": _FINISH[choice.finish],
    }


def _delta(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _said(fragment: Fragment) -> dict[str, Any]:
    if isinstance(fragment, Said):
        return {"content": fragment.text}
    if isinstance(fragment, Thought):
        return {"reasoning_content": fragment.text}
    return {"tool_calls": [{"index": fragment.index, **_tool_call(fragment)}]}


def _tool_call(call: Called) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(tokens: Sequence[TokenLogprob], renderer: ChatRenderer) -> dict[str, Any]:
    content = [
        {
            **_token(token.token_id, token.logprob, renderer),
            "top_logprobs": [_token(token_id, logprob, renderer) for token_id, logprob in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _token(token_id: int, logprob: float, renderer: ChatRenderer) -> dict[str, Any]:
    raw = renderer.encoder.token_bytes(token_id)
    return {
        "token": raw.decode("utf-8", "replace"),
        "logprob": logprob if math.isfinite(logprob) else None,
        "bytes": list(raw),
    }
