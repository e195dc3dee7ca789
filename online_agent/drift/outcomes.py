"""What the detectors look at: two signals of each graded live episode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from online_agent.store.records import SeriesPoint

# Two means differ when they are this far apart, in units of the signal and of the standard error of the difference.
MIN_SHIFT = 0.1
MIN_STANDARD_ERRORS = 3.0
# Keeps the standard error of a handful of equal values above 0.
_VARIANCE_FLOOR = 0.01


class Outcome(NamedTuple):
    """``reward`` in [-1, 1]; ``tool_errors`` the share of failed tool calls, None without calls; ``version`` newest."""

    reward: float
    tool_errors: float | None
    version: int

    @classmethod
    def of(cls, point: SeriesPoint) -> Outcome:
        calls = point.num_tool_calls
        version = -1 if point.newest_version is None else point.newest_version
        return cls(point.reward, point.num_tool_errors / calls if calls else None, version)


def rewards(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome.reward for outcome in outcomes]


def tool_errors(outcomes: Sequence[Outcome]) -> list[float]:
    """The shares of the episodes that called a tool."""
    return [outcome.tool_errors for outcome in outcomes if outcome.tool_errors is not None]


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return math.fsum(values) / len(values) if values else 0.0


def has_risen(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether the mean rose by MIN_SHIFT and by MIN_STANDARD_ERRORS of the difference. False without values."""
    if not before or not after:
        return False
    rise = mean(after) - mean(before)
    error = math.sqrt(_variance(before) / len(before) + _variance(after) / len(after))
    return rise >= MIN_SHIFT and rise >= MIN_STANDARD_ERRORS * error


def has_fallen(before: Sequence[float], after: Sequence[float]) -> bool:
    return has_risen([-value for value in before], [-value for value in after])


def _variance(values: Sequence[float]) -> float:
    centre = mean(values)
    return max(_VARIANCE_FLOOR, mean([(value - centre) ** 2 for value in values]))
