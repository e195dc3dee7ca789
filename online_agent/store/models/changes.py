"""Injected changes of environments."""

from __future__ import annotations

from sqlalchemy import Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, JsonDict, Name, Seconds, Word


class EnvChange(Base):
    """Counts are totals of episodes finished in ``env``; ids sort by time of injection."""

    __tablename__ = "env_changes"
    __table_args__ = (Index("ix_env_changes_env_state", "env", "state"),)

    id: Mapped[Name] = mapped_column(primary_key=True)
    tenant_id: Mapped[Name]
    env: Mapped[Name]
    kind: Mapped[Name]
    params: Mapped[JsonDict]
    visibility: Mapped[Word]
    is_mid_episode: Mapped[bool]
    state: Mapped[Word]
    starts_at_count: Mapped[int] = mapped_column(Integer)
    ends_at_count: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[Seconds]
    activated_at: Mapped[Seconds | None]
    ended_at: Mapped[Seconds | None]
