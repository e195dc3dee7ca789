"""What tenants agreed to: said once, asked at every claim."""

from __future__ import annotations

from sqlalchemy import func, insert, select, update

from online_agent.store.models import Episode, Step, StepEpisode, Tenant
from online_agent.store.records import TenantRecord
from online_agent.store.repositories.base import Repository, check_name
from online_agent.store.repositories.consent import OPTED_OUT
from online_agent.store.repositories.control import ControlRepository
from online_agent.types import EpisodeStatus, StepStatus

_WAITING = (EpisodeStatus.OPEN, EpisodeStatus.FINISHED, EpisodeStatus.GRADED)


class TenantRepository(Repository):
    def get(self, tenant_id: str) -> TenantRecord:
        """What the tenant said last, and what its episodes went into."""
        row = self._db.execute(select(*Tenant.__table__.columns).where(Tenant.id == tenant_id)).one_or_none()
        held = select(func.count()).where(Episode.tenant_id == tenant_id, Episode.status == EpisodeStatus.RESERVED)
        return TenantRecord(
            id=tenant_id,
            trains_shared_weights=row is not None and row.trains_shared_weights,
            changed_at=None if row is None else row.changed_at,
            num_held=int(self._db.execute(held).scalar_one()),
            versions=self._versions(tenant_id),
        )

    def set_training(self, tenant_id: str, trains: bool) -> TenantRecord:
        """From now on the tenant's episodes may train the shared weights, or no longer.

        Opting in is for episodes opened later. Opting out bars for good all that waits; what a running step holds is
        told as ``num_held``. It takes turns with reservations, so none is claimed unseen.
        """
        check_name(tenant_id, "tenant_id")
        ControlRepository(self._db, self._now).lock()
        values = {"trains_shared_weights": trains, "changed_at": self._now()}
        changed = self._db.execute(update(Tenant).where(Tenant.id == tenant_id).values(values))
        if changed.rowcount == 0:
            self._db.execute(insert(Tenant).values(id=tenant_id, **values))
        if not trains:
            waiting = (Episode.tenant_id == tenant_id, Episode.status.in_(_WAITING))
            barred = func.coalesce(Episode.untrainable_reason, OPTED_OUT)
            self._db.execute(update(Episode).where(*waiting).values(untrainable_reason=barred))
        return self.get(tenant_id)

    def opt_in_once(self, tenant_id: str) -> None:
        """The tenant takes part unless it said something before."""
        if self._db.execute(select(Tenant.id).where(Tenant.id == tenant_id)).one_or_none() is None:
            self.set_training(tenant_id, trains=True)

    def _versions(self, tenant_id: str) -> tuple[int, ...]:
        query = (
            select(Step.version)
            .join(StepEpisode, StepEpisode.step == Step.step)
            .where(StepEpisode.tenant_id == tenant_id, Step.status == StepStatus.COMMITTED, Step.version.is_not(None))
            .distinct()
            .order_by(Step.version)
        )
        return tuple(version for version in self._db.execute(query).scalars() if version is not None)
