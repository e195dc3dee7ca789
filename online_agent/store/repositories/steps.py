"""Learner steps. ``commit`` is the point at which a step has happened."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import func, insert, select, update

from online_agent.errors import Conflict, Fenced, NotFound
from online_agent.store.models import Feedback, LearnerControl, Step, StepEpisode
from online_agent.store.records import StepNew, StepRecord, VersionNew
from online_agent.store.repositories.base import Repository, check_limit
from online_agent.store.repositories.control import ControlRepository
from online_agent.store.repositories.reservation import ReservationRows
from online_agent.store.repositories.weights import WeightRepository
from online_agent.types import FeedbackFate, StepStatus, episode_id_of


def step_identity(episode_ids: Sequence[str], recipe: str, seed: int) -> str:
    """SHA-256 over the ordered episode ids, the recipe and the seed: what a step is, before any work."""
    return hashlib.sha256(json.dumps([list(episode_ids), recipe, seed]).encode()).hexdigest()


class StepRepository(Repository):
    """Reserving is one transaction::

    step = tx.steps.next_step()
    episodes = tx.episodes.reserve(step, batch, current_version, max_staleness)
    if episodes:
        tx.steps.reserve(StepNew(step, [e.id for e in episodes], identity, ...))
    """

    def next_step(self) -> int:
        """The number the next reserved step gets; nothing is used up."""
        return int(self._control.lock().next_step)

    def reserve(self, new: StepNew) -> int:
        """The step is a row with its identity and lease. Returns its number.

        Raises Fenced when a rollback came in between, Conflict when another step is reserved or when
        ``episode_ids`` are not what ``tx.episodes.reserve`` gave to this step.
        """
        control = self._control.lock()
        if control.fence != new.fence:
            raise Fenced(f"step {new.step} was prepared under fence {new.fence}, which is now {control.fence}")
        if control.next_step != new.step:
            raise Conflict(f"the next step is {control.next_step}, not {new.step}")
        running = self._db.execute(select(Step.step).where(Step.status == StepStatus.RESERVED)).scalar_one_or_none()
        if running is not None:
            raise Conflict(f"step {running} is reserved")
        given = select(StepEpisode.episode_id).where(StepEpisode.step == new.step).order_by(StepEpisode.position)
        episode_ids = list(dict.fromkeys(map(episode_id_of, new.episode_ids)))
        if list(self._db.execute(given).scalars()) != episode_ids:
            raise Conflict(f"step {new.step} names other episodes than were reserved for it")
        now = self._now()
        self._db.execute(
            insert(Step).values(
                step=new.step,
                status=StepStatus.RESERVED,
                identity=new.identity,
                recipe=new.recipe,
                seed=new.seed,
                parent_version=new.parent_version,
                fence=new.fence,
                owner=new.owner,
                num_episodes=len(episode_ids),
                metrics={},
                reserved_at=now,
                expires_at=now + new.lease_s,
            )
        )
        self._db.execute(update(LearnerControl).values(next_step=new.step + 1))
        return new.step

    def get(self, step: int) -> StepRecord:
        row = self._db.execute(_ALL.where(Step.step == step)).one_or_none()
        if row is None:
            raise NotFound(f"no step {step}")
        return _step(row)

    def last(self, n: int, before: int | None = None) -> list[StepRecord]:
        """The newest ``n`` steps, newest first; ``before`` continues below that number."""
        query = _ALL.order_by(Step.step.desc()).limit(check_limit(n))
        if before is not None:
            query = query.where(Step.step < before)
        return [_step(row) for row in self._db.execute(query)]

    def counts_by_status(self) -> dict[StepStatus, int]:
        """Every status is a key."""
        query = select(Step.status, func.count()).group_by(Step.status)
        counts = dict.fromkeys(StepStatus, 0)
        counts.update({StepStatus(row[0]): row[1] for row in self._db.execute(query)})
        return counts

    def running(self) -> StepRecord | None:
        row = self._db.execute(_ALL.where(Step.status == StepStatus.RESERVED)).one_or_none()
        return None if row is None else _step(row)

    def commit(self, step: int, version: VersionNew, metrics: Mapping[str, Any], fence: int) -> None:
        """The step has happened: its episodes are trained, their feedback is used, the version is a candidate.

        Raises Fenced, changing nothing, when a rollback or the reaper overtook the step.
        """
        self._end(step, StepStatus.COMMITTED, fence, metrics=dict(metrics), version=version.version)
        num_trained = ReservationRows(self._db, self._now).mark_trained(step)
        num_expected = self.get(step).num_episodes
        if num_trained != num_expected:
            raise Conflict(f"step {step} has {num_expected} episodes, {num_trained} of them still reserved")
        of_step = select(StepEpisode.episode_id).where(StepEpisode.step == step)
        self._db.execute(
            update(Feedback)
            .where(
                Feedback.episode_id.in_(of_step),
                Feedback.fate == FeedbackFate.ACCEPTED,
                Feedback.reward.is_not(None),
            )
            .values(fate=FeedbackFate.USED, step=step)
        )
        WeightRepository(self._db, self._now).insert(replace(version, metrics={**metrics, **version.metrics}))

    def skip(self, step: int, reason: str, metrics: Mapping[str, Any], fence: int | None = None) -> None:
        """The step is a row without a version; its episodes are dropped with the reason, so it cannot repeat itself.

        Raises Fenced when a rollback or the reaper overtook the step.
        """
        self._end(step, StepStatus.SKIPPED, fence, metrics=dict(metrics), reason=reason)
        ReservationRows(self._db, self._now).drop_reserved(step, f"skipped: {reason}")

    def renew(self, step: int, fence: int, lease_s: float) -> None:
        """The lease runs until now + lease_s. Raises Fenced when the step is no longer reserved."""
        changed = self._db.execute(
            update(Step)
            .where(Step.step == step, Step.status == StepStatus.RESERVED, Step.fence == fence)
            .values(expires_at=self._now() + lease_s)
        )
        if changed.rowcount == 0:
            raise Fenced(f"step {step} is no longer reserved")

    def abandon_expired(self, now: float | None = None) -> list[int]:
        """Steps whose lease ended are abandoned, their episodes back in the queue; returns the step numbers."""
        self._control.lock()
        expired = Step.expires_at <= (self._now() if now is None else now)
        return self._abandon(expired, "lease expired")

    def release_own(self, owner: str) -> list[int]:
        """A learner that starts gives back what its last life had reserved; returns the step numbers."""
        self._control.lock()
        return self._abandon(Step.owner == owner, f"{owner} restarted")

    @property
    def _control(self) -> ControlRepository:
        return ControlRepository(self._db, self._now)

    def _end(self, step: int, status: StepStatus, fence: int | None, **values: Any) -> None:
        current_fence = self._control.lock().fence
        mine = [Step.step == step, Step.status == StepStatus.RESERVED, Step.fence == current_fence]
        if fence is not None:
            mine.append(Step.fence == fence)
        statement = update(Step).where(*mine).values(status=status, ended_at=self._now(), **values)
        if self._db.execute(statement).rowcount == 0:
            record = self.get(step)
            raise Fenced(f"step {step} is {record.status} (fence {record.fence}, now {current_fence})")

    def _abandon(self, which: Any, reason: str) -> list[int]:
        query = select(Step.step).where(Step.status == StepStatus.RESERVED, which)
        steps = list(self._db.execute(query).scalars())
        for step in steps:
            ended = {"status": StepStatus.ABANDONED, "reason": reason, "ended_at": self._now()}
            self._db.execute(update(Step).where(Step.step == step).values(ended))
            ReservationRows(self._db, self._now).release(step)
        return steps


_ALL = select(*Step.__table__.columns)


def _step(row: Any) -> StepRecord:
    return StepRecord(**{**row._mapping, "status": StepStatus(row.status)})
