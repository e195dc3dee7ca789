"""Feedback, and the rules by which it becomes a reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from online_agent.store.outliers import OutlierRule
from online_agent.types import FeedbackFate


class FeedbackRule(StrEnum):
    """How feedback and verdict become the training reward. Only the latest reward of each source counts.

    MEAN_WITH_VERDICT  weighted mean over the sources, the verdict being one of them, with the weight 1
    FEEDBACK_FIRST     weighted mean over the sources of feedback; the verdict only where there is none
    VERDICT_ONLY       feedback is kept and never used
    """

    MEAN_WITH_VERDICT = "mean_with_verdict"
    FEEDBACK_FIRST = "feedback_first"
    VERDICT_ONLY = "verdict_only"


@dataclass(frozen=True, slots=True)
class FeedbackNew:
    """``reward`` finite in [-1, 1], or ``text``, or both. ``turns`` names the turns it speaks of (empty: the whole).

    ``person``: who of the source it comes from, where the source has several. ``weight``: how much it counts beside
    other sources; 0 keeps it and never counts it.
    """

    source: str
    reward: float | None = None
    text: str | None = None
    turns: Sequence[int] = ()
    person: str | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class FeedbackCaps:
    """How many pieces of feedback one person of one source may have counted; what is above waits for an operator."""

    per_minute: int
    per_day: int


@dataclass(frozen=True, slots=True)
class FeedbackTrust:
    """What keeps feedback from counting before an operator has seen it; None asks nothing.

    ``burst_floor``: so many pieces of one source in a minute are no burst, however rare they were before.
    """

    caps: FeedbackCaps | None = None
    burst_floor: int | None = None
    outliers: OutlierRule | None = None


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
    person: str | None = None
    weight: float = 1.0
