"""API keys. The secret is shown once; only its SHA-256 is stored (a 256-bit random secret needs no slow hash)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from typing import Any

from sqlalchemy import insert, select, update

from online_agent.errors import BadInput, NotFound
from online_agent.store.models import ApiKey
from online_agent.store.records import KeyRecord
from online_agent.store.repositories.base import Repository, check_name, new_id
from online_agent.types import Scope

_SECRET_BYTES = 32
_PREFIX_BYTES = 6
_MAX_SECRET_CHARS = 128


class KeyRepository(Repository):
    def create(self, tenant_id: str, name: str, scopes: Collection[Scope]) -> tuple[KeyRecord, str]:
        """A new key and its secret, ``oa_<prefix>_<256 random bits>``."""
        if not scopes:
            raise BadInput("a key needs at least one scope", param="scopes")
        prefix = secrets.token_hex(_PREFIX_BYTES)
        secret = f"oa_{prefix}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        now = self._now()
        record = KeyRecord(
            id=new_id("key", now),
            tenant_id=check_name(tenant_id, "tenant_id"),
            name=check_name(name, "name"),
            scopes=frozenset(Scope(scope) for scope in scopes),
            created_at=now,
            revoked_at=None,
        )
        self._db.execute(
            insert(ApiKey).values(
                id=record.id,
                tenant_id=tenant_id,
                name=name,
                prefix=prefix,
                secret_hash=_hash(secret),
                scopes=sorted(record.scopes),
                created_at=now,
            )
        )
        return record, secret

    def authenticate(self, secret: str) -> KeyRecord | None:
        """The live key with this secret, or None. The hashes are compared in constant time."""
        parts = secret.split("_", 2)
        if len(secret) > _MAX_SECRET_CHARS or not secret.isascii() or len(parts) != 3 or parts[0] != "oa":
            return None
        query = select(*ApiKey.__table__.columns).where(ApiKey.prefix == parts[1], ApiKey.revoked_at.is_(None))
        row = self._db.execute(query).one_or_none()
        if row is None or not hmac.compare_digest(row.secret_hash, _hash(secret)):
            return None
        return _key(row)

    def list(self, tenant_id: str) -> list[KeyRecord]:
        query = select(*ApiKey.__table__.columns).where(ApiKey.tenant_id == tenant_id).order_by(ApiKey.id)
        return [_key(row) for row in self._db.execute(query)]

    def revoke(self, tenant_id: str, key_id: str) -> None:
        """The key no longer authenticates. Revoking twice keeps the first time. Raises NotFound."""
        mine = (ApiKey.tenant_id == tenant_id, ApiKey.id == key_id)
        changed = self._db.execute(
            update(ApiKey).where(*mine, ApiKey.revoked_at.is_(None)).values(revoked_at=self._now())
        )
        if changed.rowcount == 0 and self._db.execute(select(ApiKey.id).where(*mine)).one_or_none() is None:
            raise NotFound(f"no key {key_id!r}")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(row: Any) -> KeyRecord:
    scopes = frozenset(Scope(scope) for scope in row.scopes)
    return KeyRecord(row.id, row.tenant_id, row.name, scopes, row.created_at, row.revoked_at)
