"""Erasing what a tenant keeps for some days only."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, func, select

from online_agent.store.models import Episode
from online_agent.store.repositories.base import Repository, check_limit
from online_agent.types import EpisodeStatus

_STAYS = (EpisodeStatus.OPEN, EpisodeStatus.RESERVED)


class ExpiryRepository(Repository):
    def ended(self, tenant_id: str, before: float, limit: int) -> list[str]:
        """Up to ``limit`` of the tenant's episodes that ended before then and that no step holds, oldest first."""
        query = (
            select(Episode.id)
            .where(
                Episode.tenant_id == tenant_id,
                Episode.status.not_in(_STAYS),
                func.coalesce(Episode.finished_at, Episode.created_at) < before,
            )
            .order_by(Episode.id)
            .limit(check_limit(limit))
        )
        return list(self._db.execute(query).scalars())

    def erase(self, episode_ids: Collection[str]) -> int:
        """Those of them are gone, with turns and feedback, that are not open again or held by a step; how many.

        That steps trained on them stays known.
        """
        gone = delete(Episode).where(Episode.id.in_(episode_ids), Episode.status.not_in(_STAYS))
        return int(self._db.execute(gone).rowcount)
