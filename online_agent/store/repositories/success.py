"""Success over time, for adaptation curves and drift detectors.

Tasks given with a request are left out: how hard they are is their sender's choice, so they say nothing about how the
agent does on what the environment itself asks.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Integer, Select, cast, func, select

from envs.given import GIVEN_PREFIX
from online_agent.errors import BadInput
from online_agent.store.models import Episode
from online_agent.store.records import SeriesBucket, SeriesPoint
from online_agent.store.repositories.base import Repository

_COLUMNS = (
    Episode.id,
    Episode.finished_at,
    Episode.split,
    Episode.reward,
    Episode.is_success,
    Episode.oldest_version,
    Episode.newest_version,
    Episode.env_revision,
    Episode.temperature,
    Episode.num_turns,
    Episode.num_action_tokens,
    Episode.num_tool_calls,
    Episode.num_tool_errors,
)

_POINTS: Select[*tuple[Any, ...]] = select(*_COLUMNS)


class SuccessRows(Repository):
    def envs(self) -> list[str]:
        """The environments with at least one episode, by name."""
        return list(self._db.execute(select(Episode.env).distinct().order_by(Episode.env)).scalars())

    def success_series(
        self,
        env: str,
        *,
        tenant_id: str | None = None,
        split: str | None = None,
        since: float | None = None,
        after: tuple[float, str] | None = None,
        limit: int | None = None,
    ) -> list[SeriesPoint]:
        """Graded episodes of ``env`` (also those reserved, trained or dropped since) in order of finishing.

        ``since`` is a time; ``after`` is the (finished_at, episode_id) of a point already read.
        """
        query = _graded(_POINTS, env, tenant_id, split, since).order_by(Episode.finished_at, Episode.id)
        if after is not None:
            at, episode_id = after
            query = query.where((Episode.finished_at > at) | ((Episode.finished_at == at) & (Episode.id > episode_id)))
        if limit is not None:
            query = query.limit(limit)
        return [SeriesPoint(*row) for row in self._db.execute(query)]

    def success_buckets(
        self,
        env: str,
        size: int,
        *,
        tenant_id: str | None = None,
        split: str | None = None,
        since: float | None = None,
    ) -> list[SeriesBucket]:
        """The series in groups of ``size`` consecutive episodes, added up by the database."""
        if size < 1:
            raise BadInput(f"size must be at least 1, got {size}", param="size")
        position = func.row_number().over(order_by=(Episode.finished_at, Episode.id))
        bucket = ((position - 1) // size).label("bucket")
        rows = _graded(select(bucket, *_COLUMNS), env, tenant_id, split, since).subquery()
        query = (
            select(
                rows.c.bucket,
                func.count(),
                func.sum(cast(rows.c.is_success, Integer)),
                func.avg(rows.c.reward),
                func.sum(rows.c.num_tool_calls),
                func.sum(rows.c.num_tool_errors),
                func.min(rows.c.finished_at),
                func.max(rows.c.finished_at),
            )
            .group_by(rows.c.bucket)
            .order_by(rows.c.bucket)
        )
        return [SeriesBucket(*row) for row in self._db.execute(query)]


def _graded(
    query: Select[*tuple[Any, ...]], env: str, tenant_id: str | None, split: str | None, since: float | None
) -> Select[Any]:
    is_of_env = (Episode.env == env) & ~Episode.task_id.startswith(GIVEN_PREFIX, autoescape=True)
    query = query.where(is_of_env, Episode.graded_at.is_not(None))
    if tenant_id is not None:
        query = query.where(Episode.tenant_id == tenant_id)
    if split is not None:
        query = query.where(Episode.split == split)
    if since is not None:
        query = query.where(Episode.finished_at >= since)
    return query
