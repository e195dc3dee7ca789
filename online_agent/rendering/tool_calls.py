"""Tool calls in the Hermes/Qwen form: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson

from online_agent.types import ToolCall

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"


def parse_tool_calls(text: str) -> list[ToolCall]:
    """Every call in the text, in order; one that cannot be read carries ``error`` and must not be run.

    A call whose closing tag is missing is read when its JSON is whole, and is an error otherwise. Never raises.
    """
    return [_parse_body(chunk.split(CLOSE_TAG, 1)[0]) for chunk in text.split(OPEN_TAG)[1:]]


def _parse_body(body: str) -> ToolCall:
    try:
        call = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return ToolCall(name="", error=f"the tool call is not valid JSON: {error}")
    if not isinstance(call, dict):
        return ToolCall(name="", error=f"the tool call must be a JSON object, not {_json_type(call)}")
    name = call.get("name")
    if not isinstance(name, str) or not name:
        return ToolCall(name="", error='the tool call needs a "name"')
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        # Some model families write the arguments as JSON inside a string.
        with suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments)
    if not isinstance(arguments, dict):
        return ToolCall(name=name, error=f"the arguments of {name} must be a JSON object, not {_json_type(arguments)}")
    return ToolCall(name=name, arguments=arguments)


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    return {str: "a string", list: "a list", bool: "a boolean", dict: "an object"}.get(type(value), "a number")
