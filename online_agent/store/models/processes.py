"""Heartbeats and named leases."""

from __future__ import annotations

from sqlalchemy import Integer
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, JsonDict, Name, Seconds


class Process(Base):
    __tablename__ = "processes"

    name: Mapped[Name] = mapped_column(primary_key=True)
    pid: Mapped[int] = mapped_column(Integer)
    incarnation: Mapped[Name]
    info: Mapped[JsonDict]
    at: Mapped[Seconds]


class Lease(Base):
    __tablename__ = "leases"

    name: Mapped[Name] = mapped_column(primary_key=True)
    owner: Mapped[Name]
    expires_at: Mapped[Seconds]
