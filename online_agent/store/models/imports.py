"""Episodes that were brought in: which ids of their owners are taken."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, Name, Seconds


class ImportedEpisode(Base):
    """Stays when the episode is erased, so that a repeat does not bring it back; holds hashes, not what was said.

    ``client_hash`` is SHA-256 of the owner's id for it, ``content_hash`` of what was brought.
    """

    __tablename__ = "imported_episodes"

    tenant_id: Mapped[Name] = mapped_column(primary_key=True)
    client_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    episode_id: Mapped[Name]
    content_hash: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[Seconds]
