"""Heartbeats of processes and named leases, which are the real locks between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from online_agent.store.models import Lease, Process
from online_agent.store.records import ProcessRecord
from online_agent.store.repositories.base import Repository, check_name


class ProcessRepository(Repository):
    def beat(self, name: str, pid: int, incarnation: str, info: Mapping[str, Any] | None = None) -> None:
        """The process said that it lives. ``incarnation`` must differ between two starts of the same name."""
        values = {"pid": pid, "incarnation": incarnation, "info": dict(info or {}), "at": self._now()}
        changed = self._db.execute(update(Process).where(Process.name == name).values(**values))
        if changed.rowcount == 0:
            self._db.execute(insert(Process).values(name=check_name(name, "name"), **values))

    def get(self, name: str) -> ProcessRecord | None:
        row = self._db.execute(select(*Process.__table__.columns).where(Process.name == name)).one_or_none()
        return None if row is None else _process(row)

    def alive(self, within_s: float) -> list[ProcessRecord]:
        """The processes that beat in the last ``within_s`` seconds, by name."""
        query = select(*Process.__table__.columns).where(Process.at >= self._now() - within_s).order_by(Process.name)
        return [_process(row) for row in self._db.execute(query)]


class LeaseRepository(Repository):
    def acquire(self, name: str, owner: str, ttl_s: float) -> bool:
        """True when ``owner`` holds the lease until now + ttl_s. Acquiring again by the same owner renews it."""
        now = self._now()
        is_free = or_(Lease.owner == owner, Lease.expires_at <= now)
        taken = self._db.execute(
            update(Lease).where(Lease.name == name, is_free).values(owner=owner, expires_at=now + ttl_s)
        )
        if taken.rowcount:
            return True
        if self._db.execute(select(Lease.name).where(Lease.name == name)).one_or_none() is not None:
            return False
        try:
            with self._db.begin_nested():
                self._db.execute(
                    insert(Lease).values(name=check_name(name, "name"), owner=owner, expires_at=now + ttl_s)
                )
        except IntegrityError:
            return False
        return True

    def holder(self, name: str) -> str | None:
        """Who holds the lease now, None when it is free."""
        query = select(Lease.owner).where(Lease.name == name, Lease.expires_at > self._now())
        return self._db.execute(query).scalar_one_or_none()

    def release(self, name: str, owner: str) -> bool:
        """False when ``owner`` no longer held it."""
        gone = self._db.execute(delete(Lease).where(Lease.name == name, Lease.owner == owner))
        return gone.rowcount == 1


def _process(row: Any) -> ProcessRecord:
    return ProcessRecord(row.name, row.pid, row.incarnation, row.info, row.at)
