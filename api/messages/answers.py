"""Answers of ``/v1/messages``: whole, and as the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson

from api.errors import anthropic_error
from api.gateway.answering import Told
from online_agent.errors import OnlineAgentError
from online_agent.gateway.calls import CallAnswer, Finish
from online_agent.gateway.markup import Called, Fragment, Said

_STOP: dict[Finish, str] = {
    "stop": "end_turn",
    "stop_string": "stop_sequence",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "cancelled": "end_turn",
}


def message(exchange: Told, answer: CallAnswer) -> dict[str, Any]:
    """The body of a plain answer."""
    [choice] = answer.choices
    said = choice.answer
    content: list[dict[str, Any]] = []
    if said.reasoning:
        content.append({"type": "thinking", "thinking": said.reasoning, "signature": ""})
    if said.text or not said.calls:
        content.append({"type": "text", "text": said.text})
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.read_arguments()} for call in said.calls
    ]
    body = {
        **_head(exchange),
        "content": content,
        "stop_reason": _STOP[choice.finish],
        "stop_sequence": said.stop_string,
        "usage": _usage(answer.usage.prompt_tokens, answer.usage.completion_tokens),
    }
    return body if answer.receipt.episode_id is None else {**body, "receipt": answer.receipt.to_json()}


async def events(exchange: Told) -> AsyncIterator[bytes]:
    """The events of a streamed answer; ``message_stop`` carries the receipt, and by then the answer is stored."""
    head = {**_head(exchange), "content": [], "stop_reason": None, "stop_sequence": None}
    yield event("message_start", message={**head, "usage": _usage(exchange.num_prompt_tokens, 0)})
    blocks = _Blocks()
    async for delta in exchange.deltas():
        for fragment in delta.fragments:
            for line in blocks.add(fragment):
                yield line
    answer = await exchange.answer()
    for line in blocks.close(is_last=True):
        yield line
    [choice] = answer.choices
    stop = {"stop_reason": _STOP[choice.finish], "stop_sequence": choice.answer.stop_string}
    yield event("message_delta", delta=stop, usage={"output_tokens": answer.usage.completion_tokens})
    receipt = {} if answer.receipt.episode_id is None else {"receipt": answer.receipt.to_json()}
    yield event("message_stop", **receipt)


def error_event(error: OnlineAgentError) -> bytes:
    return b"event: error\ndata: " + orjson.dumps(anthropic_error(error.http_status, error.message)) + b"\n\n"


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + b"data: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"


class _Blocks:
    """Content blocks open and close as the kind of what is said changes; each call is a block."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""

    def add(self, fragment: Fragment) -> list[bytes]:
        if isinstance(fragment, Called):
            start = {"type": "tool_use", "id": fragment.id, "name": fragment.name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": fragment.arguments}
            return [*self._begin("", start), self._delta(delta), *self.close()]
        if isinstance(fragment, Said):
            opened = self._begin("text", {"type": "text", "text": ""})
            return [*opened, self._delta({"type": "text_delta", "text": fragment.text})]
        opened = self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        return [*opened, self._delta({"type": "thinking_delta", "thinking": fragment.text})]

    def close(self, *, is_last: bool = False) -> list[bytes]:
        """The open block ends. A message has at least one block."""
        if is_last and self._index < 0:
            return [*self._begin("text", {"type": "text", "text": ""}), *self.close()]
        if not self._open:
            return []
        self._open = ""
        return [event("content_block_stop", index=self._index)]

    def _begin(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        if kind and self._open == kind:
            return []
        closed = self.close()
        self._index += 1
        self._open = kind or "call"
        return [*closed, event("content_block_start", index=self._index, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event("content_block_delta", index=self._index, delta=delta)


def _head(exchange: Told) -> dict[str, Any]:
    return {
        "id": exchange.completion_id,
        "type": "message",
        "role": "assistant",
        "model": exchange.call.model,
    }


def _usage(num_prompt: int, num_sampled: int) -> dict[str, int]:
    """All of the prompt counts as input, whether it was in the engine's cache or not: that is what is stored."""
    return {
        "input_tokens": num_prompt,
        "output_tokens": num_sampled,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
