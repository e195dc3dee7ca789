"""Answers of ``/v1/weights``."""

from __future__ import annotations

from typing import Any, Self

from api.bodies import Answer
from online_agent.store.records import VersionEpisode, VersionRecord


class VersionOut(Answer):
    """A weight version. ``parent`` is what it was trained from, or what a rollback restored."""

    version: int
    parent: int | None
    step: int | None
    state: str
    reason: str | None
    origin: str
    content_hash: str
    recipe: str
    is_pinned: bool
    is_rolled_back: bool
    created_at: float
    served_at: float | None

    @classmethod
    def of(cls, record: VersionRecord, **more: Any) -> Self:
        return cls(
            version=record.version,
            parent=record.parent,
            step=record.step,
            state=record.state,
            reason=record.state_reason,
            origin=record.origin,
            content_hash=record.content_hash,
            recipe=record.recipe,
            is_pinned=record.is_pinned,
            is_rolled_back=record.is_rolled_back,
            created_at=record.created_at,
            served_at=record.served_at,
            **more,
        )


class VersionDetail(VersionOut):
    """With the metrics of the step that made it and the SHA-256 of its files; ``files`` is null when pruned."""

    config_hash: str
    metrics: dict[str, Any]
    files: dict[str, str] | None


class VersionList(Answer):
    """Newest first."""

    data: list[VersionOut]
    next_cursor: str | None
    serving: int | None


class TrainedEpisode(Answer):
    id: str
    reward: float
    is_erased: bool

    @classmethod
    def of(cls, episode: VersionEpisode) -> Self:
        return cls(id=episode.episode_id, reward=episode.reward, is_erased=episode.is_erased)


class VersionEpisodes(Answer):
    """Exactly which of the key's episodes the version was trained on, in the order of its batch."""

    version: int
    data: list[TrainedEpisode]


class VersionMoved(Answer):
    """``is_serving`` false: asked for, but not done within the wait; look at ``GET /v1/weights``."""

    version: int | None
    target: int
    is_serving: bool
