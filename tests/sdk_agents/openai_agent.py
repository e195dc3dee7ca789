"""An agent as its owner would write it with the official OpenAI library. It knows nothing of this service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openai import LengthFinishReasonError, OpenAI

Run = Callable[[str, str], str]
"""A tool's name and the JSON of its arguments → what it answers."""


def solve(
    client: OpenAI, task: str, tools: list[Any], run: Run, *, is_streamed: bool, max_turns: int = 4, **options: Any
) -> list[Any]:
    """The whole conversation, once the model calls no more tools."""
    messages: list[Any] = [{"role": "system", "content": "You repair code."}, {"role": "user", "content": task}]
    for _ in range(max_turns):
        ask = _streamed if is_streamed else _plain
        message = ask(client, messages, tools, options)
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            text = run(call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    return messages


def _plain(client: OpenAI, messages: list[Any], tools: list[Any], options: dict[str, Any]) -> Any:
    answer = client.chat.completions.create(model="online-agent", messages=messages, tools=tools, **options)
    return answer.choices[0].message.model_dump(exclude_none=True)


def _streamed(client: OpenAI, messages: list[Any], tools: list[Any], options: dict[str, Any]) -> Any:
    with client.chat.completions.stream(model="online-agent", messages=messages, tools=tools, **options) as stream:
        try:
            for _ in stream:
                pass
            completion = stream.get_final_completion()
        except LengthFinishReasonError as cut:  # what was said until then is said
            completion = cut.completion
        return completion.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})
