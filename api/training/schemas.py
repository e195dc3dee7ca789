"""Answers of ``/v1/training``."""

from __future__ import annotations

from typing import Any, Literal, Self

from api.bodies import Answer
from online_agent.store.records import StepRecord


class StepOut(Answer):
    """One learner step; a skipped one has a reason and no version."""

    step: int
    status: str
    parent_version: int
    version: int | None
    reason: str | None
    num_episodes: int
    metrics: dict[str, Any]
    reserved_at: float
    ended_at: float | None

    @classmethod
    def of(cls, record: StepRecord) -> Self:
        return cls(
            step=record.step,
            status=record.status,
            parent_version=record.parent_version,
            version=record.version,
            reason=record.reason,
            num_episodes=record.num_episodes,
            metrics=dict(record.metrics),
            reserved_at=record.reserved_at,
            ended_at=record.ended_at,
        )


class TrainingOut(Answer):
    """``num_ready`` episodes wait for a step (graded, trainable, not held out), ``num_ungraded`` for their verdict.

    ``group_size`` is set for a ``recipe`` that compares the rollouts of a group: only whole groups are ready then.
    ``queue`` counts all episodes by status; ``steps`` are the last few, newest first.
    """

    state: Literal["paused", "stepping", "waiting"]
    is_paused: bool
    current_version: int | None
    serving_version: int | None
    recipe: str
    group_size: int | None
    batch_episodes: int
    max_staleness_versions: int
    num_ready: int
    num_ungraded: int
    queue: dict[str, int]
    drops_by_reason: dict[str, int]
    episodes_trained_twice: int
    steps_committed: int
    steps: list[StepOut]


class StepList(Answer):
    """Newest first."""

    data: list[StepOut]
    next_cursor: str | None


class PauseOut(Answer):
    is_paused: bool
