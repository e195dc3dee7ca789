"""Published weight versions and the learner's control row."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, JsonDict, LongText, Name, Seconds, Word

_SERVING = text("state = 'serving'")


class WeightVersion(Base):
    """At most one version serves."""

    __tablename__ = "weight_versions"
    __table_args__ = (
        Index("uq_weight_versions_serving", "state", unique=True, sqlite_where=_SERVING, postgresql_where=_SERVING),
        Index("ix_weight_versions_step", "step"),
    )

    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    origin: Mapped[Word]
    parent: Mapped[int | None] = mapped_column(Integer)
    step: Mapped[int | None] = mapped_column(Integer)
    state: Mapped[Word]
    state_reason: Mapped[LongText | None]
    content_hash: Mapped[Name]
    config_hash: Mapped[Name]
    recipe: Mapped[Name]
    metrics: Mapped[JsonDict]
    is_pinned: Mapped[bool]
    is_rolled_back: Mapped[bool]
    created_at: Mapped[Seconds]
    moved_at: Mapped[Seconds]
    served_at: Mapped[Seconds | None]


class LearnerControl(Base):
    """One row (id 1), made by the first migration. Every step, rollback and reservation locks it first."""

    __tablename__ = "learner_control"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    fence: Mapped[int] = mapped_column(Integer)
    is_paused: Mapped[bool]
    current_version: Mapped[int | None] = mapped_column(Integer)
    next_version: Mapped[int] = mapped_column(Integer)
    next_step: Mapped[int] = mapped_column(Integer)
    reset_cause: Mapped[LongText | None]
    reset_requested_at: Mapped[Seconds | None]
