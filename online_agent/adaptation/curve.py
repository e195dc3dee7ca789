"""Success against the number of episodes, by version, and around each change. Pure functions over records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from online_agent.adaptation.intervals import Rate, success_rate
from online_agent.adaptation.segments import boundaries, split_at
from online_agent.store.records import ChangeRecord, SeriesPoint

# Recovered means back at this share of the rate before the change.
RECOVERED_SHARE = 0.9
_MAX_POINTS = 500
_POINTS_PER_WINDOW = 8


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The success rate over the window of episodes that ends with number ``episode`` (from 1)."""

    episode: int
    rate: Rate


@dataclass(frozen=True, slots=True)
class VersionRate:
    version: int
    rate: Rate


@dataclass(frozen=True, slots=True)
class ChangeEffect:
    """Success around one change.

    before: the last ``window`` episodes before it, not reaching behind the change before.
    after: the first ``window`` episodes under it. latest: the last ``window`` of them, up to the next change.
    episode: number of episodes before it. episodes_to_recover: how many ran under it until the first whole window
    at RECOVERED_SHARE of ``before``; None while there is none, and when nothing succeeded before.
    """

    change_id: str
    kind: str
    visibility: str
    episode: int
    before: Rate
    after: Rate
    latest: Rate
    episodes_to_recover: int | None


def curve(series: Sequence[SeriesPoint], window: int) -> list[CurvePoint]:
    """Trailing success rates, several per window, at most about 500; the last one is at the last episode."""
    if not series:
        return []
    stride = max(1, window // _POINTS_PER_WINDOW, -(-len(series) // _MAX_POINTS))
    ends = [*range(stride, len(series), stride), len(series)]
    return [CurvePoint(end, _rate(series[max(0, end - window) : end])) for end in ends]


def version_rates(series: Sequence[SeriesPoint]) -> list[VersionRate]:
    """The rate of each version, in order of its number; an episode counts for the version it started with."""
    by_version: dict[int, list[SeriesPoint]] = defaultdict(list)
    for point in series:
        if point.oldest_version is not None:
            by_version[point.oldest_version].append(point)
    return [VersionRate(version, _rate(by_version[version])) for version in sorted(by_version)]


def change_effects(series: Sequence[SeriesPoint], changes: Sequence[ChangeRecord], window: int) -> list[ChangeEffect]:
    """What each change that took hold did to success, in order of time."""
    cuts = boundaries(changes)
    stretches = split_at(series, cuts)
    effects = []
    for index, cut in enumerate(cuts):
        if cut.is_end:
            continue
        earlier, under = stretches[index], stretches[index + 1]
        before = _rate(earlier[-window:])
        effects.append(
            ChangeEffect(
                change_id=cut.change.id,
                kind=cut.change.kind,
                visibility=cut.change.visibility.value,
                episode=sum(len(stretch) for stretch in stretches[: index + 1]),
                before=before,
                after=_rate(under[:window]),
                latest=_rate(under[-window:]),
                episodes_to_recover=episodes_to_recover(under, before, window),
            )
        )
    return effects


def episodes_to_recover(under: Sequence[SeriesPoint], before: Rate, window: int) -> int | None:
    """Episodes up to the end of the first whole window, of consecutive ones, at RECOVERED_SHARE of ``before``."""
    if not before.rate:
        return None
    for end, rate in _whole_windows(under, window):
        if rate.rate is not None and rate.rate >= RECOVERED_SHARE * before.rate:
            return end
    return None


def _whole_windows(series: Sequence[SeriesPoint], window: int) -> Iterator[tuple[int, Rate]]:
    for end in range(window, len(series) + 1, window):
        yield end, _rate(series[end - window : end])


def _rate(points: Sequence[SeriesPoint]) -> Rate:
    return success_rate(point.is_success for point in points)
