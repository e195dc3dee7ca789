"""Which alteration of its tools each episode ran under.

An episode keeps the environment it started with, so episodes under way when a change takes hold finish after it and
still belong before it. The environment revision they store tells them apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from online_agent.store.records import ChangeRecord, SeriesPoint


@dataclass(frozen=True, slots=True)
class Boundary:
    """The moment at which ``change`` took hold, or ended (``is_end``)."""

    at: float
    change: ChangeRecord
    is_end: bool


def boundaries(changes: Sequence[ChangeRecord]) -> list[Boundary]:
    """Every start and end of a change that happened, in order of time."""
    starts = [Boundary(c.activated_at, c, False) for c in changes if c.activated_at is not None]
    # A change that was reverted while pending never altered anything.
    ends = [Boundary(c.ended_at, c, True) for c in changes if c.ended_at is not None and c.activated_at is not None]
    return sorted([*starts, *ends], key=lambda boundary: boundary.at)


def split_at(series: Sequence[SeriesPoint], cuts: Sequence[Boundary]) -> list[list[SeriesPoint]]:
    """len(cuts) + 1 lists: the episodes before the first boundary, between each two, and after the last.

    An episode that finished in one stretch with the revision of the stretch before it is counted there. The revision
    of a stretch is that of its last episode.
    """
    times = [cut.at for cut in cuts]
    spans: list[list[SeriesPoint]] = [[] for _ in range(len(cuts) + 1)]
    for point in series:
        spans[bisect_right(times, point.finished_at)].append(point)
    stretches: list[list[SeriesPoint]] = [list(spans[0])]
    for before, span in pairwise(spans):
        late = before[-1].env_revision if before and before[-1].env_revision != _last_revision(span) else None
        stretches[-1].extend(point for point in span if point.env_revision == late)
        stretches.append([point for point in span if point.env_revision != late])
    return stretches


def _last_revision(span: Sequence[SeriesPoint]) -> str | None:
    return span[-1].env_revision if span else None
