"""What happened (append-only) and what the drift detectors remember."""

from __future__ import annotations

from sqlalchemy import Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, JsonDict, Name, RowId, Seconds


class Event(Base):
    __tablename__ = "events"
    __table_args__ = (Index("ix_events_kind_id", "kind", "id"),)

    id: Mapped[RowId]
    kind: Mapped[Name]
    data: Mapped[JsonDict]
    version: Mapped[int | None] = mapped_column(Integer)
    step: Mapped[int | None] = mapped_column(Integer)
    at: Mapped[Seconds]


class DetectorState(Base):
    __tablename__ = "detector_states"

    name: Mapped[Name] = mapped_column(primary_key=True)
    state: Mapped[JsonDict]
    updated_at: Mapped[Seconds]
