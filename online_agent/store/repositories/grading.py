"""Grading: a finished episode is leased to one grader, and takes one verdict."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Update, bindparam, literal_column, null, select, update

from envs.types import Artifact, Verdict
from online_agent.errors import Conflict, NotFound
from online_agent.store.models import Episode, table_of
from online_agent.store.records import CLIENT_ENV, GradingClaim
from online_agent.store.repositories.base import Repository, check_limit, check_name
from online_agent.store.rewards import check_reward
from online_agent.types import EpisodeStatus

_EPISODES = table_of(Episode)
_OF = _EPISODES.c


def _claim_where(chosen: ColumnElement[bool]) -> Update:
    """Leases the chosen episodes and says what a grader needs. Statements of the hot path are built once."""
    return (
        update(_EPISODES)
        .where(chosen)
        .values(
            grader=bindparam("worker"),
            grading_expires_at=bindparam("lease_ends"),
            num_grading_attempts=_OF.num_grading_attempts + 1,
        )
        .returning(
            _OF.id,
            _OF.tenant_id,
            _OF.env,
            _OF.task_id,
            _OF.task,
            _OF.artifact,
            _OF.num_grading_attempts,
            _OF.finished_at,
            _OF.traceparent,
        )
    )


_FREE = (
    (_OF.status == literal_column(f"'{EpisodeStatus.FINISHED}'"))
    & (_OF.grading_expires_at.is_(None) | (_OF.grading_expires_at <= bindparam("now")))
    & (_OF.env != literal_column(f"'{CLIENT_ENV}'"))  # those wait for feedback: no verifier knows them
)
_OLDEST = (
    select(_OF.id)
    .where(_FREE)
    .order_by(_OF.finished_at, _OF.id)
    .limit(bindparam("num"))
    .with_for_update(skip_locked=True)
)
_CLAIM_OLDEST = _claim_where(_OF.id.in_(_OLDEST))
_CLAIM_ONE = _claim_where((_OF.id == bindparam("of_episode")) & _FREE)
_GRADE = (
    update(_EPISODES)
    .where(_OF.id == bindparam("of_episode"), _OF.status == literal_column(f"'{EpisodeStatus.FINISHED}'"))
    .values(
        status=literal_column(f"'{EpisodeStatus.GRADED}'"),
        reward=bindparam("reward"),
        is_success=bindparam("is_success"),
        evidence=bindparam("evidence"),
        graded_at=bindparam("graded_at"),
        grader=null(),
        grading_expires_at=null(),
    )
)


class GradingRows(Repository):
    def claim_ungraded(
        self, worker: str, lease_s: float, limit: int = 1, episode_id: str | None = None
    ) -> list[GradingClaim]:
        """Finished episodes nobody holds, oldest first, leased to ``worker``. No two workers get the same one.

        With ``episode_id``, that one or nothing (a second delivery of the same task gets nothing).
        """
        check_name(worker, "worker")
        now = self._now()
        values = {"worker": worker, "now": now, "lease_ends": now + lease_s, "num": check_limit(limit)}
        if episode_id is None:
            rows = self._db.execute(_CLAIM_OLDEST, values).all()
        else:
            rows = self._db.execute(_CLAIM_ONE, {**values, "of_episode": episode_id}).all()
        return [_claim(row, now + lease_s) for row in sorted(rows, key=lambda row: (row.finished_at, row.id))]

    def release_grading(self, episode_id: str, worker: str) -> None:
        """The worker gives its lease back, so that the next one can try at once."""
        held = (Episode.id == episode_id, Episode.status == EpisodeStatus.FINISHED, Episode.grader == worker)
        self._db.execute(update(Episode).where(*held).values(grader=None, grading_expires_at=None))

    def grade(self, episode_id: str, verdict: Verdict) -> None:
        """The episode has its verdict. The first one counts: raises Conflict when it is not finished (any more).

        Raises BadInput naming a reward that is not finite or outside [-1, 1].
        """
        values = {
            "of_episode": episode_id,
            "reward": check_reward(verdict.reward),
            "is_success": verdict.is_success,
            "evidence": dict(verdict.evidence),
            "graded_at": self._now(),
        }
        if self._db.execute(_GRADE, values).rowcount == 0:
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
        traceparent=row.traceparent,
    )
