"""API keys. The secret is shown once; only its SHA-256 is stored (a 256-bit random secret needs no slow hash)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Integer, bindparam, func, insert, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute

from online_agent.errors import BadInput, Conflict, NotFound
from online_agent.store.models import ApiKey, DiscardedGeneration, Episode, Turn
from online_agent.store.records import KeyRecord
from online_agent.store.repositories.base import Repository, check_name, new_id
from online_agent.types import Scope

LAST_USED_EVERY_S = 60.0
MAX_LIMIT = 2**31 - 1
"""Of seconds, requests and tokens: what the columns hold."""
_SECRET_BYTES = 32
_PREFIX_BYTES = 6
_MAX_SECRET_CHARS = 128
_BYTES_PER_LOGPROB = 4

# Every request runs this: it is built once, since building it costs more than running it.
_WITH_PREFIX = select(*ApiKey.__table__.columns).where(
    or_(ApiKey.prefix == bindparam("prefix"), ApiKey.old_prefix == bindparam("prefix"))
)


class KeyRepository(Repository):
    def create(
        self,
        tenant_id: str,
        name: str,
        scopes: Collection[Scope],
        *,
        expires_in_s: float | None = None,
        requests_per_minute: int | None = None,
        tokens_per_day: int | None = None,
    ) -> tuple[KeyRecord, str]:
        """A new key and its secret, ``oa_<prefix>_<256 random bits>``. Raises BadInput naming the bad value."""
        if not scopes:
            raise BadInput("a key needs at least one scope", param="scopes")
        _check_limits(expires_in_s=expires_in_s, requests_per_minute=requests_per_minute, tokens_per_day=tokens_per_day)
        now = self._now()
        record = KeyRecord(
            id=new_id("key", now),
            tenant_id=check_name(tenant_id, "tenant_id"),
            name=check_name(name, "name"),
            scopes=frozenset(Scope(scope) for scope in scopes),
            created_at=now,
            revoked_at=None,
            expires_at=None if expires_in_s is None else now + expires_in_s,
            requests_per_minute=requests_per_minute,
            tokens_per_day=tokens_per_day,
        )
        prefix, secret = _new_secret()
        self._db.execute(
            insert(ApiKey).values(
                id=record.id,
                tenant_id=tenant_id,
                name=name,
                prefix=prefix,
                secret_hash=_hash(secret),
                scopes=sorted(record.scopes),
                created_at=now,
                expires_at=record.expires_at,
                requests_per_minute=requests_per_minute,
                tokens_per_day=tokens_per_day,
            )
        )
        return record, secret

    def rotate(self, tenant_id: str, key_id: str, overlap_s: float) -> tuple[KeyRecord, str]:
        """The key and its new secret. The secret so far is good for ``overlap_s`` more; one before that is not.

        Raises NotFound, or Conflict for a key that is revoked or has expired.
        """
        if overlap_s < 0:
            raise BadInput(f"overlap_s must be 0 or more, got {overlap_s}", param="overlap_s")
        now = self._now()
        columns = ApiKey.__table__.columns
        query = select(*columns).where(ApiKey.tenant_id == tenant_id, ApiKey.id == key_id).with_for_update()
        row = self._db.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"no key {key_id!r}")
        if not _is_live(row, now):
            raise Conflict(f"key {key_id} is revoked or has expired: make a new one")
        prefix, secret = _new_secret()
        self._db.execute(
            update(ApiKey)
            .where(ApiKey.id == key_id)
            .values(
                prefix=prefix,
                secret_hash=_hash(secret),
                old_prefix=row.prefix,
                old_secret_hash=row.secret_hash,
                old_until=now + overlap_s,
            )
        )
        return replace(_key(row), old_until=now + overlap_s), secret

    def authenticate(self, secret: str) -> KeyRecord | None:
        """The live key with this secret, or None. The hashes are compared in constant time."""
        parts = secret.split("_", 2)
        if len(secret) > _MAX_SECRET_CHARS or not secret.isascii() or len(parts) != 3 or parts[0] != "oa":
            return None
        prefix, now = parts[1], self._now()
        row = self._db.execute(_WITH_PREFIX, {"prefix": prefix}).one_or_none()
        if row is None or not _is_live(row, now):
            return None
        is_old = row.prefix != prefix
        if is_old and row.old_until <= now:
            return None
        expected = row.old_secret_hash if is_old else row.secret_hash
        return _key(row) if hmac.compare_digest(expected, _hash(secret)) else None

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

    def touch(self, key_id: str) -> None:
        """The key was used; written at most once in ``LAST_USED_EVERY_S``."""
        now = self._now()
        is_stale = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at <= now - LAST_USED_EVERY_S)
        self._db.execute(update(ApiKey).where(ApiKey.id == key_id, is_stale).values(last_used_at=now))

    def num_tokens(self, key_id: str, since: float) -> int:
        """Prompt and sampled tokens of what this key asked for and was stored since then, what was discarded too."""
        may_count = (Episode.key_id == key_id, or_(Episode.finished_at.is_(None), Episode.finished_at >= since))
        sampled = _num_logprobs(Turn.logprobs)
        turns = (
            select(func.sum(Turn.num_prompt_tokens + sampled))
            .join(Episode, Episode.id == Turn.episode_id)
            .where(*may_count, Turn.created_at >= since)
        )
        discarded = (
            select(func.sum(_num_logprobs(DiscardedGeneration.logprobs)))
            .join(Episode, Episode.id == DiscardedGeneration.episode_id)
            .where(*may_count, DiscardedGeneration.created_at >= since)
        )
        return sum(int(self._db.execute(query).scalar_one() or 0) for query in (turns, discarded))


def _check_limits(**limits: float | None) -> None:
    for param, value in limits.items():
        if value is not None and not 0 < value <= MAX_LIMIT:
            raise BadInput(f"{param} must be above 0 and at most {MAX_LIMIT}, got {value}", param=param)


def _num_logprobs(column: InstrumentedAttribute[bytes]) -> ColumnElement[int]:
    """Sampled tokens of a packed column: they alone have log-probs."""
    return func.length(column, type_=Integer) // _BYTES_PER_LOGPROB


def _new_secret() -> tuple[str, str]:
    prefix = secrets.token_hex(_PREFIX_BYTES)
    return prefix, f"oa_{prefix}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _is_live(row: Any, now: float) -> bool:
    return row.revoked_at is None and (row.expires_at is None or now < row.expires_at)


def _key(row: Any) -> KeyRecord:
    return KeyRecord(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        scopes=frozenset(Scope(scope) for scope in row.scopes),
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        old_until=row.old_until,
        requests_per_minute=row.requests_per_minute,
        tokens_per_day=row.tokens_per_day,
    )
