"""Interruptions of the engine for the learner, what was under way in them, and the old log-probs they gave."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, Blob, LongText, Name, RowId, Seconds, Word

_OPEN = text("is_open")


class Interruption(Base):
    """At most one is open. ``version`` is the one the learner is about to replace."""

    __tablename__ = "interruptions"
    __table_args__ = (
        Index("uq_interruptions_open", "is_open", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
    )

    number: Mapped[RowId]
    version: Mapped[int] = mapped_column(Integer)
    state: Mapped[Word]
    is_open: Mapped[bool]
    outcome: Mapped[LongText | None]
    asked_at: Mapped[Seconds]
    paused_at: Mapped[Seconds | None]
    ended_at: Mapped[Seconds | None]


class PartialGeneration(Base):
    """Tokens that no turn holds yet: a prompt span and an action span, packed as those of a turn are.

    A client's episode may have several. ``temperature`` is null where it is the episode's.
    """

    __tablename__ = "partial_generations"
    __table_args__ = (Index("ix_partial_generations_episode_id", "episode_id"),)

    number: Mapped[RowId]
    episode_id: Mapped[Name] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"))
    tenant_id: Mapped[Name]
    temperature: Mapped[Seconds | None]
    span_index: Mapped[list[Any]] = mapped_column(JSON)
    token_ids: Mapped[Blob]
    logprobs: Mapped[Blob]
    created_at: Mapped[Seconds]


class OldLogprobs(Base):
    """A run of tokens of one episode, all sampled by ``version`` and scored under it, from ``first_token`` on.

    ``logprobs`` are float32 little-endian; ``prefix_hash`` is of the token ids up to the end of the run: the segments
    of a client's episode differ by it.
    """

    __tablename__ = "old_logprobs"

    episode_id: Mapped[Name] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"), primary_key=True)
    first_token: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    prefix_hash: Mapped[Word] = mapped_column(primary_key=True)
    tenant_id: Mapped[Name]
    logprobs: Mapped[Blob]
