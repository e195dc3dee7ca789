"""Spans of what the served model does: its answers, the episodes it works on, the tools it calls. No contents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind
from opentelemetry.util.types import AttributeValue

from online_agent.telemetry import conventions as names
from online_agent.telemetry import tracing
from online_agent.types import Generation, Sampling

UNKNOWN_TOOL = "unknown"
"""A tool that is not offered: what the model called it is its own text, and stays out of the trace."""
TOOL_ERROR = "tool_error"

_MORE = {
    "sampling_seed": names.REQUEST_SEED,
    "frequency_penalty": names.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": names.REQUEST_PRESENCE_PENALTY,
}
"""Sampling parameters under the engine's names that the conventions have a name for."""


@contextmanager
def chat_span(
    model: str,
    sampling: Sampling,
    conversation_id: str | None,
    *,
    more: Mapping[str, Any] | None = None,
    num_choices: int = 1,
    is_streamed: bool = False,
) -> Iterator[Span]:
    """``chat {model}``: the engine samples inside the block. ``answered`` adds what came of it."""
    if not tracing.is_on():
        yield INVALID_SPAN
        return
    attributes: dict[str, AttributeValue] = {
        names.OPERATION: "chat",
        names.PROVIDER: names.SGLANG,
        names.REQUEST_MODEL: model,
        names.REQUEST_TEMPERATURE: sampling.temperature,
        names.REQUEST_TOP_P: sampling.top_p,
        names.REQUEST_MAX_TOKENS: sampling.max_new_tokens,
    }
    if conversation_id is not None:
        attributes[names.CONVERSATION_ID] = conversation_id
    if num_choices > 1:
        attributes[names.REQUEST_CHOICES] = num_choices
    if more is not None and "json_schema" in more:
        attributes[names.OUTPUT_TYPE] = "json"
    if is_streamed:
        attributes[names.REQUEST_STREAM] = True
    for key, name in _MORE.items():
        if more is not None and key in more:
            attributes[name] = more[key]
    with tracing.span(f"chat {model}", attributes, kind=SpanKind.CLIENT) as span:
        yield span


def answered(
    span: Span,
    model: str,
    generations: Sequence[Generation],
    finish_reasons: Sequence[str],
    num_prompt_tokens: int,
    response_id: str | None = None,
) -> None:
    """The span of a chat tells which version answered, how long the answer is and why it ended."""
    if not span.is_recording():
        return
    versions = sorted({run.version for made in generations for run in made.version_runs})
    span.set_attributes(
        {
            names.FINISH_REASONS: list(finish_reasons),
            names.INPUT_TOKENS: num_prompt_tokens,
            names.OUTPUT_TOKENS: sum(len(made.token_ids) for made in generations),
            names.CACHED_TOKENS: min(made.num_cached_tokens for made in generations),
        }
    )
    if versions:
        span.set_attribute(names.RESPONSE_MODEL, f"{model}@{versions[-1]}")
        span.set_attribute(names.WEIGHT_VERSIONS, versions)
    if response_id is not None:
        span.set_attribute(names.RESPONSE_ID, response_id)


@contextmanager
def agent_span(model: str, episode_id: str, env: str, task_id: str) -> Iterator[Span]:
    """``invoke_agent {model}``: the served agent works on a task inside the block."""
    attributes = {
        names.OPERATION: "invoke_agent",
        names.PROVIDER: names.SGLANG,
        names.AGENT_NAME: model,
        names.REQUEST_MODEL: model,
        names.CONVERSATION_ID: episode_id,
        names.ENV: env,
        names.TASK: task_id,
    }
    with tracing.span(f"invoke_agent {model}", attributes) as span:
        yield span


@contextmanager
def tool_span(name: str, *, is_offered: bool) -> Iterator[Span]:
    """``execute_tool {name}``: a tool runs inside the block."""
    shown = name if is_offered else UNKNOWN_TOOL
    attributes = {names.OPERATION: "execute_tool", names.TOOL_NAME: shown, names.TOOL_TYPE: "function"}
    with tracing.span(f"execute_tool {shown}", attributes) as span:
        yield span
