"""Feedback on episodes, kept with its source and its fate."""

from __future__ import annotations

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, Name, RowId, Seconds, Word


class Feedback(Base):
    """``text`` is JSON, which keeps any character a client sends, NUL included.

    ``weight`` is that of its source when it came in.
    """

    __tablename__ = "feedback"
    __table_args__ = (
        CheckConstraint("reward IS NULL OR (reward >= -1 AND reward <= 1)", name="reward_range"),
        Index("ix_feedback_episode_id", "episode_id"),
        Index("ix_feedback_tenant_id_source_created_at", "tenant_id", "source", "created_at"),
        Index("ix_feedback_tenant_id_fate_id", "tenant_id", "fate", "id"),
    )

    id: Mapped[RowId]
    tenant_id: Mapped[Name]
    episode_id: Mapped[Name] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"))
    source: Mapped[Name]
    person: Mapped[Name | None]
    reward: Mapped[Seconds | None]
    text: Mapped[str | None] = mapped_column(JSON(none_as_null=True))
    turns: Mapped[list[int]] = mapped_column(JSON)
    weight: Mapped[Seconds] = mapped_column(server_default="1")
    fate: Mapped[Word]
    fate_reason: Mapped[Name | None]
    step: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[Seconds]
