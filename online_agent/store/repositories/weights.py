"""Weight versions: numbers that only rise, states moved by compare-and-set, at most one serving."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import func, insert, select, update

from online_agent.errors import BadInput, Conflict, NotFound
from online_agent.store.models import Episode, LearnerControl, Step, StepEpisode, WeightVersion
from online_agent.store.records import VersionEpisode, VersionNew, VersionRecord
from online_agent.store.repositories.base import Repository, check_limit
from online_agent.store.repositories.control import ControlRepository
from online_agent.types import StepStatus, VersionOrigin, VersionState

_S = VersionState
# Where a version may go. A crash between two states is undone by moving back to CANDIDATE; a restarted engine loads
# the serving version again without a move.
MOVES: Mapping[VersionState, frozenset[VersionState]] = {
    _S.CANDIDATE: frozenset({_S.LOADING, _S.VERIFIED, _S.RETIRED, _S.REJECTING, _S.REJECTED}),
    _S.LOADING: frozenset({_S.CANDIDATE, _S.VERIFIED, _S.REJECTING, _S.REJECTED}),
    _S.VERIFIED: frozenset({_S.CANDIDATE, _S.LOADING, _S.SERVING, _S.RETIRED, _S.REJECTING, _S.REJECTED}),
    _S.SERVING: frozenset({_S.RETIRED, _S.REJECTING}),
    _S.RETIRED: frozenset({_S.LOADING}),
    _S.REJECTING: frozenset({_S.REJECTED}),
    _S.REJECTED: frozenset(),
}


class WeightRepository(Repository):
    def next_version(self) -> int:
        """A number no version has or will get again: a step and a rollback at the same time never share one."""
        row = ControlRepository(self._db, self._now).lock()
        self._db.execute(update(LearnerControl).values(next_version=row.next_version + 1))
        return int(row.next_version)

    def insert(self, new: VersionNew) -> VersionRecord:
        """The version is a row, and the learner continues from it.

        Raises Conflict unless its number is above every other (numbers only rise, also on rollback).
        """
        control = ControlRepository(self._db, self._now)
        next_version = control.lock().next_version
        newest = self._db.execute(select(func.max(WeightVersion.version))).scalar_one()
        if new.version < 0 or (newest is not None and new.version <= newest):
            raise Conflict(f"version {new.version} does not rise above version {newest}")
        now = self._now()
        serves = new.state is VersionState.SERVING
        if serves:
            self._retire_serving()
        self._db.execute(
            insert(WeightVersion).values(
                version=new.version,
                origin=new.origin,
                parent=new.parent,
                step=new.step,
                state=new.state,
                content_hash=new.content_hash,
                config_hash=new.config_hash,
                recipe=new.recipe,
                metrics=dict(new.metrics),
                is_pinned=False,
                is_rolled_back=False,
                created_at=now,
                moved_at=now,
                served_at=now if serves else None,
            )
        )
        self._db.execute(
            update(LearnerControl).values(current_version=new.version, next_version=max(next_version, new.version + 1))
        )
        return self.get(new.version)

    def get(self, version: int) -> VersionRecord:
        row = self._db.execute(_ALL.where(WeightVersion.version == version)).one_or_none()
        if row is None:
            raise NotFound(f"no weight version {version}")
        return _version(row)

    def latest(self) -> VersionRecord | None:
        """The newest version, whatever its state."""
        return self._one(_ALL.order_by(WeightVersion.version.desc()).limit(1))

    def serving(self) -> VersionRecord | None:
        return self._one(_ALL.where(WeightVersion.state == VersionState.SERVING))

    def candidates(self) -> list[VersionRecord]:
        """Versions that wait for promotion, oldest first."""
        return self.in_states({VersionState.CANDIDATE})

    def in_states(self, states: Collection[VersionState]) -> list[VersionRecord]:
        """Versions in one of the states, oldest first (start-up rules look for loading, verified, rejecting)."""
        query = _ALL.where(WeightVersion.state.in_(states)).order_by(WeightVersion.version)
        return [_version(row) for row in self._db.execute(query)]

    def move(
        self,
        version: int,
        from_states: Collection[VersionState],
        to_state: VersionState,
        reason: str | None = None,
    ) -> bool:
        """True when the version was in one of ``from_states`` and is in ``to_state`` now; False otherwise.

        Moving to SERVING retires the version that served. Raises Conflict for a move that MOVES does not know.
        """
        for state in from_states:
            if to_state not in MOVES[state]:
                raise Conflict(f"a version cannot go from {state} to {to_state}")
        query = select(WeightVersion.state).where(WeightVersion.version == version).with_for_update()
        current = self._db.execute(query).scalar_one_or_none()
        if current is None or current not in from_states:
            return False
        values: dict[str, Any] = {"state": to_state, "state_reason": reason, "moved_at": self._now()}
        if to_state is VersionState.SERVING:
            self._retire_serving()
            values["served_at"] = func.coalesce(WeightVersion.served_at, self._now())
        self._db.execute(update(WeightVersion).where(WeightVersion.version == version).values(values))
        return True

    def add_metrics(self, version: int, metrics: Mapping[str, Any]) -> None:
        """The version's metrics with these on top."""
        merged = {**self.get(version).metrics, **metrics}
        self._db.execute(update(WeightVersion).where(WeightVersion.version == version).values(metrics=merged))

    def pin(self, version: int) -> None:
        """The version's directory is never pruned."""
        self._set_pinned(version, True)

    def unpin(self, version: int) -> None:
        self._set_pinned(version, False)

    def episodes_of(self, version: int, tenant_id: str | None = None) -> list[VersionEpisode]:
        """Exactly the episodes whose step made the version, in the order of the step; empty for seed and rollback."""
        self.get(version)
        query = (
            select(StepEpisode.episode_id, StepEpisode.position, StepEpisode.reward, Episode.id)
            .join(Step, Step.step == StepEpisode.step)
            .outerjoin(Episode, Episode.id == StepEpisode.episode_id)
            .where(Step.version == version, Step.status == StepStatus.COMMITTED)
            .order_by(StepEpisode.position)
        )
        if tenant_id is not None:
            query = query.where(StepEpisode.tenant_id == tenant_id)
        return [VersionEpisode(row[0], row[1], row[2], row[3] is None) for row in self._db.execute(query)]

    def keep(self, num_latest: int, rollback_depth: int = 1) -> set[int]:
        """Versions whose directories must stay: serving, pinned, current, waiting, the newest ``num_latest`` and the
        last ``rollback_depth`` that served before the serving one (the targets of a rollback)."""
        if num_latest < 1:
            raise BadInput(f"num_latest must be at least 1, got {num_latest}")
        waiting = (_S.CANDIDATE, _S.LOADING, _S.VERIFIED, _S.SERVING)
        kept: set[int] = set(self._numbers(select(WeightVersion.version).where(WeightVersion.state.in_(waiting))))
        kept.update(self._numbers(select(WeightVersion.version).where(WeightVersion.is_pinned)))
        kept.update(
            self._numbers(select(WeightVersion.version).order_by(WeightVersion.version.desc()).limit(num_latest))
        )
        served = (
            select(WeightVersion.version)
            .where(WeightVersion.state == _S.RETIRED, WeightVersion.served_at.is_not(None))
            .where(WeightVersion.is_rolled_back.is_(False))
            .order_by(WeightVersion.version.desc())
            .limit(rollback_depth)
        )
        kept.update(self._numbers(served))
        current = ControlRepository(self._db, self._now).get().current_version
        return kept if current is None else kept | {current}

    def _numbers(self, query: Any) -> list[int]:
        return list(self._db.execute(query).scalars())

    def _one(self, query: Any) -> VersionRecord | None:
        row = self._db.execute(query).one_or_none()
        return None if row is None else _version(row)

    def _retire_serving(self) -> None:
        self._db.execute(
            update(WeightVersion)
            .where(WeightVersion.state == VersionState.SERVING)
            .values(state=VersionState.RETIRED, moved_at=self._now())
        )

    def _set_pinned(self, version: int, is_pinned: bool) -> None:
        statement = update(WeightVersion).where(WeightVersion.version == version).values(is_pinned=is_pinned)
        if self._db.execute(statement).rowcount == 0:
            raise NotFound(f"no weight version {version}")

    def list(self, limit: int = 100, before: int | None = None) -> list[VersionRecord]:
        """Newest first; ``before`` continues below that number."""
        query = _ALL.order_by(WeightVersion.version.desc()).limit(check_limit(limit))
        if before is not None:
            query = query.where(WeightVersion.version < before)
        return [_version(row) for row in self._db.execute(query)]


_ALL = select(*WeightVersion.__table__.columns)


def _version(row: Any) -> VersionRecord:
    values = dict(row._mapping)
    values["state"] = VersionState(row.state)
    values["origin"] = VersionOrigin(row.origin)
    return VersionRecord(**values)
