"""An agent as its owner would write it with the official Anthropic library. It knows nothing of this service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anthropic import Anthropic

Run = Callable[[str, dict[str, Any]], str]


def solve(
    client: Anthropic, task: str, tools: list[Any], run: Run, *, is_streamed: bool, max_turns: int = 4, **options: Any
) -> list[Any]:
    """The whole conversation, once the model uses no more tools."""
    messages: list[Any] = [{"role": "user", "content": task}]
    asked = {"model": "online-agent", "system": "You repair code.", "tools": tools, **options}
    for _ in range(max_turns):
        if is_streamed:
            with client.messages.stream(messages=messages, **asked) as stream:
                answer = stream.get_final_message()
        else:
            answer = client.messages.create(messages=messages, **asked)
        messages.append({"role": "assistant", "content": answer.content})
        uses = [block for block in answer.content if block.type == "tool_use"]
        if not uses:
            break
        results = [
            {"type": "tool_result", "tool_use_id": use.id, "content": run(use.name, dict(use.input))} for use in uses
        ]
        messages.append({"role": "user", "content": results})
    return messages
