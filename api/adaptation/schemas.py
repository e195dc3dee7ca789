"""Answers of ``/v1/adaptation`` and ``/v1/drift``."""

from __future__ import annotations

from typing import Any

from api.bodies import Answer
from api.events.schemas import EventOut


class RateOut(Answer):
    """``num_successes`` of ``n`` episodes with the Wilson 95 % interval; rate and interval are null when n is 0."""

    n: int
    num_successes: int
    rate: float | None
    low: float | None
    high: float | None


class PointOut(Answer):
    """The success rate over the window of episodes that ends with number ``episode`` (from 1)."""

    episode: int
    rate: RateOut


class MarkerOut(Answer):
    """A version, change, reset, rollback or drift alarm; ``episode`` episodes had finished when it happened."""

    kind: str
    label: str
    episode: int
    version: int | None


class ChangeEffectOut(Answer):
    """Success around one change. ``episodes_to_recover``: null while it has not."""

    change_id: str
    kind: str
    visibility: str
    episode: int
    before: RateOut
    after: RateOut
    latest: RateOut
    episodes_to_recover: int | None


class VersionRateOut(Answer):
    version: int
    rate: RateOut


class AdaptationOut(Answer):
    """Live episodes of the tenant in one environment."""

    env: str
    window: int
    num_episodes: int
    points: list[PointOut]
    markers: list[MarkerOut]
    changes: list[ChangeEffectOut]
    versions: list[VersionRateOut]


class DetectorOut(Answer):
    name: str
    state: dict[str, Any]


class DriftOut(Answer):
    """Alarms and resets are the newest first."""

    detectors: list[DetectorOut]
    alarms: list[EventOut]
    resets: list[EventOut]
