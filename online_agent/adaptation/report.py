"""One environment's adaptation report, read in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from online_agent.adaptation.curve import (
    ChangeEffect,
    CurvePoint,
    VersionRate,
    change_effects,
    curve,
    version_rates,
)
from online_agent.adaptation.markers import DRIFT_EVENTS, RESET_EVENT, Marker, markers
from online_agent.store.records import ChangeRecord, EventRecord, SeriesPoint, VersionRecord
from online_agent.store.session import Database, Transaction

# Half width of the 95 % interval at a rate of one half: 0.12.
DEFAULT_WINDOW = 64
_MAX_VERSIONS = 1000
_MAX_EVENTS = 1000
# Held-out tasks measure the policy; they are not the traffic it lives on.
_LIVE_SPLIT = "train"


@dataclass(frozen=True, slots=True)
class AdaptationReport:
    """Success of live episodes of ``env``: curve, markers, each change's effect, each version's rate.

    ``dataclasses.asdict`` of it is JSON.
    """

    env: str
    window: int
    num_episodes: int
    points: list[CurvePoint]
    markers: list[Marker]
    changes: list[ChangeEffect]
    versions: list[VersionRate]


def adaptation_report(
    db: Database, env: str, *, tenant_id: str | None = None, window: int = DEFAULT_WINDOW
) -> AdaptationReport:
    """The report as of now. With ``tenant_id`` only that tenant's episodes and changes count."""
    with db.reading() as tx:
        return read_report(tx, env, tenant_id=tenant_id, window=window)


def read_report(
    tx: Transaction, env: str, *, tenant_id: str | None = None, window: int = DEFAULT_WINDOW
) -> AdaptationReport:
    """The same inside a transaction that is open already."""
    series = tx.episodes.success_series(env, tenant_id=tenant_id, split=_LIVE_SPLIT)
    events = tx.events.latest([RESET_EVENT, *DRIFT_EVENTS], limit=_MAX_EVENTS)
    mine = [event for event in events if event.data.get("env", env) == env]
    return build_report(env, window, series, tx.weights.list(_MAX_VERSIONS), tx.changes.of_env(env, tenant_id), mine)


def build_report(
    env: str,
    window: int,
    series: Sequence[SeriesPoint],
    versions: Sequence[VersionRecord],
    changes: Sequence[ChangeRecord],
    events: Sequence[EventRecord],
) -> AdaptationReport:
    """The report of these records. ``series`` in order of finishing."""
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    return AdaptationReport(
        env=env,
        window=window,
        num_episodes=len(series),
        points=curve(series, window),
        markers=markers(series, versions, changes, events),
        changes=change_effects(series, changes, window),
        versions=version_rates(series),
    )
