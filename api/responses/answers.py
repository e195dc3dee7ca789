"""Answers of ``/v1/responses``: whole, and as the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson

from api.errors import error_body
from api.gateway.answering import Told
from api.responses.schemas import ResponsesBody
from online_agent.errors import OnlineAgentError
from online_agent.gateway.calls import CallAnswer, Usage
from online_agent.gateway.markup import Called, Fragment, Said, Thought

Event = tuple[str, dict[str, Any]]


def response(exchange: Told, answer: CallAnswer, body: ResponsesBody) -> dict[str, Any]:
    """The body of a plain answer."""
    items = Items(exchange.completion_id)
    [choice] = answer.choices
    said = choice.answer
    fragments: list[Fragment] = [Thought(said.reasoning)] if said.reasoning else []
    fragments += [Said(said.text)] if said.text or not said.calls else []
    for fragment in (*fragments, *said.calls):
        items.add(fragment)
    items.close()
    return _whole(exchange, answer, body, items.done)


async def events(exchange: Told, body: ResponsesBody) -> AsyncIterator[bytes]:
    """The events of a streamed answer; the last one holds it whole with its receipt, and by then it is stored."""
    counter = 0

    def numbered(event: Event) -> bytes:
        nonlocal counter
        kind, fields = event
        data = orjson.dumps({"type": kind, "sequence_number": counter, **fields})
        counter += 1
        return f"event: {kind}\n".encode() + b"data: " + data + b"\n\n"

    begun = {**_head(exchange, body), "status": "in_progress", "output": [], "usage": None}
    yield numbered(("response.created", {"response": begun}))
    yield numbered(("response.in_progress", {"response": begun}))
    items = Items(exchange.completion_id)
    async for delta in exchange.deltas():
        for fragment in delta.fragments:
            for event in items.add(fragment):
                yield numbered(event)
    answer = await exchange.answer()
    for event in items.close(is_last=True):
        yield numbered(event)
    whole = _whole(exchange, answer, body, items.done)
    yield numbered((f"response.{whole['status']}", {"response": whole}))


def error_event(error: OnlineAgentError) -> bytes:
    fields = error_body(error)["error"]
    data = {"type": "error", "code": fields["code"], "message": fields["message"], "param": fields["param"]}
    return b"event: error\ndata: " + orjson.dumps(data) + b"\n\n"


class Items:
    """The items of an answer, as they open, grow and close. ``done`` are those that are whole."""

    def __init__(self, completion_id: str) -> None:
        self._id = completion_id.removeprefix("resp_")
        self._item: dict[str, Any] | None = None
        self._text = ""
        self.done: list[dict[str, Any]] = []

    def add(self, fragment: Fragment) -> list[Event]:
        if isinstance(fragment, Called):
            return [*self.close(), *self._call(fragment)]
        kind = "message" if isinstance(fragment, Said) else "reasoning"
        opened: list[Event] = []
        if self._item is None or self._item["type"] != kind:
            opened = [*self.close(), *self._open(kind)]
        self._text += fragment.text
        name = "output_text" if kind == "message" else "reasoning_text"
        return [*opened, (f"response.{name}.delta", {**self._place(), "delta": fragment.text})]

    def close(self, *, is_last: bool = False) -> list[Event]:
        """The open item is whole. An answer has at least one."""
        if is_last and self._item is None and not self.done:
            return [*self._open("message"), *self.close()]
        if self._item is None:
            return []
        place, item = self._place(), self._item
        part = _part(item["type"], self._text)
        name = "output_text" if item["type"] == "message" else "reasoning_text"
        whole = {**item, "content": [part]}
        if item["type"] == "message":
            whole["status"] = "completed"
        closing: list[Event] = [
            (f"response.{name}.done", {**place, "text": self._text}),
            ("response.content_part.done", {**place, "part": part}),
            ("response.output_item.done", {"output_index": len(self.done), "item": whole}),
        ]
        self.done.append(whole)
        self._item, self._text = None, ""
        return closing

    def _open(self, kind: str) -> list[Event]:
        number = len(self.done)
        item: dict[str, Any]
        if kind == "message":
            item = {"id": f"msg_{self._id}_{number}", "type": kind, "status": "in_progress", "role": "assistant"}
        else:
            item = {"id": f"rs_{self._id}_{number}", "type": kind, "summary": []}
        self._item = item
        return [
            ("response.output_item.added", {"output_index": number, "item": {**item, "content": []}}),
            ("response.content_part.added", {**self._place(), "part": _part(kind, "")}),
        ]

    def _call(self, call: Called) -> list[Event]:
        number = len(self.done)
        item = {
            "id": f"fc_{self._id}_{number}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        self.done.append(item)
        place = {"item_id": item["id"], "output_index": number}
        added = {**item, "status": "in_progress", "arguments": ""}
        return [
            ("response.output_item.added", {"output_index": number, "item": added}),
            ("response.function_call_arguments.delta", {**place, "delta": call.arguments}),
            ("response.function_call_arguments.done", {**place, "name": call.name, "arguments": call.arguments}),
            ("response.output_item.done", {"output_index": number, "item": item}),
        ]

    def _place(self) -> dict[str, Any]:
        assert self._item is not None
        place = {"item_id": self._item["id"], "output_index": len(self.done), "content_index": 0}
        return {**place, "logprobs": []} if self._item["type"] == "message" else place


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "message":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": text}


def _whole(exchange: Told, answer: CallAnswer, body: ResponsesBody, output: list[dict[str, Any]]) -> dict[str, Any]:
    is_cut = answer.choices[0].finish == "length"
    whole = {
        **_head(exchange, body),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": output,
        "usage": _usage(answer.usage),
    }
    return whole if answer.receipt.episode_id is None else {**whole, "receipt": answer.receipt.to_json()}


def _head(exchange: Told, body: ResponsesBody) -> dict[str, Any]:
    sampling = exchange.sampling
    choice = body.tool_choice
    return {
        "id": exchange.completion_id,
        "object": "response",
        "created_at": int(exchange.created_at),
        "model": body.model,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "tool_choice": choice if isinstance(choice, str) else "auto" if choice is None else choice.model_dump(),
        "tools": [{**tool.model_dump(), "strict": None} for tool in body.tools or []],
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
