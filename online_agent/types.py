"""The shared words. One word per concept; no torch, no database.

Episode   one task from first prompt to verdict
Turn      one engine call and the observations it led to
Span      a run of tokens of one kind; actions carry log-probs and the weight version of each sub-run
Version   a monotone integer naming published weights (a rollback is a new number with an equal content hash)
Staleness current version minus the oldest version in the episode, in versions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from online_agent.errors import MisalignedEpisode

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
RoutedExperts = npt.NDArray[np.uint8]
"""(T, L, K): the K experts of each of L mixture layers that the engine used to compute the state at each token."""


class EpisodeStatus(StrEnum):
    """open → finished → graded → reserved → trained | dropped, or failed for outages."""

    OPEN = "open"
    FINISHED = "finished"
    GRADED = "graded"
    RESERVED = "reserved"
    TRAINED = "trained"
    DROPPED = "dropped"
    FAILED = "failed"


class StopReason(StrEnum):
    """Why an episode ended. The agent's own limits are results; outages are not (status failed).

    A client's own episode is closed by the client, or idle for so long that it counts as over.
    """

    SUBMITTED = "submitted"
    NO_TOOL_CALL = "no_tool_call"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    CLOSED = "closed"
    IDLE = "idle"
    OUTAGE = "outage"


class SpanKind(StrEnum):
    PROMPT = "prompt"
    ACTION = "action"
    OBSERVATION = "observation"
    TEMPLATE = "template"


class VersionState(StrEnum):
    """candidate → loading → verified → serving → retired, or rejecting → rejected."""

    CANDIDATE = "candidate"
    LOADING = "loading"
    VERIFIED = "verified"
    SERVING = "serving"
    RETIRED = "retired"
    REJECTING = "rejecting"
    REJECTED = "rejected"


class VersionOrigin(StrEnum):
    SEED = "seed"
    STEP = "step"
    ROLLBACK = "rollback"


class StepStatus(StrEnum):
    """reserved → committed | skipped | fenced | abandoned. A skipped step is a row with a reason."""

    RESERVED = "reserved"
    COMMITTED = "committed"
    SKIPPED = "skipped"
    FENCED = "fenced"
    ABANDONED = "abandoned"


class Scope(StrEnum):
    AGENT = "agent"
    OPERATOR = "operator"
    ADMIN = "admin"


class Visibility(StrEnum):
    DOCUMENTED = "documented"
    SILENT = "silent"


class ChangeState(StrEnum):
    PENDING = "pending"
    ACTIVE = "active"
    ENDED = "ended"


class FeedbackFate(StrEnum):
    ACCEPTED = "accepted"
    USED = "used"
    LATE = "late"
    DUPLICATE = "duplicate"
    QUARANTINED = "quarantined"


class AnswerKind(StrEnum):
    """What an answer to a client amounts to. TEXT where tools were offered does nothing; so does EMPTY."""

    CALL = "call"
    BROKEN_CALL = "broken_call"
    TEXT = "text"
    REFUSAL = "refusal"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class VersionRun:
    """Tokens [start, end) of an action span were sampled under ``version``."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings that produced the tokens; stored with each episode, since lp_mu depends on them."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 64


@dataclass(frozen=True, slots=True)
class Limits:
    max_turns: int = 6
    max_tokens: int = 512
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens of one kind inside turn ``turn``.

    token_ids (T,) int32; logprobs (T,) float32 for actions, None otherwise;
    version_runs cover [0, T) without gap or overlap for actions, empty otherwise.
    """

    kind: SpanKind
    turn: int
    token_ids: Int32Array
    logprobs: Float32Array | None = None
    version_runs: tuple[VersionRun, ...] = ()

    def check(self) -> None:
        """Raise MisalignedEpisode unless ids, log-probs and version runs line up."""
        num = len(self.token_ids)
        if self.kind is not SpanKind.ACTION:
            if self.logprobs is not None or self.version_runs:
                raise MisalignedEpisode(f"{self.kind} span of turn {self.turn} carries log-probs or versions")
            return
        if self.logprobs is None or len(self.logprobs) != num:
            got = "none" if self.logprobs is None else str(len(self.logprobs))
            raise MisalignedEpisode(f"turn {self.turn}: {num} action ids but {got} log-probs")
        is_finite = np.isfinite(self.logprobs)
        if not is_finite.all():
            bad = int(is_finite.argmin())
            raise MisalignedEpisode(f"turn {self.turn}: log-prob at action position {bad} is not finite")
        if num and self.logprobs.max() > 1e-3:
            raise MisalignedEpisode(f"turn {self.turn}: log-prob {float(self.logprobs.max())} is above 0")
        position = 0
        for run in self.version_runs:
            if run.start != position or run.end < run.start:
                raise MisalignedEpisode(f"turn {self.turn}: version runs leave a gap at {position}: {run}")
            position = run.end
        if position != num:
            raise MisalignedEpisode(f"turn {self.turn}: version runs cover {position} of {num} action ids")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One parsed call. ``error`` is set when the text looked like a call but could not be read."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """What the engine returned for one call: ids and log-probs of equal length, exact version runs.

    ``misalignment`` says what does not line up (a log-prob sent as null stays NaN, counts stay as they came): the
    text can be used, the episode cannot be trained on. ``routed_experts`` covers prompt and answer from the first token
    asked for to the last but one (the state at the last was not computed); None where the model has no experts, or the
    engine returned none or not as many.
    ``top_logprobs`` are, per sampled id, the likeliest ids as [log-prob, id, ...]; empty unless asked for.
    """

    token_ids: Int32Array
    logprobs: Float32Array
    version_runs: tuple[VersionRun, ...]
    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_retractions: int = 0
    misalignment: str | None = None
    routed_experts: RoutedExperts | None = None
    top_logprobs: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingEpisode:
    """One graded episode as the learner reads it.

    token_ids (T,) int32; action_mask (T,) bool; logprobs (T,) float32, 0 where not an action;
    versions (T,) int32, -1 where not an action. ``reward`` sits on the last action token.

    task_id and group_id name what it shares with others: the task, and the group of rollouts sampled together.
    routed_experts (T, L, K) uint8 where the engine returned them. old_logprobs (T,) float32, the trainer's log-prob of
    each action under the version that sampled it, NaN elsewhere and where it was not scored; None when none was.
    """

    id: str
    token_ids: Int32Array
    action_mask: npt.NDArray[np.bool_]
    logprobs: Float32Array
    versions: Int32Array
    reward: float
    temperature: float
    is_truncated: bool = False
    task_id: str = ""
    group_id: str | None = None
    routed_experts: RoutedExperts | None = None
    old_logprobs: Float32Array | None = None

    @property
    def episode_id(self) -> str:
        return episode_id_of(self.id)

    @property
    def oldest_version(self) -> int:
        return int(self.versions[self.action_mask].min())

    @property
    def num_action_tokens(self) -> int:
        return int(self.action_mask.sum())


def episode_id_of(row_id: str) -> str:
    """The episode of a training row: the segments of one are ``ep``, ``ep#1``, ``ep#2``."""
    return row_id.partition("#")[0]


def training_episode(
    episode_id: str, spans: Sequence[Span], reward: float, temperature: float, is_truncated: bool = False
) -> TrainingEpisode:
    """The spans of one segment, laid end to end. Raises MisalignedEpisode for rows that do not line up."""
    for span in spans:
        span.check()
    total = sum(len(s.token_ids) for s in spans)
    token_ids = np.empty(total, np.int32)
    mask = np.zeros(total, np.bool_)
    logprobs = np.zeros(total, np.float32)
    versions = np.full(total, -1, np.int32)
    at = 0
    for span in spans:
        end = at + len(span.token_ids)
        token_ids[at:end] = span.token_ids
        if span.kind is SpanKind.ACTION:
            assert span.logprobs is not None  # checked above
            mask[at:end] = True
            logprobs[at:end] = span.logprobs
            for run in span.version_runs:
                versions[at + run.start : at + run.end] = run.version
        at = end
    if not mask.any():
        raise MisalignedEpisode(f"episode {episode_id} has no action token")
    return TrainingEpisode(episode_id, token_ids, mask, logprobs, versions, reward, temperature, is_truncated)
