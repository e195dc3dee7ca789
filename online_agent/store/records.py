"""What the store takes and returns: frozen dataclasses, never ORM objects.

``...New`` is what a caller hands in, ``...Record`` is a row as it was read. Times are unix seconds (float, UTC).
Checks that need no database are made by the repository that takes the value and raise BadInput naming it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

from envs.types import Artifact, Observation, Split, Verdict
from online_agent.types import (
    ChangeState,
    EpisodeStatus,
    FeedbackFate,
    Limits,
    Sampling,
    Scope,
    Span,
    StepStatus,
    StopReason,
    ToolCall,
    VersionOrigin,
    VersionState,
    Visibility,
)

Json = Mapping[str, Any]
RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True)
class Page(Generic[RecordT]):
    """One page, newest first. ``cursor`` asks for the next one; None at the end."""

    items: list[RecordT]
    cursor: str | None


# --- episodes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EpisodeNew:
    """An episode about to start. ``weight_version`` pins it to one version; ``task`` is set for a task given inline.

    ``untrainable_reason`` set here keeps the episode out of training from the start.
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


@dataclass(frozen=True, slots=True)
class TurnNew:
    """One engine call and what it led to. ``spans`` in token order (prompt or template, action, observations).

    ``number`` None takes the next one; a given number must be the next one (Conflict otherwise).
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


# --- feedback -------------------------------------------------------------------------------------------------------


class FeedbackRule(StrEnum):
    """How feedback and verdict become the training reward. Only the latest reward of each source counts.

    MEAN_WITH_VERDICT  mean over the sources, the verdict being one of them
    FEEDBACK_FIRST     mean over the sources of feedback; the verdict only where there is none
    VERDICT_ONLY       feedback is kept and never used
    """

    MEAN_WITH_VERDICT = "mean_with_verdict"
    FEEDBACK_FIRST = "feedback_first"
    VERDICT_ONLY = "verdict_only"


@dataclass(frozen=True, slots=True)
class FeedbackNew:
    """``reward`` finite in [-1, 1], or ``text``, or both. ``turns`` names the turns it speaks of (empty: the whole)."""

    source: str
    reward: float | None = None
    text: str | None = None
    turns: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class FeedbackRecord:
    id: int
    episode_id: str
    source: str
    reward: float | None
    text: str | None
    turns: tuple[int, ...]
    fate: FeedbackFate
    fate_reason: str | None
    step: int | None
    created_at: float


# --- weights and steps ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionNew:
    version: int
    origin: VersionOrigin
    parent: int | None = None
    step: int | None = None
    content_hash: str = ""
    config_hash: str = ""
    recipe: str = ""
    metrics: Json = field(default_factory=dict)
    state: VersionState = VersionState.CANDIDATE


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """``is_rolled_back``: a rollback went behind this version; nothing it sampled is trained on.

    ``served_at`` is the first time it served.
    """

    version: int
    origin: VersionOrigin
    parent: int | None
    step: int | None
    state: VersionState
    state_reason: str | None
    content_hash: str
    config_hash: str
    recipe: str
    metrics: Json
    is_pinned: bool
    is_rolled_back: bool
    created_at: float
    moved_at: float
    served_at: float | None


@dataclass(frozen=True, slots=True)
class VersionEpisode:
    """An episode that made a version, with the reward it was trained with. ``is_erased``: its row is gone."""

    episode_id: str
    position: int
    reward: float
    is_erased: bool


@dataclass(frozen=True, slots=True)
class StepNew:
    """A step about to work on its episodes, in the order given (the order is part of ``identity``)."""

    step: int
    episode_ids: Sequence[str]
    identity: str
    parent_version: int
    fence: int
    owner: str
    lease_s: float
    recipe: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StepRecord:
    step: int
    status: StepStatus
    identity: str
    recipe: str
    seed: int
    parent_version: int
    version: int | None
    fence: int
    owner: str
    num_episodes: int
    reason: str | None
    metrics: Json
    reserved_at: float
    expires_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class ResetRequest:
    cause: str
    requested_at: float


@dataclass(frozen=True, slots=True)
class Control:
    """The learner's one row. ``current_version`` is what it must continue from; ``fence`` rises on every rollback."""

    fence: int
    is_paused: bool
    current_version: int | None
    reset_request: ResetRequest | None


# --- changes, events, detectors -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangeNew:
    """A change to inject. Episode counts are of episodes finished in ``env`` since the injection.

    ``starts_after_episodes`` 0 means now; ``ends_after_episodes`` None means until reverted.
    """

    tenant_id: str
    env: str
    kind: str
    params: Json
    visibility: Visibility
    starts_after_episodes: int = 0
    ends_after_episodes: int | None = None
    is_mid_episode: bool = False


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """``starts_at_count`` and ``ends_at_count`` are totals of episodes finished in ``env``."""

    id: str
    tenant_id: str
    env: str
    kind: str
    params: Json
    visibility: Visibility
    is_mid_episode: bool
    state: ChangeState
    starts_at_count: int
    ends_at_count: int | None
    created_at: float
    activated_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class EventRecord:
    id: int
    kind: str
    data: Json
    version: int | None
    step: int | None
    at: float


# --- keys, idempotency, processes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key without its secret, which is shown once and never stored."""

    id: str
    tenant_id: str
    name: str
    scopes: frozenset[Scope]
    created_at: float
    revoked_at: float | None


@dataclass(frozen=True, slots=True)
class Fresh:
    """The caller owns this key now and does the work; it must ``finish`` or ``release``."""

    kind: Literal["fresh"] = "fresh"


@dataclass(frozen=True, slots=True)
class Done:
    """The work was done: answer with this. ``body`` is the JSON value the first answer had."""

    status: int
    body: Any
    kind: Literal["done"] = "done"


@dataclass(frozen=True, slots=True)
class Running:
    """A twin is at work: wait or answer 409 with Retry-After."""

    retry_after_s: float
    kind: Literal["running"] = "running"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used with another route or body: 409."""

    route: str
    kind: Literal["mismatch"] = "mismatch"


Idempotency = Fresh | Done | Running | Mismatch


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The last heartbeat of a process. ``incarnation`` changes with each start."""

    name: str
    pid: int
    incarnation: str
    info: Json
    at: float
