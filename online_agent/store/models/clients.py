"""Episodes that clients run themselves: their names, what each answer was, and what was thrown away.

Their turns are rows of ``turns`` like everyone's. These tables say how the turns hang together: a segment is a run of
turns that continue each other; one that branched off shows the tokens of the turn it left as context.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, Blob, JsonDict, LongText, Name, RowId, Seconds, Traceparent, Word

_NAMED = text("name IS NOT NULL")
_HAS_PARENT = text("parent_id IS NOT NULL")


class ClientEpisode(Base):
    """``name`` is the client's own id. ``num_kept_tokens`` of the sampled ones may be trained on."""

    __tablename__ = "client_episodes"
    __table_args__ = (
        Index(
            "uq_client_episodes_name", "tenant_id", "name", unique=True, sqlite_where=_NAMED, postgresql_where=_NAMED
        ),
        Index("ix_client_episodes_parent_id", "parent_id", sqlite_where=_HAS_PARENT, postgresql_where=_HAS_PARENT),
        Index("ix_client_episodes_active_at", "active_at"),
    )

    episode_id: Mapped[Name] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"), primary_key=True)
    tenant_id: Mapped[Name]
    name: Mapped[Name | None]
    parent_id: Mapped[Name | None]
    active_at: Mapped[Seconds]
    num_segments: Mapped[int] = mapped_column(Integer)
    num_kept_tokens: Mapped[int] = mapped_column(Integer)
    num_discarded_tokens: Mapped[int] = mapped_column(Integer)


class Completion(Base):
    """What a turn was to its client. ``branched_from`` on the first turn of a segment that left another one there.

    The hashes are of the call (what makes a repeat of it a retry), of the conversation with its answer, and of the
    answer alone. ``num_forced`` ids of the
    turn, right before its action, are the beginning of the answer that the client's tool choice asked for.
    """

    __tablename__ = "completions"
    __table_args__ = (
        Index("ix_completions_tenant_id_completion_id", "tenant_id", "completion_id", "choice"),
        Index("ix_completions_weight_version_has_tools_answer_kind", "weight_version", "has_tools", "answer_kind"),
    )

    episode_id: Mapped[Name] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"), primary_key=True)
    turn: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tenant_id: Mapped[Name]
    completion_id: Mapped[Name]
    choice: Mapped[int] = mapped_column(Integer)
    protocol: Mapped[Word]
    segment: Mapped[int] = mapped_column(Integer)
    branched_from: Mapped[int | None] = mapped_column(Integer)
    call_hash: Mapped[Word]
    history_hash: Mapped[Word]
    message_hash: Mapped[Word]
    num_forced: Mapped[int] = mapped_column(Integer)
    temperature: Mapped[Seconds]
    untrainable_reason: Mapped[LongText | None]
    is_cut_short: Mapped[bool]
    message: Mapped[JsonDict]
    tags: Mapped[JsonDict]
    weight_version: Mapped[int | None] = mapped_column(Integer)
    answer_kind: Mapped[Word | None]
    has_tools: Mapped[bool | None]
    traceparent: Mapped[Traceparent | None]
    created_at: Mapped[Seconds]


class DiscardedGeneration(Base):
    """A generation that is no turn (any more): an exact retry took its place, or it never came to its end."""

    __tablename__ = "discarded_generations"
    __table_args__ = (Index("ix_discarded_generations_episode_id", "episode_id"),)

    id: Mapped[RowId]
    episode_id: Mapped[Name] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"))
    tenant_id: Mapped[Name]
    turn: Mapped[int | None] = mapped_column(Integer)
    completion_id: Mapped[Name]
    reason: Mapped[LongText]
    text: Mapped[str] = mapped_column(JSON)
    span_index: Mapped[list[Any]] = mapped_column(JSON)
    token_ids: Mapped[Blob]
    logprobs: Mapped[Blob]
    created_at: Mapped[Seconds]
