"""One call of a client and its answer, without the shape of any one protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from envs.types import ToolSpec
from online_agent.gateway.answer_reader import AnswerText
from online_agent.gateway.markup import Fragment
from online_agent.rendering.messages import ChatMessage

Protocol = Literal["chat", "messages", "responses"]
Choose = Literal["auto", "none", "required"]
Finish = Literal["stop", "stop_string", "length", "tool_calls", "cancelled"]


GRAMMAR = "json_schema"
"""The engine's sampling parameter that holds an answer to a JSON schema, given as text."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which calls the answer may hold. ``name`` with ``required`` asks for that tool."""

    mode: Choose = "auto"
    name: str | None = None
    max_calls: int | None = None


@dataclass(frozen=True, slots=True)
class SamplingAsk:
    """What the client said of sampling; None leaves it to the configuration. ``more`` goes to the engine as it is."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """``num_top_logprobs`` None: the client wants no log-probs. ``tags`` are stored and never interpreted.

    ``previous`` is the id of the answer that ``messages`` follow; None when they are the whole history.
    """

    protocol: Protocol
    model: str
    messages: Sequence[ChatMessage]
    tools: Sequence[ToolSpec] = ()
    tool_choice: ToolChoice = ToolChoice()
    sampling: SamplingAsk = SamplingAsk()
    num_choices: int = 1
    num_top_logprobs: int | None = None
    previous: str | None = None
    is_streamed: bool = False
    is_recorded: bool = True
    tags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads_calls(self) -> bool:
        """Whether its answer may hold tool calls."""
        return bool(self.tools) and self.tool_choice.mode != "none"

    @property
    def has_grammar(self) -> bool:
        return GRAMMAR in self.sampling.more

    @property
    def format_field(self) -> str:
        """Where the protocol's clients ask for a format."""
        return "text.format" if self.protocol == "responses" else "response_format"


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose call it is. ``episode`` and ``parent`` are ids or names as the client sent them."""

    tenant_id: str
    key_id: str | None
    episode: str | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token. ``logprob`` is NaN where the engine gave none."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What was added to choice ``choice``."""

    choice: int
    fragments: list[Fragment]
    logprobs: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class Usage:
    """``completion_tokens`` are the sampled ids of all choices, as they are stored."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """``turn`` is None where nothing was stored."""

    index: int
    answer: AnswerText
    finish: Finish
    logprobs: list[TokenLogprob]
    weight_version: int | None
    turn: int | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where an answer is stored. ``episode_id`` and ``turn`` are None when the client asked not to record it."""

    completion_id: str
    episode_id: str | None
    turn: int | None
    weight_version: int | None

    def to_json(self) -> dict[str, Any]:
        return {
            "completion_id": self.completion_id,
            "episode_id": self.episode_id,
            "turn": self.turn,
            "weight_version": self.weight_version,
        }


@dataclass(frozen=True, slots=True)
class CallAnswer:
    receipt: Receipt
    choices: list[ChoiceAnswer]
    usage: Usage
    created_at: float
