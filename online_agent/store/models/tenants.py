"""What a tenant has agreed to."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from online_agent.store.models.base import Base, Name, Seconds


class Tenant(Base):
    """A tenant without a row has agreed to nothing."""

    __tablename__ = "tenants"

    id: Mapped[Name] = mapped_column(primary_key=True)
    trains_shared_weights: Mapped[bool]
    changed_at: Mapped[Seconds]
