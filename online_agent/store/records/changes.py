"""Injected changes and events."""

from __future__ import annotations

from dataclasses import dataclass

from online_agent.store.records.json import Json
from online_agent.types import ChangeState, Visibility


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
