"""The drift job: newly graded live episodes go through the monitor of their environment, in one short transaction.

Invariants: cursor, detector state, events and the reset request are committed together, so a scan that dies changes
nothing and the next one finds the same; two scans at once run one after the other, and the second finds nothing new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from online_agent.config.settings import Settings
from online_agent.drift.monitor import Finding, Monitor
from online_agent.drift.outcomes import Outcome
from online_agent.store.records import SeriesPoint
from online_agent.store.session import Database, Transaction
from online_agent.types import Visibility

# Episodes are graded in another order than they finish; later than this after a newer one, they are not looked at.
GRADING_DELAY_S = 60.0
_MAX_NEW = 500
_STATE_FORMAT = 1
_LIVE_SPLIT = "train"
_ROLLBACK_EVENT = "rollback"


def state_name(env: str) -> str:
    """Under which name the detectors of ``env`` are stored."""
    return f"drift/{env}"


def scan(db: Database, settings: Settings) -> list[Finding]:
    """What was found since the last scan, recorded as events; each confirmed change asked for one EWMA reset."""
    with db.reading() as tx:
        due = [env for env in tx.episodes.envs() if _Scan.load(tx, env, settings).read(tx).is_due]
    findings: list[Finding] = []
    for env in due:
        with db.transaction() as tx:
            tx.control.lock()
            findings += _Scan.load(tx, env, settings).read(tx).run(tx)
    return findings


@dataclass(slots=True)
class _Scan:
    """One environment's cursor and monitor, and what is new for them.

    ``seen``: (finished_at, id) of the episodes taken that finished within GRADING_DELAY_S of the newest one.
    ``announced``: ids of the documented changes in force at the last scan; None before the first.
    """

    env: str
    monitor: Monitor
    seen: list[tuple[float, str]] = field(default_factory=list)
    event_id: int = 0
    announced: list[str] | None = None
    new_points: list[SeriesPoint] = field(default_factory=list)
    rollbacks: list[tuple[int, int]] = field(default_factory=list)
    documented: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, tx: Transaction, env: str, settings: Settings) -> _Scan:
        drift = settings.drift
        monitor = Monitor(drift.min_episodes, drift.cooldown_episodes, drift.adwin_delta)
        state = tx.detectors.load(state_name(env))
        if state is None or state.get("format") != _STATE_FORMAT:
            return cls(env, monitor)
        monitor.load(state["monitor"])
        seen = [(float(at), str(episode_id)) for at, episode_id in state["seen"]]
        return cls(env, monitor, seen, state["event_id"], state["announced"])

    def read(self, tx: Transaction) -> _Scan:
        """Fill in what is new."""
        since = self.seen[-1][0] - GRADING_DELAY_S if self.seen else None
        points = tx.episodes.success_series(self.env, split=_LIVE_SPLIT, since=since, limit=len(self.seen) + _MAX_NEW)
        known = {episode_id for _, episode_id in self.seen}
        self.new_points = [point for point in points if point.episode_id not in known]
        events = tx.events.list([_ROLLBACK_EVENT], after_id=self.event_id)
        self.rollbacks = [(event.id, int(event.data["target"])) for event in events]
        active = tx.changes.active(self.env)
        self.documented = sorted(change.id for change in active if change.visibility is Visibility.DOCUMENTED)
        self.silent = sorted(change.id for change in active if change.visibility is Visibility.SILENT)
        return self

    @property
    def is_due(self) -> bool:
        return bool(self.new_points or self.rollbacks) or self.announced != self.documented

    def run(self, tx: Transaction) -> list[Finding]:
        """Operators' acts first, since nothing is compared across them; then the new episodes."""
        findings: list[Finding] = []
        # On the first scan there is no baseline yet that a change or rollback could have made void.
        if self.announced is not None:
            for _, target in self.rollbacks:
                findings += self.monitor.rolled_back(target)
            altered = sorted(set(self.announced) ^ set(self.documented))
            if altered:
                findings += self.monitor.announce(altered)
        findings += self.monitor.observe([Outcome.of(point) for point in self.new_points])
        for finding in findings:
            self._record(tx, finding)
        self._save(tx)
        return findings

    def _record(self, tx: Transaction, finding: Finding) -> None:
        facts = {"env": self.env, **finding.data, "silent_changes": self.silent}
        tx.events.add(finding.kind, facts, version=self._newest_version())
        if finding.reset_cause is not None:
            tx.control.request_reset(finding.reset_cause)

    def _newest_version(self) -> int | None:
        versions = [point.newest_version for point in self.new_points if point.newest_version is not None]
        return max(versions, default=None)

    def _save(self, tx: Transaction) -> None:
        seen = sorted([*self.seen, *((point.finished_at, point.episode_id) for point in self.new_points)])
        oldest = seen[-1][0] - GRADING_DELAY_S if seen else 0.0
        state: dict[str, Any] = {
            "format": _STATE_FORMAT,
            "summary": self.monitor.summary(),
            "seen": [list(each) for each in seen if each[0] >= oldest],
            "event_id": self.rollbacks[-1][0] if self.rollbacks else self.event_id,
            "announced": self.documented,
            "monitor": self.monitor.to_json(),
        }
        tx.detectors.save(state_name(self.env), state)
