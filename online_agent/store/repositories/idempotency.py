"""Idempotency keys: one effect for concurrent twins, one answer for every repeat.

``begin`` and ``finish`` are two transactions with the work between them; the unique row is the lock. A handler that
fails calls ``release``; one whose work is long calls ``renew``; one that died loses the key at ``expires_at``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from online_agent.errors import Conflict
from online_agent.store.models import IdempotencyKey
from online_agent.store.records import Done, Fresh, Idempotency, Mismatch, Running
from online_agent.store.repositories.base import Repository, check_name

LEASE_S = 120.0
_RETRY_AFTER_S = 1.0


class IdempotencyRepository(Repository):
    def begin(self, tenant_id: str, key: str, route: str, body_hash: str, lease_s: float = LEASE_S) -> Idempotency:
        """Fresh: the caller does the work now. Done, Running, Mismatch: it must not."""
        check_name(key, "Idempotency-Key")
        now = self._now()
        if self._insert(tenant_id, key, route, body_hash, now, lease_s):
            return Fresh()
        mine = (IdempotencyKey.tenant_id == tenant_id, IdempotencyKey.key == key)
        query = select(*IdempotencyKey.__table__.columns).where(*mine).with_for_update()
        row = self._db.execute(query).one()
        if (row.route, row.body_hash) != (route, body_hash):
            return Mismatch(route=row.route)
        if row.status is not None:
            return Done(row.status, row.body)
        if row.expires_at > now:
            return Running(retry_after_s=min(_RETRY_AFTER_S, row.expires_at - now))
        self._db.execute(update(IdempotencyKey).where(*mine).values(expires_at=now + lease_s))
        return Fresh()

    def renew(self, tenant_id: str, key: str, lease_s: float = LEASE_S) -> None:
        """The work goes on: the key is not free for another ``lease_s``. One that is answered or free stays so."""
        self._db.execute(
            update(IdempotencyKey)
            .where(IdempotencyKey.tenant_id == tenant_id, IdempotencyKey.key == key, IdempotencyKey.status.is_(None))
            .values(expires_at=self._now() + lease_s)
        )

    def finish(self, tenant_id: str, key: str, status: int, body: Any) -> None:
        """The answer is remembered. Raises Conflict when another handler answered first or the key is gone."""
        changed = self._db.execute(
            update(IdempotencyKey)
            .where(IdempotencyKey.tenant_id == tenant_id, IdempotencyKey.key == key, IdempotencyKey.status.is_(None))
            .values(status=status, body=body)
        )
        if changed.rowcount == 0:
            raise Conflict(f"idempotency key {key!r} is not running")

    def release(self, tenant_id: str, key: str) -> None:
        """The key is free again; an answer already given stays."""
        self._db.execute(
            delete(IdempotencyKey).where(
                IdempotencyKey.tenant_id == tenant_id, IdempotencyKey.key == key, IdempotencyKey.status.is_(None)
            )
        )

    def prune(self, before: float) -> int:
        """Answers older than ``before`` are forgotten; returns how many."""
        old = (IdempotencyKey.created_at < before, IdempotencyKey.expires_at < self._now())
        return self._db.execute(delete(IdempotencyKey).where(*old)).rowcount

    def _insert(self, tenant_id: str, key: str, route: str, body_hash: str, now: float, lease_s: float) -> bool:
        try:
            with self._db.begin_nested():
                self._db.execute(
                    insert(IdempotencyKey).values(
                        tenant_id=tenant_id,
                        key=key,
                        route=route,
                        body_hash=body_hash,
                        created_at=now,
                        expires_at=now + lease_s,
                    )
                )
        except IntegrityError:
            return False
        return True
