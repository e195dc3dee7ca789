"""API keys and idempotency keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, Name, Seconds, Word


class ApiKey(Base):
    """``secret_hash`` is SHA-256 of the whole secret; ``prefix`` finds the row and is no secret.

    After a rotation the secret before it stands in the ``old_`` columns and is good until ``old_until``.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        Index("uq_api_keys_prefix", "prefix", unique=True),
        Index("uq_api_keys_old_prefix", "old_prefix", unique=True),
        Index("ix_api_keys_tenant_id", "tenant_id"),
    )

    id: Mapped[Name] = mapped_column(primary_key=True)
    tenant_id: Mapped[Name]
    name: Mapped[Name]
    prefix: Mapped[Word]
    secret_hash: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[list[str]] = mapped_column(JSON)
    created_at: Mapped[Seconds]
    revoked_at: Mapped[Seconds | None]
    expires_at: Mapped[Seconds | None]
    last_used_at: Mapped[Seconds | None]
    old_prefix: Mapped[Word | None]
    old_secret_hash: Mapped[str | None] = mapped_column(String(64))
    old_until: Mapped[Seconds | None]
    requests_per_minute: Mapped[int | None] = mapped_column(Integer)
    tokens_per_day: Mapped[int | None] = mapped_column(Integer)


class IdempotencyKey(Base):
    """Knows nothing of the row its answer spoke of, so it is remembered after that row is erased.

    ``status`` None: the first handler is at work until ``expires_at``.
    """

    __tablename__ = "idempotency_keys"

    tenant_id: Mapped[Name] = mapped_column(primary_key=True)
    key: Mapped[Name] = mapped_column(primary_key=True)
    route: Mapped[Name]
    body_hash: Mapped[Name]
    status: Mapped[int | None] = mapped_column(Integer)
    body: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[Seconds]
    expires_at: Mapped[Seconds]
