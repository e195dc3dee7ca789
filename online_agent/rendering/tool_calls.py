"""Tool calls in the Hermes/Qwen form: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson

from online_agent.rendering.decoding import without_nul
from online_agent.types import ToolCall

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"
MAX_NAME_CHARS = 256
MAX_DEPTH = 20
"""Limits of a call that can be stored, and handed back in a client's history (a body has at most 32 levels)."""


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
    return checked_call(call.get("name"), call.get("arguments", {}))


def checked_call(name: Any, arguments: Any) -> ToolCall:
    """The call if it can be stored and handed back in a history; else what is wrong with it, as ``error``."""
    if not isinstance(name, str) or not name:
        return ToolCall(name="", error='the tool call needs a "name"')
    if len(name) > MAX_NAME_CHARS:
        return ToolCall(name="", error=f"the name of the tool call is longer than {MAX_NAME_CHARS} characters")
    name = without_nul(name)
    if isinstance(arguments, str):
        # Some model families write the arguments as JSON inside a string.
        with suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments)
    if not isinstance(arguments, dict):
        return ToolCall(name=name, error=f"the arguments of {name} must be a JSON object, not {_json_type(arguments)}")
    if not _is_within(arguments, MAX_DEPTH):
        return ToolCall(name=name, error=f"the arguments of {name} are nested deeper than {MAX_DEPTH} levels")
    return ToolCall(name=name, arguments=_written_without_nul(arguments))


def _is_within(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested at most so deep."""
    if isinstance(value, dict):
        return levels > 0 and all(_is_within(item, levels - 1) for item in value.values())
    if isinstance(value, list):
        return levels > 0 and all(_is_within(item, levels - 1) for item in value)
    return True


def _written_without_nul(value: Any) -> Any:
    """The same value; JSON can spell NUL (``\\u0000``) where the sampled text has none."""
    if isinstance(value, str):
        return without_nul(value)
    if isinstance(value, dict):
        return {without_nul(key): _written_without_nul(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_written_without_nul(item) for item in value]
    return value


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    return {str: "a string", list: "a list", bool: "a boolean", dict: "an object"}.get(type(value), "a number")
