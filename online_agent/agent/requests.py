"""What the runner takes, and what it tells while an episode runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from envs.changes import ChangedEnvironment
from envs.types import Observation, Task
from online_agent.store.records import TurnRecord
from online_agent.types import Limits, Sampling, SpanKind, ToolCall

EventKind = Literal["turn", "tool_call", "observation", "verdict", "done"]


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """``weight_version`` pins the episode to one version: it is refused, or fails, when another one serves.

    ``task`` came with the request, redacted, in the words of the environment without changes; None for one of the
    environment's own, which ``task_id`` names.
    """

    env: str
    task_id: str
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    weight_version: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    task: Task | None = None

    def task_in(self, environment: ChangedEnvironment) -> Task:
        """The task as the agent is shown it. Raises KeyError for one that does not exist."""
        return environment.task(self.task_id) if self.task is None else environment.documented(self.task)

    @property
    def untrainable_reason(self) -> str | None:
        """Why the engine's log-probs are not those of the distribution that was sampled, or None when they are."""
        if self.sampling.temperature == 0:
            return "sampled greedily (temperature 0)"
        if self.sampling.top_p < 1:
            return f"top_p {self.sampling.top_p:g}: the engine's log-probs are those before top-p"
        return None


@dataclass(frozen=True, slots=True)
class EpisodeEvent:
    """``data`` is JSON-able."""

    kind: EventKind
    data: dict[str, Any]


def turn_event(turn: int, text: str, finish_reason: str, num_tokens: int, versions: Sequence[int]) -> EpisodeEvent:
    data = {
        "turn": turn,
        "text": text,
        "finish_reason": finish_reason,
        "num_tokens": num_tokens,
        "weight_versions": list(versions),
    }
    return EpisodeEvent("turn", data)


def tool_call_event(turn: int, call: ToolCall) -> EpisodeEvent:
    data = {"turn": turn, "name": call.name, "arguments": dict(call.arguments), "error": call.error}
    return EpisodeEvent("tool_call", data)


def observation_event(turn: int, observation: Observation) -> EpisodeEvent:
    data = {
        "turn": turn,
        "text": observation.text,
        "is_error": observation.is_error,
        "is_final": observation.is_final,
    }
    return EpisodeEvent("observation", data)


def events_of(record: TurnRecord) -> Iterator[EpisodeEvent]:
    """What was told while the turn happened."""
    actions = [span for span in record.spans if span.kind is SpanKind.ACTION]
    versions = [run.version for span in actions for run in span.version_runs]
    num_tokens = sum(len(span.token_ids) for span in actions)
    yield turn_event(record.number, record.text, record.finish_reason, num_tokens, versions)
    for call, observation in zip(record.tool_calls, record.observations, strict=False):
        yield tool_call_event(record.number, call)
        yield observation_event(record.number, observation)
