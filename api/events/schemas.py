"""Answers of ``/v1/events``."""

from __future__ import annotations

from typing import Any, Self

from api.bodies import Answer
from online_agent.store.records import EventRecord


class EventOut(Answer):
    """Something that happened: a swap, a reset, a rollback, a change, a drift alarm."""

    id: int
    kind: str
    version: int | None
    step: int | None
    data: dict[str, Any]
    at: float

    @classmethod
    def of(cls, record: EventRecord) -> Self:
        return cls(
            id=record.id,
            kind=record.kind,
            version=record.version,
            step=record.step,
            data=dict(record.data),
            at=record.at,
        )


class EventList(Answer):
    """Oldest first. ``next_cursor`` is null on the last page; ``last_id`` is what ``after`` wants to read on later."""

    data: list[EventOut]
    next_cursor: str | None
    last_id: int
