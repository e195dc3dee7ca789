"""Learner steps and the episodes each was given. That no episode is trained twice is a constraint."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, JsonDict, LongText, Name, Seconds, Word

_ONE_RESERVED = text("status = 'reserved'")
_COMMITTED = text("is_committed")


class Step(Base):
    """At most one step is reserved at a time."""

    __tablename__ = "steps"
    __table_args__ = (
        Index("uq_steps_reserved", "status", unique=True, sqlite_where=_ONE_RESERVED, postgresql_where=_ONE_RESERVED),
    )

    step: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    status: Mapped[Word]
    identity: Mapped[Name]
    recipe: Mapped[Name]
    seed: Mapped[int] = mapped_column(Integer)
    parent_version: Mapped[int] = mapped_column(Integer)
    version: Mapped[int | None] = mapped_column(Integer)
    fence: Mapped[int] = mapped_column(Integer)
    owner: Mapped[Name]
    num_episodes: Mapped[int] = mapped_column(Integer)
    reason: Mapped[LongText | None]
    metrics: Mapped[JsonDict]
    reserved_at: Mapped[Seconds]
    expires_at: Mapped[Seconds]
    ended_at: Mapped[Seconds | None]


class StepEpisode(Base):
    """Kept when the episode is erased, so that the versions trained on it stay known.

    Unique (episode_id) among committed steps: training an episode twice is refused by the database.
    """

    __tablename__ = "step_episodes"
    __table_args__ = (
        Index(
            "uq_step_episodes_trained", "episode_id", unique=True, sqlite_where=_COMMITTED, postgresql_where=_COMMITTED
        ),
    )

    step: Mapped[int] = mapped_column(
        ForeignKey("steps.step", deferrable=True, initially="DEFERRED"), primary_key=True, autoincrement=False
    )
    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    episode_id: Mapped[Name]
    tenant_id: Mapped[Name]
    reward: Mapped[Seconds]
    is_committed: Mapped[bool]
