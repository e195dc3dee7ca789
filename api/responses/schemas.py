"""Bodies of ``POST /v1/responses``, as OpenAI's newer protocol has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from api.gateway.contents import (
    ProtocolBody,
    Temperature,
    TextPart,
    TokenLimit,
    ToolName,
    TopP,
    grammar_of,
    tags_of,
    text_of,
    tool_spec,
)
from online_agent.errors import BadInput
from online_agent.gateway.calls import ChatCall, SamplingAsk, ToolChoice
from online_agent.rendering.messages import ChatMessage, Role, SpokenCall

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class Item(ProtocolBody):
    """A part of the input. ``type`` (a message, if there is none) says which of the others count."""

    type: Annotated[str, Field(max_length=100)] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[TextPart] | None = None
    name: ToolName | None = None
    arguments: str | None = None
    output: str | list[TextPart] | None = None


class Tool(ProtocolBody):
    type: Annotated[str, Field(max_length=100)]
    name: ToolName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChosenTool(ProtocolBody):
    type: Literal["function"]
    name: ToolName


class Format(ProtocolBody):
    """``name`` and ``strict`` change nothing: the engine keeps to every schema that it takes."""

    type: Annotated[str, Field(max_length=100)]
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class TextOptions(ProtocolBody):
    format: Format | None = None


class ResponsesBody(ProtocolBody):
    """A call of an OpenAI client. ``previous_response_id`` goes on from a stored answer: only what is new is sent."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "online-agent", "input": "2 + 2?"}]})

    model: Annotated[str, Field(min_length=1, max_length=256)]
    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    stream: bool | None = None
    max_output_tokens: TokenLimit | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    metadata: dict[str, Any] | None = None

    def call(self, *, is_recorded: bool) -> ChatCall:
        """Raises BadInput naming the field that cannot be followed."""
        sent = [ChatMessage("user", self.input)] if isinstance(self.input, str) else _messages(self.input)
        return ChatCall(
            protocol="responses",
            model=self.model,
            messages=[ChatMessage("system", self.instructions), *sent] if self.instructions else sent,
            tools=[_tool(index, tool) for index, tool in enumerate(self.tools or [])],
            tool_choice=self._choice(),
            sampling=SamplingAsk(self.temperature, self.top_p, self.max_output_tokens, more=self._grammar()),
            previous=self.previous_response_id,
            is_streamed=bool(self.stream),
            is_recorded=is_recorded,
            tags=tags_of(self.metadata),
        )

    def _grammar(self) -> dict[str, Any]:
        form = None if self.text is None else self.text.format
        return {} if form is None else grammar_of(form.type, form.json_schema, "text.format")

    def _choice(self) -> ToolChoice:
        max_calls = 1 if self.parallel_tool_calls is False else None
        if isinstance(self.tool_choice, ChosenTool):
            return ToolChoice("required", self.tool_choice.name, max_calls=1)
        return ToolChoice(self.tool_choice or "auto", max_calls=max_calls)


def _tool(index: int, tool: Tool) -> Any:
    if tool.type != "function" or tool.name is None:
        where = f"tools[{index}]"
        raise BadInput(f"{where}: a tool of type {tool.type!r} is not run here, only functions are called", param=where)
    return tool_spec(tool.name, tool.description, tool.parameters)


def _messages(items: list[Item]) -> list[ChatMessage]:
    """One message per turn: a text and the calls that follow it are one answer of the assistant."""
    messages: list[ChatMessage] = []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        if item.type == "reasoning":
            continue  # the stored ids hold it already
        said = _message(item, where)
        last = messages[-1] if messages else None
        if said.role == "assistant" and last is not None and last.role == "assistant":
            messages[-1] = ChatMessage("assistant", last.text + said.text, (*last.calls, *said.calls))
        else:
            messages.append(said)
    return messages


def _message(item: Item, where: str) -> ChatMessage:
    if item.type == "message" and item.role is not None:
        return ChatMessage(_ROLES[item.role], text_of(item.content, f"{where}.content"))
    if item.type == "function_call" and item.name is not None:
        return ChatMessage("assistant", "", (SpokenCall(item.name, item.arguments or ""),))
    if item.type == "function_call_output":
        return ChatMessage("tool", text_of(item.output, f"{where}.output"))
    raise BadInput(f"{where}: an item of type {item.type!r} cannot be read here", param=where)
