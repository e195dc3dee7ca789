"""What SGLang's parsers read: ``POST /parse_function_call`` with a text, its tools and the name of a parser.

The server's parsers are the maintained ones and need no tokenizer there; importing them would bring torch into the
request path.
"""

from __future__ import annotations

from typing import Any

from online_agent.errors import EngineProtocolError
from online_agent.rendering.tool_calls import checked_call
from online_agent.types import ToolCall


def parsed_calls(answer: Any, url: str) -> list[ToolCall]:
    """The calls; one that cannot be stored or handed back carries ``error``. Raises EngineProtocolError."""
    try:
        return [checked_call(call["name"], call["parameters"]) for call in answer["calls"]]
    except (KeyError, TypeError) as error:
        raise EngineProtocolError(f"{url}: the answer holds no parsed calls") from error
