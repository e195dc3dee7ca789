"""Bodies and answers of ``/v1/keys``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field

from api.bodies import Answer, Body
from online_agent.store.records import KeyRecord

ScopeName = Literal["agent", "operator", "admin"]


class KeyCreate(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "scopes": ["agent"]}]})

    name: Annotated[str, Field(min_length=1, max_length=100)]
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=3)]


class KeyOut(Answer):
    id: str
    name: str
    scopes: list[str]
    created_at: float
    revoked_at: float | None

    @classmethod
    def of(cls, record: KeyRecord, **more: str | None) -> Self:
        return cls(
            id=record.id,
            name=record.name,
            scopes=sorted(record.scopes),
            created_at=record.created_at,
            revoked_at=record.revoked_at,
            **more,
        )


class KeyCreated(KeyOut):
    """``secret`` is shown once; a repeated request with the same Idempotency-Key gets null in its place."""

    secret: str | None


class KeyList(Answer):
    data: list[KeyOut]
