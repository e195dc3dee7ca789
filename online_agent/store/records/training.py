"""Weight versions, learner steps and the control row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from online_agent.store.records.json import Json
from online_agent.types import StepStatus, VersionOrigin, VersionState


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
