"""What happened on the way, placed on the axis of episodes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from online_agent.adaptation.segments import boundaries
from online_agent.store.records import ChangeRecord, EventRecord, SeriesPoint, VersionRecord
from online_agent.types import VersionOrigin

MarkerKind = Literal["version", "change", "reset", "rollback", "drift"]

RESET_EVENT = "ewma_reset"
DRIFT_EVENTS = ("drift_detected", "drift_cleared", "environment_change_confirmed", "model_degraded")


@dataclass(frozen=True, slots=True)
class Marker:
    """A version, change, reset, rollback or drift alarm; ``episode`` episodes had finished when it happened."""

    kind: MarkerKind
    label: str
    episode: int
    version: int | None


def markers(
    series: Sequence[SeriesPoint],
    versions: Sequence[VersionRecord],
    changes: Sequence[ChangeRecord],
    events: Sequence[EventRecord],
) -> list[Marker]:
    """All markers in order of time."""
    times = [point.finished_at for point in series]
    placed: list[tuple[float, Marker]] = []

    def place(at: float, kind: MarkerKind, label: str, version: int | None = None) -> None:
        placed.append((at, Marker(kind, label, bisect_right(times, at), version)))

    for version in versions:
        if version.served_at is None:
            continue
        if version.origin is VersionOrigin.ROLLBACK:
            place(version.served_at, "rollback", f"v{version.version} = v{version.parent}", version.version)
        else:
            place(version.served_at, "version", f"v{version.version}", version.version)
    for cut in boundaries(changes):
        place(cut.at, "change", f"{cut.change.kind} ended" if cut.is_end else cut.change.kind)
    for event in events:
        if event.kind == RESET_EVENT:
            place(event.at, "reset", _cause(event), event.version)
        elif event.kind in DRIFT_EVENTS:
            place(event.at, "drift", event.kind, event.version)
    return [marker for _, marker in sorted(placed, key=lambda each: each[0])]


def _cause(event: EventRecord) -> str:
    cause: Any = event.data.get("cause", "reset")
    return str(cause)
