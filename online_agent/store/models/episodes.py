"""Episodes and their turns. One row per turn holds all its spans packed (see store/encoding.py)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, Blob, JsonDict, LongText, Name, Seconds, Traceparent, Word

# The training queue. Queries repeat these very words: only then do the databases use the index that covers it, which
# starts with the two constant columns because SQLite prefers an index it can search by equality.
QUEUED = (
    "status = 'graded' AND split = 'train' AND untrainable_reason IS NULL AND temperature > 0 AND num_action_tokens > 0"
)
QUEUED_IN_GROUP = f"{QUEUED} AND group_id IS NOT NULL"


class Episode(Base):
    """Status moves are compare-and-set updates. ``step`` and its row in ``steps`` appear in one transaction.

    ``limits`` is [max turns, max tokens, timeout in s]. Members of a group are rows of one transaction: ``group_size``
    is how many there were then (an erased one is gone). ``traceparent``: the kept trace that asked for it.
    """

    __tablename__ = "episodes"
    __table_args__ = (
        CheckConstraint("reward IS NULL OR (reward >= -1 AND reward <= 1)", name="reward_range"),
        Index("ix_episodes_status_finished_at", "status", "finished_at"),
        Index(
            "ix_episodes_queue",
            "status",
            "split",
            "finished_at",
            "id",
            sqlite_where=text(QUEUED),
            postgresql_where=text(QUEUED),
        ),
        Index(
            "ix_episodes_group_queue",
            "status",
            "split",
            "group_id",
            "finished_at",
            "id",
            sqlite_where=text(QUEUED_IN_GROUP),
            postgresql_where=text(QUEUED_IN_GROUP),
        ),
        Index(
            "ix_episodes_group_id_status",
            "group_id",
            "status",
            sqlite_where=text("group_id IS NOT NULL"),
            postgresql_where=text("group_id IS NOT NULL"),
        ),
        Index("ix_episodes_tenant_id_id", "tenant_id", "id"),
        Index("ix_episodes_env_finished_at", "env", "finished_at"),
        Index("ix_episodes_key_id_finished_at", "key_id", "finished_at"),
        Index(
            "ix_episodes_step", "step", sqlite_where=text("step IS NOT NULL"), postgresql_where=text("step IS NOT NULL")
        ),
    )

    id: Mapped[Name] = mapped_column(primary_key=True)
    tenant_id: Mapped[Name]
    key_id: Mapped[Name | None]
    env: Mapped[Name]
    task_id: Mapped[Name]
    split: Mapped[Word]
    status: Mapped[Word]
    env_revision: Mapped[Name]
    temperature: Mapped[Seconds]
    top_p: Mapped[Seconds]
    max_new_tokens: Mapped[int] = mapped_column(Integer)
    limits: Mapped[list[float]] = mapped_column(JSON)
    template_hash: Mapped[Name]
    tools_hash: Mapped[Name]
    weight_version: Mapped[int | None] = mapped_column(Integer)
    task: Mapped[JsonDict | None]
    tags: Mapped[JsonDict]
    artifact: Mapped[JsonDict | None]
    stop_reason: Mapped[Word | None]
    failure_reason: Mapped[LongText | None]
    drop_reason: Mapped[LongText | None]
    untrainable_reason: Mapped[LongText | None]
    reward: Mapped[Seconds | None]
    is_success: Mapped[bool | None]
    evidence: Mapped[JsonDict | None]
    num_turns: Mapped[int] = mapped_column(Integer)
    num_action_tokens: Mapped[int] = mapped_column(Integer)
    num_tool_calls: Mapped[int] = mapped_column(Integer, server_default="0")
    num_tool_errors: Mapped[int] = mapped_column(Integer, server_default="0")
    oldest_version: Mapped[int | None] = mapped_column(Integer)
    newest_version: Mapped[int | None] = mapped_column(Integer)
    grader: Mapped[Name | None]
    grading_expires_at: Mapped[Seconds | None]
    num_grading_attempts: Mapped[int] = mapped_column(Integer, server_default="0")
    step: Mapped[int | None] = mapped_column(ForeignKey("steps.step", deferrable=True, initially="DEFERRED"))
    created_at: Mapped[Seconds]
    finished_at: Mapped[Seconds | None]
    graded_at: Mapped[Seconds | None]
    trained_at: Mapped[Seconds | None]
    group_id: Mapped[Name | None]
    group_size: Mapped[int | None] = mapped_column(Integer)
    traceparent: Mapped[Traceparent | None]


class Turn(Base):
    """``content`` holds text, tool calls and observations: JSON text keeps any character, NUL included.

    ``routed_experts`` is packed; null where the engine returned none.
    """

    __tablename__ = "turns"

    episode_id: Mapped[Name] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tenant_id: Mapped[Name]
    env_revision: Mapped[Name]
    content: Mapped[JsonDict]
    finish_reason: Mapped[Word]
    span_index: Mapped[list[Any]] = mapped_column(JSON)
    token_ids: Mapped[Blob]
    logprobs: Mapped[Blob]
    num_prompt_tokens: Mapped[int] = mapped_column(Integer)
    num_cached_tokens: Mapped[int] = mapped_column(Integer)
    num_retractions: Mapped[int] = mapped_column(Integer)
    latency_s: Mapped[Seconds]
    created_at: Mapped[Seconds]
    routed_experts: Mapped[Blob | None]
