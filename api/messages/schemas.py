"""Bodies of ``POST /v1/messages``, as the Anthropic protocol has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field

from api.gateway.contents import (
    MAX_STOPS,
    ProtocolBody,
    StopText,
    TextPart,
    TokenLimit,
    ToolName,
    TopP,
    tags_of,
    text_of,
    tool_spec,
)
from online_agent.errors import BadInput
from online_agent.gateway.calls import ChatCall, Choose, SamplingAsk, ToolChoice
from online_agent.rendering.messages import ChatMessage, SpokenCall

_MODES: dict[str, Choose] = {"auto": "auto", "any": "required", "none": "none"}
_FORGOTTEN = ("thinking", "redacted_thinking")
"""Blocks that clients hand back and that the stored ids hold already."""


class Block(ProtocolBody):
    """A part of a message. ``type`` says which of the others count."""

    type: Annotated[str, Field(max_length=100)]
    text: str | None = None
    id: str | None = None
    name: ToolName | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[TextPart] | None = None


class Message(ProtocolBody):
    role: Literal["user", "assistant"]
    content: str | list[Block]


class Tool(ProtocolBody):
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ChosenTool(ProtocolBody):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesBody(ProtocolBody):
    """A call of an Anthropic client. ``model`` is one of ``GET /v1/models``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "online-agent", "max_tokens": 8, "messages": [{"role": "user", "content": "2 + 2?"}]}
            ]
        }
    )

    model: Annotated[str, Field(min_length=1, max_length=256)]
    max_tokens: TokenLimit
    messages: Annotated[list[Message], Field(min_length=1)]
    system: str | list[TextPart] | None = None
    stream: bool | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    tools: list[Tool] | None = None
    tool_choice: ChosenTool | None = None
    metadata: dict[str, Any] | None = None

    def call(self, *, is_recorded: bool) -> ChatCall:
        """Raises BadInput naming the field that cannot be followed."""
        messages = [message for index, sent in enumerate(self.messages) for message in _messages(index, sent)]
        system = text_of(self.system, "system")
        return ChatCall(
            protocol="messages",
            model=self.model,
            messages=[ChatMessage("system", system), *messages] if system else messages,
            tools=[tool_spec(tool.name, tool.description, tool.input_schema) for tool in self.tools or []],
            tool_choice=self._choice(),
            sampling=SamplingAsk(
                self.temperature,
                self.top_p,
                self.max_tokens,
                tuple(self.stop_sequences or ()),
                {} if self.top_k is None else {"top_k": self.top_k},
            ),
            is_streamed=bool(self.stream),
            is_recorded=is_recorded,
            tags=tags_of(self.metadata),
        )

    def _choice(self) -> ToolChoice:
        if self.tool_choice is None:
            return ToolChoice()
        choice = self.tool_choice
        max_calls = 1 if choice.disable_parallel_tool_use else None
        if choice.type == "tool":
            if choice.name is None:
                raise BadInput("tool_choice of type 'tool' needs a name", param="tool_choice.name")
            return ToolChoice("required", choice.name, max_calls=1)
        return ToolChoice(_MODES[choice.type], max_calls=max_calls)


class CountBody(MessagesBody):
    """A call whose prompt is to be counted. It needs no limit: nothing is sampled."""

    max_tokens: TokenLimit = 1


def _messages(index: int, message: Message) -> list[ChatMessage]:
    if isinstance(message.content, str):
        return [ChatMessage(message.role, message.content)]
    where = f"messages[{index}].content"
    blocks = [block for block in message.content if block.type not in _FORGOTTEN]
    return [_assistant(blocks, where)] if message.role == "assistant" else _user(blocks, where)


def _assistant(blocks: list[Block], where: str) -> ChatMessage:
    text, calls = "", []
    for number, block in enumerate(blocks):
        if block.type == "tool_use" and block.name is not None:
            calls.append(SpokenCall(block.name, orjson.dumps(block.input or {}).decode()))
        else:
            text += _text(block, f"{where}[{number}]")
    return ChatMessage("assistant", text, tuple(calls))


def _user(blocks: list[Block], where: str) -> list[ChatMessage]:
    """Results of tools are messages of their own; texts that follow each other are one."""
    messages: list[ChatMessage] = []
    for number, block in enumerate(blocks):
        at = f"{where}[{number}]"
        if block.type == "tool_result":
            messages.append(ChatMessage("tool", text_of(block.content, f"{at}.content")))
        elif messages and messages[-1].role == "user":
            messages[-1] = ChatMessage("user", f"{messages[-1].text}\n{_text(block, at)}")
        else:
            messages.append(ChatMessage("user", _text(block, at)))
    return messages or [ChatMessage("user", "")]


def _text(block: Block, where: str) -> str:
    if block.type != "text" or block.text is None:
        raise BadInput(f"{where}: a block of type {block.type!r} cannot be read here", param=where)
    return block.text
