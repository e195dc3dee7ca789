"""What the demo writes down while it runs, all of it read from the HTTP API.

Success is 0 or 1 per episode; rates carry Wilson 95 % intervals; times are seconds since the demo started.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from online_agent.adaptation.intervals import wilson_interval

Mode = Literal["sampled", "greedy"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One measurement on held-out tasks under one frozen version."""

    name: str
    mode: Mode
    num_episodes: int
    num_successes: int
    version: int
    first_task: int
    at_episode: int

    @property
    def rate(self) -> float:
        return self.num_successes / self.num_episodes

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.num_successes, self.num_episodes)

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {**asdict(self), "rate": round(self.rate, 4), "interval_95": [round(low, 4), round(high, 4)]}


@dataclass(frozen=True, slots=True)
class LiveEpisode:
    """One finished training episode in the order it ended."""

    id: str
    is_success: bool
    version: int


@dataclass(frozen=True, slots=True)
class Marker:
    """Something that happened at a point of the live traffic: a version, change, reset or rollback."""

    kind: Literal["version", "change", "reset", "rollback", "drift"]
    label: str
    at_episode: int


@dataclass(slots=True)
class RequestLog:
    """Start and end (seconds, wall clock) of each request the demo made, and what failed."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    num_retried: int = 0

    def during(self, intervals: list[tuple[float, float]]) -> int:
        """Requests that were under way at some moment of one of the intervals."""
        return sum(any(start < high and end > low for low, high in intervals) for start, end in self.spans)


@dataclass(slots=True)
class Journal:
    """Everything the report is made of."""

    seed: int
    evaluations: dict[tuple[str, Mode], Evaluation] = field(default_factory=dict)
    live: list[LiveEpisode] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    requests: RequestLog = field(default_factory=RequestLog)
    accepted_ids: set[str] = field(default_factory=set)
    facts: dict[str, Any] = field(default_factory=dict)

    def mark(self, kind: Literal["version", "change", "reset", "rollback", "drift"], label: str) -> None:
        self.markers.append(Marker(kind, label, len(self.live)))

    def rate(self, name: str, mode: Mode = "sampled") -> float:
        return self.evaluations[name, mode].rate


def episodes_to_recover(live: list[bool], change_at: int, target_rate: float, window: int) -> int | None:
    """Live episodes after the change until a full window of them reaches the target rate; None if never."""
    after = live[change_at:]
    running = sum(after[:window])
    for end in range(window, len(after) + 1):
        if end > window:
            running += after[end - 1] - after[end - 1 - window]
        if running >= target_rate * window:
            return end
    return None
