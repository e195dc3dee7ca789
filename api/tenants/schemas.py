"""Bodies and answers of ``/v1/tenant``."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict

from api.bodies import Answer, Body
from online_agent.store.records import TenantRecord


class TenantUpdate(Body):
    """Said by an admin of the tenant for all its episodes."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"trains_shared_weights": True}]})

    trains_shared_weights: bool


class TenantOut(Answer):
    """``versions`` were trained on episodes of the tenant, and so was every version made from them.

    ``num_held`` episodes are in a step that runs: its version will be one of them. ``changed_at`` null: nobody of the
    tenant ever said anything, so nothing of it is trained on.
    """

    tenant_id: str
    trains_shared_weights: bool
    changed_at: float | None
    num_held: int
    versions: list[int]

    @classmethod
    def of(cls, record: TenantRecord) -> Self:
        return cls(
            tenant_id=record.id,
            trains_shared_weights=record.trains_shared_weights,
            changed_at=record.changed_at,
            num_held=record.num_held,
            versions=list(record.versions),
        )
