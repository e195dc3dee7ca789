"""Bodies of ``POST /v1/chat/completions``, as the OpenAI protocol has them.

Fields that would change what is sampled and that this service cannot follow are refused by name; all others that it
does not know are ignored, as clients send many.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field

from api.bodies import Answer
from api.gateway.contents import (
    MAX_STOPS,
    ProtocolBody,
    StopText,
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

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class CalledFunction(ProtocolBody):
    """``arguments`` is whatever the client kept of them: it need not be JSON."""

    name: ToolName
    arguments: str | dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else orjson.dumps(self.arguments or {}).decode()


class CalledTool(ProtocolBody):
    id: str | None = None
    function: CalledFunction


class Message(ProtocolBody):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    tool_calls: list[CalledTool] | None = None


class Function(ProtocolBody):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(ProtocolBody):
    type: Literal["function"] = "function"
    function: Function


class ChosenFunction(ProtocolBody):
    name: ToolName


class ChosenTool(ProtocolBody):
    type: Literal["function"]
    function: ChosenFunction


class StreamOptions(ProtocolBody):
    include_usage: bool = False


class JsonSchema(ProtocolBody):
    """``name`` and ``strict`` change nothing: the engine keeps to every schema that it takes."""

    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class ResponseFormat(ProtocolBody):
    type: Annotated[str, Field(max_length=100)]
    json_schema: JsonSchema | None = None

    def grammar(self) -> dict[str, Any]:
        """Raises BadInput, TooLarge."""
        schema = None if self.json_schema is None else self.json_schema.json_schema
        return grammar_of(self.type, schema, "response_format")


class ChatBody(ProtocolBody):
    """A call of an OpenAI client. ``model`` is one of ``GET /v1/models``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "online-agent", "messages": [{"role": "user", "content": "2 + 2?"}], "max_tokens": 8}
            ]
        }
    )

    model: Annotated[str, Field(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, float] | None = None
    functions: list[Any] | None = None
    metadata: dict[str, Any] | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def call(self, *, is_recorded: bool) -> ChatCall:
        """Raises BadInput naming the field that cannot be followed."""
        self._refuse_unsupported()
        tools = [tool_spec(t.function.name, t.function.description, t.function.parameters) for t in self.tools or []]
        return ChatCall(
            protocol="chat",
            model=self.model,
            messages=[_message(index, message) for index, message in enumerate(self.messages)],
            tools=tools,
            tool_choice=self._choice(),
            sampling=self._sampling(),
            num_choices=self.n or 1,
            num_top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            is_streamed=bool(self.stream),
            is_recorded=is_recorded,
            tags=tags_of(self.metadata),
        )

    def _refuse_unsupported(self) -> None:
        if self.logit_bias:
            raise BadInput("logit_bias is not supported", param="logit_bias")
        if self.functions:
            raise BadInput("functions are not supported: use tools", param="functions")
        if self.top_logprobs and not self.logprobs:
            raise BadInput("top_logprobs needs logprobs to be true", param="top_logprobs")

    def _choice(self) -> ToolChoice:
        max_calls = 1 if self.parallel_tool_calls is False else None
        if isinstance(self.tool_choice, ChosenTool):
            return ToolChoice("required", self.tool_choice.function.name, max_calls=1)
        return ToolChoice(self.tool_choice or "auto", max_calls=max_calls)

    def _sampling(self) -> SamplingAsk:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        more = {} if self.response_format is None else self.response_format.grammar()
        if self.seed is not None:
            more["sampling_seed"] = self.seed % 2**31
        for name in ("frequency_penalty", "presence_penalty"):
            if getattr(self, name):
                more[name] = getattr(self, name)
        return SamplingAsk(self.temperature, self.top_p, self.max_completion_tokens or self.max_tokens, stop, more)


class ModelOut(Answer):
    """A policy. ``weight_version`` is the one that serves now."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "online-agent"
    weight_version: int | None


class ModelList(Answer):
    object: Literal["list"] = "list"
    data: list[ModelOut]


def _message(index: int, message: Message) -> ChatMessage:
    role = _ROLES[message.role]
    calls = tuple(SpokenCall(call.function.name, call.function.text) for call in message.tool_calls or [])
    if calls and role != "assistant":
        where = f"messages[{index}].tool_calls"
        raise BadInput(f"{where}: only an assistant makes calls, not a {message.role}", param=where)
    return ChatMessage(role, text_of(message.content, f"messages[{index}].content"), calls)
