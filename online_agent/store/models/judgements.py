"""Which answers a judge has dealt with."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Integer
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, Name, Seconds, Word


class Judgement(Base):
    """The verdict itself is feedback; ``outcome`` says whether there was one."""

    __tablename__ = "judgements"

    episode_id: Mapped[Name] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"), primary_key=True)
    turn: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tenant_id: Mapped[Name]
    outcome: Mapped[Word]
    created_at: Mapped[Seconds]
