"""Parts of requests that the protocols share: what a text may be given as, and what tools look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from envs.types import ToolSpec
from online_agent.errors import BadInput, TooLarge
from online_agent.gateway.calls import GRAMMAR, ChatCall

MAX_TAG_BYTES = 16_384
MAX_SCHEMA_BYTES = 65_536
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
MAX_STOPS = 16

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TokenLimit = Annotated[int, Field(ge=1, le=10_000_000)]
StopText = Annotated[str, Field(min_length=1, max_length=1000)]
ToolName = Annotated[str, Field(min_length=1, max_length=256)]


class ProtocolBody(BaseModel):
    """A body of a protocol that others define: no silent conversions; fields we do not know change nothing."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class TextPart(ProtocolBody):
    """One part of a content. Only text can be read; ``type`` says what else it would be."""

    type: Annotated[str, Field(max_length=100)]
    text: str | None = None
    refusal: str | None = None


def text_of(content: str | list[TextPart] | None, param: str) -> str:
    """The text of a content given as string, parts or null. Raises BadInput for a part that is no text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            where = f"{param}[{index}]"
            raise BadInput(f"{where}: a part of type {part.type!r} cannot be read, only text can", param=where)
        texts.append(text)
    return "\n".join(texts)


def tool_spec(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> ToolSpec:
    return ToolSpec(name, description or "", parameters or {"type": "object", "properties": {}})


def tags_of(tags: Mapping[str, Any] | None) -> dict[str, Any]:
    """The client's own notes. Raises TooLarge."""
    if len(orjson.dumps(tags)) > MAX_TAG_BYTES:
        raise TooLarge(f"metadata has more than {MAX_TAG_BYTES} bytes of JSON", param="metadata")
    return dict(tags or {})


def grammar_of(kind: str, schema: Mapping[str, Any] | None, param: str) -> dict[str, Any]:
    """The engine's sampling parameters that hold an answer to a format; none for text. Raises BadInput, TooLarge."""
    if kind == "text":
        return {}
    if kind not in ("json_object", "json_schema"):
        raise BadInput(
            f"{param}.type: {kind!r} is no format of answers; there are text, json_object, json_schema", param=param
        )
    wanted = ANY_OBJECT if kind == "json_object" else schema
    if wanted is None:
        raise BadInput(f"{param}: the type json_schema needs a schema", param=param)
    text = orjson.dumps(wanted)
    if len(text) > MAX_SCHEMA_BYTES:
        raise TooLarge(f"{param}: the schema has more than {MAX_SCHEMA_BYTES} bytes of JSON", param=param)
    return {GRAMMAR: text.decode()}


def check_format(call: ChatCall, grammar_backend: str) -> None:
    """Raises BadInput for a format that this engine cannot hold the answer to."""
    if not call.has_grammar:
        return
    field = call.format_field
    if grammar_backend == "none":
        raise BadInput(
            f"{field}: this format needs a grammar, and the engine runs without one (engine.grammar_backend)",
            param=field,
        )
    if call.tools and call.tool_choice.mode != "none":
        raise BadInput(
            f"{field}: a format and tools exclude each other: a grammar leaves no room for a call "
            "(unless tool_choice is none)",
            param=field,
        )


def check_counts(call: ChatCall, *, max_messages: int, max_tools: int, max_choices: int) -> ChatCall:
    """The call, or BadInput naming the limit that it is over."""
    for count, limit, what, param in (
        (len(call.messages), max_messages, "messages", "messages"),
        (len(call.tools), max_tools, "tools", "tools"),
        (call.num_choices, max_choices, "choices", "n"),
    ):
        if count > limit:
            raise BadInput(f"{param}: {count} {what}, the limit is {limit} (gateway.max_{what})", param=param)
    if call.tool_choice.mode == "required" and not call.tools:
        raise BadInput("tool_choice asks for a call, but there are no tools", param="tool_choice")
    known = {tool.name for tool in call.tools}
    if call.tool_choice.name is not None and call.tool_choice.name not in known:
        raise BadInput(f"tool_choice names {call.tool_choice.name!r}, which is not in tools", param="tool_choice")
    return call
