"""Bodies and answers of ``/v1/keys``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field

from api.bodies import Answer, Body
from online_agent.store.records import KeyRecord
from online_agent.store.repositories.keys import MAX_LIMIT

MAX_LIFE_S = 10 * 366 * 86_400.0
MAX_OVERLAP_S = 30 * 86_400.0

ScopeName = Literal["agent", "operator", "admin"]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]


class KeyCreate(Body):
    """``tokens_per_day`` bounds prompt and sampled tokens from midnight to midnight, UTC."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "ci", "scopes": ["agent"]},
                {"name": "bot", "scopes": ["agent"], "expires_in_s": 86400},
            ]
        }
    )

    name: Annotated[str, Field(min_length=1, max_length=100)]
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=3)]
    expires_in_s: Annotated[float, Field(gt=0, le=MAX_LIFE_S)] | None = None
    requests_per_minute: Limit | None = None
    tokens_per_day: Limit | None = None


class KeyRotate(Body):
    """For how long the secret so far stays good."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"overlap_s": 3600}]})

    overlap_s: Annotated[float, Field(ge=0, le=MAX_OVERLAP_S)] = 3600.0


class KeyOut(Answer):
    """``last_used_at`` is right to the minute. Until ``old_until`` the secret before the last rotation is good too."""

    id: str
    name: str
    scopes: list[str]
    created_at: float
    revoked_at: float | None
    expires_at: float | None
    last_used_at: float | None
    old_until: float | None
    requests_per_minute: int | None
    tokens_per_day: int | None

    @classmethod
    def of(cls, record: KeyRecord, **more: str | None) -> Self:
        return cls(
            id=record.id,
            name=record.name,
            scopes=sorted(record.scopes),
            created_at=record.created_at,
            revoked_at=record.revoked_at,
            expires_at=record.expires_at,
            last_used_at=record.last_used_at,
            old_until=record.old_until,
            requests_per_minute=record.requests_per_minute,
            tokens_per_day=record.tokens_per_day,
            **more,
        )


class KeyCreated(KeyOut):
    """``secret`` is shown once; a repeated request with the same Idempotency-Key gets null in its place."""

    secret: str | None


class KeyList(Answer):
    data: list[KeyOut]
