"""Grading: a finished episode is leased to one grader, and takes one verdict."""

from __future__ import annotations

from typing import Any

from sqlalchemy import or_, select, update

from envs.types import Artifact, Verdict
from online_agent.errors import Conflict, NotFound
from online_agent.store.models import Episode
from online_agent.store.records import GradingClaim
from online_agent.store.repositories.base import Repository, check_limit, check_name
from online_agent.store.rewards import check_reward
from online_agent.types import EpisodeStatus


class GradingRows(Repository):
    def claim_ungraded(
        self, worker: str, lease_s: float, limit: int = 1, episode_id: str | None = None
    ) -> list[GradingClaim]:
        """Finished episodes nobody holds, oldest first, leased to ``worker``. No two workers get the same one.

        With ``episode_id``, that one or nothing (a second delivery of the same task gets nothing).
        """
        check_name(worker, "worker")
        now = self._now()
        free = or_(Episode.grading_expires_at.is_(None), Episode.grading_expires_at <= now)
        query = (
            select(Episode.id)
            .where(Episode.status == EpisodeStatus.FINISHED, free)
            .order_by(Episode.finished_at, Episode.id)
            .limit(check_limit(limit))
            .with_for_update(skip_locked=True)
        )
        if episode_id is not None:
            query = query.where(Episode.id == episode_id)
        ids = list(self._db.execute(query).scalars())
        if not ids:
            return []
        leased = {
            "grader": worker,
            "grading_expires_at": now + lease_s,
            "num_grading_attempts": Episode.num_grading_attempts + 1,
        }
        self._db.execute(update(Episode).where(Episode.id.in_(ids)).values(leased))
        claimed = select(
            Episode.id,
            Episode.tenant_id,
            Episode.env,
            Episode.task_id,
            Episode.task,
            Episode.artifact,
            Episode.num_grading_attempts,
        )
        rows = self._db.execute(claimed.where(Episode.id.in_(ids)).order_by(Episode.finished_at, Episode.id))
        return [_claim(row, now + lease_s) for row in rows]

    def release_grading(self, episode_id: str, worker: str) -> None:
        """The worker gives its lease back, so that the next one can try at once."""
        held = (Episode.id == episode_id, Episode.status == EpisodeStatus.FINISHED, Episode.grader == worker)
        self._db.execute(update(Episode).where(*held).values(grader=None, grading_expires_at=None))

    def grade(self, episode_id: str, verdict: Verdict) -> None:
        """The episode has its verdict. The first one counts: raises Conflict when it is not finished (any more).

        Raises BadInput naming a reward that is not finite or outside [-1, 1].
        """
        values = {
            "status": EpisodeStatus.GRADED,
            "reward": check_reward(verdict.reward),
            "is_success": verdict.is_success,
            "evidence": dict(verdict.evidence),
            "graded_at": self._now(),
            "grader": None,
            "grading_expires_at": None,
        }
        finished = (Episode.id == episode_id, Episode.status == EpisodeStatus.FINISHED)
        if self._db.execute(update(Episode).where(*finished).values(values)).rowcount == 0:
            status = self._db.execute(select(Episode.status).where(Episode.id == episode_id)).scalar_one_or_none()
            if status is None:
                raise NotFound(f"no episode {episode_id!r}")
            raise Conflict(f"episode {episode_id} is {status}: only a finished one can be graded")


def _claim(row: Any, expires_at: float) -> GradingClaim:
    return GradingClaim(
        episode_id=row.id,
        tenant_id=row.tenant_id,
        env=row.env,
        task_id=row.task_id,
        task=row.task,
        artifact=None if row.artifact is None else Artifact.from_json(row.artifact),
        attempt=row.num_grading_attempts,
        expires_at=expires_at,
    )
