"""The learner's control row: fence, pause, current version, numbers to give out, reset requests.

Every transaction that reserves, commits, skips or fences locks this row first, so they happen one after another.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update

from online_agent.store.models import LearnerControl, Step, WeightVersion
from online_agent.store.records import Control, ResetRequest
from online_agent.store.repositories.base import Repository
from online_agent.store.repositories.reservation import ReservationRows
from online_agent.types import StepStatus, VersionState

_UNPUBLISHED = (VersionState.CANDIDATE, VersionState.LOADING, VersionState.VERIFIED, VersionState.REJECTING)


class ControlRepository(Repository):
    def get(self) -> Control:
        return _control(self._db.execute(select(*LearnerControl.__table__.columns)).one())

    def lock(self) -> Any:
        """The row, locked until the transaction ends."""
        return self._db.execute(select(*LearnerControl.__table__.columns).with_for_update()).one()

    def fence_out(self, version: int) -> int:
        """A rollback to ``version`` starts; returns the new fence. Call it before inserting the new version.

        The running step is fenced and its episodes return to the queue. Versions above ``version`` that served are
        marked rolled back (what they sampled is dropped at the next reservation); those not yet serving are rejected.
        """
        fence = int(self.lock().fence) + 1
        self._set(fence=fence)
        reserved = select(Step.step).where(Step.status == StepStatus.RESERVED)
        for step in self._db.execute(reserved).scalars().all():
            reason = f"rollback to version {version}"
            ended = {"status": StepStatus.FENCED, "reason": reason, "ended_at": self._now()}
            self._db.execute(update(Step).where(Step.step == step).values(ended))
            ReservationRows(self._db, self._now).release(step)
        above = WeightVersion.version > version
        self._db.execute(
            update(WeightVersion).where(above, WeightVersion.served_at.is_not(None)).values(is_rolled_back=True)
        )
        self._db.execute(
            update(WeightVersion)
            .where(above, WeightVersion.state.in_(_UNPUBLISHED))
            .values(
                state=VersionState.REJECTED,
                state_reason=f"rolled back to version {version} before it served",
                moved_at=self._now(),
            )
        )
        return fence

    def set_current_version(self, version: int) -> None:
        """The learner must continue from ``version``."""
        self._set(current_version=version)

    def pause(self) -> None:
        self._set(is_paused=True)

    def resume(self) -> None:
        self._set(is_paused=False)

    def request_reset(self, cause: str) -> None:
        """The learner resets its EWMA reference before its next step. The latest cause wins."""
        self._set(reset_cause=cause, reset_requested_at=self._now())

    def take_reset_request(self) -> ResetRequest | None:
        """The request, which is gone then."""
        request = _control(self.lock()).reset_request
        if request is not None:
            self._set(reset_cause=None, reset_requested_at=None)
        return request

    def _set(self, **values: Any) -> None:
        self._db.execute(update(LearnerControl).values(**values))


def _control(row: Any) -> Control:
    request = None if row.reset_cause is None else ResetRequest(row.reset_cause, row.reset_requested_at)
    return Control(row.fence, row.is_paused, row.current_version, request)
