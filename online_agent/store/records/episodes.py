"""Episodes, their turns, the grading of them and their success over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from envs.types import Artifact, Observation, Split, Verdict
from online_agent.store.records.json import Json
from online_agent.types import EpisodeStatus, Limits, Sampling, Span, StopReason, ToolCall

RecordT = TypeVar("RecordT")
MAX_GROUP_SIZE = 64


@dataclass(frozen=True, slots=True)
class Page(Generic[RecordT]):
    """One page, newest first. ``cursor`` asks for the next one; None at the end."""

    items: list[RecordT]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class EpisodeNew:
    """An episode about to start. ``weight_version`` pins it to one version; ``task`` is set for a task given inline.

    ``untrainable_reason`` set here keeps the episode out of training from the start. ``id`` from ``new_episode_id``
    where it had to be known before the row; empty makes one. ``traceparent`` is the trace that asked for it.
    """

    tenant_id: str
    env: str
    task_id: str
    split: Split
    env_revision: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    template_hash: str = ""
    tools_hash: str = ""
    key_id: str | None = None
    weight_version: int | None = None
    task: Json | None = None
    metadata: Json = field(default_factory=dict)
    untrainable_reason: str | None = None
    id: str = ""
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One episode without its turns. ``step`` is the step it is reserved by or was trained in.

    ``oldest_version`` and ``newest_version`` span its action tokens; None before the first one.
    """

    id: str
    tenant_id: str
    key_id: str | None
    env: str
    task_id: str
    split: Split
    status: EpisodeStatus
    env_revision: str
    sampling: Sampling
    limits: Limits
    template_hash: str
    tools_hash: str
    weight_version: int | None
    task: Json | None
    metadata: Json
    artifact: Artifact | None
    verdict: Verdict | None
    stop_reason: StopReason | None
    failure_reason: str | None
    drop_reason: str | None
    untrainable_reason: str | None
    num_turns: int
    num_action_tokens: int
    num_tool_calls: int
    num_tool_errors: int
    oldest_version: int | None
    newest_version: int | None
    step: int | None
    created_at: float
    finished_at: float | None
    graded_at: float | None
    trained_at: float | None
    group_id: str | None
    group_size: int | None


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """Episodes of one task that were started together, in order of creation."""

    id: str
    episode_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TurnNew:
    """One engine call and what it led to. ``spans`` in token order (prompt or template, action, observations).

    ``number`` None takes the next one; a given number must be the next one (Conflict otherwise).
    ``routed_experts`` is packed, and stored as it is.
    """

    spans: Sequence[Span]
    env_revision: str = ""
    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    observations: Sequence[Observation] = ()
    finish_reason: str = ""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_retractions: int = 0
    latency_s: float = 0.0
    number: int | None = None
    routed_experts: bytes | None = None


@dataclass(frozen=True, slots=True)
class TurnRecord:
    episode_id: str
    number: int
    spans: list[Span]
    env_revision: str
    text: str
    tool_calls: list[ToolCall]
    observations: list[Observation]
    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_retractions: int
    latency_s: float
    created_at: float


@dataclass(frozen=True, slots=True)
class GradingClaim:
    """A finished episode leased to one grader until ``expires_at``. ``attempt`` counts from 1."""

    episode_id: str
    tenant_id: str
    env: str
    task_id: str
    task: Json | None
    artifact: Artifact | None
    attempt: int
    expires_at: float
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """What the learner could take now. ``num_ready``: graded, trainable, train split; staleness is not judged here."""

    num_ready: int
    num_ungraded: int
    oldest_ready_at: float | None


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """One graded episode of a success curve, in order of ``finished_at``."""

    episode_id: str
    finished_at: float
    split: Split
    reward: float
    is_success: bool
    oldest_version: int | None
    newest_version: int | None
    env_revision: str
    temperature: float
    num_turns: int
    num_action_tokens: int
    num_tool_calls: int
    num_tool_errors: int


@dataclass(frozen=True, slots=True)
class SeriesBucket:
    """``num_episodes`` consecutive graded episodes; the last bucket may hold fewer."""

    index: int
    num_episodes: int
    num_success: int
    mean_reward: float
    num_tool_calls: int
    num_tool_errors: int
    first_finished_at: float
    last_finished_at: float
