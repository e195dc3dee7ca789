"""Tools as chat templates expect them, their hash, and the section for templates that know no tools."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

from envs.types import ToolSpec

_SECTION_HEAD = "You can call these tools, described one JSON schema a line inside <tools></tools>:\n<tools>\n"
_SECTION_TAIL = (
    "\n</tools>\nTo call one, write a JSON object with its name and arguments between tags:\n"
    '<tool_call>\n{"name": "<tool>", "arguments": {"<argument>": "<value>"}}\n</tool_call>'
)


def tool_schemas(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """The function-calling form that Hugging Face chat templates are written for."""
    return [
        {
            "type": "function",
            "function": {"name": t.name, "description": t.description, "parameters": dict(t.parameters)},
        }
        for t in tools
    ]


def tool_schema_hash(tools: Sequence[ToolSpec]) -> str:
    """16 hex digits that change with any name, description, argument or their order."""
    return hashlib.sha256(orjson.dumps(tool_schemas(tools))).hexdigest()[:16]


def tool_section(tools: Sequence[ToolSpec]) -> str:
    """System text that tells a model about its tools when its chat template does not."""
    lines = (orjson.dumps(schema).decode() for schema in tool_schemas(tools))
    return _SECTION_HEAD + "\n".join(lines) + _SECTION_TAIL
