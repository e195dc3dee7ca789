"""Events, append-only, and the saved state of detectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import insert, select, update

from online_agent.store.models import DetectorState, Event
from online_agent.store.records import EventRecord
from online_agent.store.repositories.base import Repository, check_limit, check_name


class EventRepository(Repository):
    def add(self, kind: str, data: Mapping[str, Any], version: int | None = None, step: int | None = None) -> int:
        """The event is kept; returns its id, which rises."""
        values = {"kind": check_name(kind, "kind"), "data": dict(data), "version": version, "step": step}
        statement = insert(Event).values(at=self._now(), **values).returning(Event.id)
        return int(self._db.execute(statement).scalar_one())

    def latest(self, kinds: Collection[str] | None = None, limit: int = 100) -> list[EventRecord]:
        """The newest events, newest first."""
        query = select(*Event.__table__.columns).order_by(Event.id.desc()).limit(check_limit(limit))
        if kinds is not None:
            query = query.where(Event.kind.in_(kinds))
        return [_event(row) for row in self._db.execute(query)]

    def list(self, kinds: Collection[str] | None = None, after_id: int = 0, limit: int = 100) -> list[EventRecord]:
        """Events with an id above ``after_id``, oldest first."""
        query = select(*Event.__table__.columns).where(Event.id > after_id).order_by(Event.id).limit(check_limit(limit))
        if kinds is not None:
            query = query.where(Event.kind.in_(kinds))
        return [_event(row) for row in self._db.execute(query)]


class DetectorRepository(Repository):
    def load(self, name: str) -> dict[str, Any] | None:
        return self._db.execute(select(DetectorState.state).where(DetectorState.name == name)).scalar_one_or_none()

    def all(self) -> dict[str, dict[str, Any]]:
        """Every saved state by name, in order of the names."""
        query = select(DetectorState.name, DetectorState.state).order_by(DetectorState.name)
        return {row[0]: row[1] for row in self._db.execute(query)}

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        values = {"state": dict(state), "updated_at": self._now()}
        changed = self._db.execute(update(DetectorState).where(DetectorState.name == name).values(**values))
        if changed.rowcount == 0:
            self._db.execute(insert(DetectorState).values(name=check_name(name, "name"), **values))


def _event(row: Any) -> EventRecord:
    return EventRecord(row.id, row.kind, row.data, row.version, row.step, row.at)
