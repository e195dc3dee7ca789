"""Episodes: their life as compare-and-set moves, and how they are read, listed and erased."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Text, bindparam, case, delete, func, insert, literal_column, select, update

from envs.types import Artifact, Verdict
from online_agent.errors import BadInput, Conflict, NotFound
from online_agent.store.models import Episode, table_of
from online_agent.store.records import EpisodeGroup, EpisodeNew, EpisodeRecord, Page
from online_agent.store.records.episodes import MAX_GROUP_SIZE
from online_agent.store.repositories.base import check_limit, check_name, new_id
from online_agent.store.repositories.consent import bar_without_consent
from online_agent.store.repositories.grading import GradingRows
from online_agent.store.repositories.reservation import ReservationRows
from online_agent.store.repositories.success import SuccessRows
from online_agent.store.repositories.turns import TurnRows
from online_agent.types import EpisodeStatus, Limits, Sampling, StopReason

NO_ACTION_TOKENS = "no action tokens"
CANCELLED = "cancelled"


class EpisodeRepository(TurnRows, GradingRows, ReservationRows, SuccessRows):
    def create(self, new: EpisodeNew) -> str:
        """The episode is open; returns its id, which sorts by time of creation."""
        now = self._now()
        values = self._opened(new, now)
        self._db.execute(_INSERT, values)
        return str(values["id"])

    def create_group(self, new: EpisodeNew, group_size: int) -> EpisodeGroup:
        """``group_size`` episodes of one task are open, members of one new group. Raises BadInput outside 2..64."""
        if not 2 <= group_size <= MAX_GROUP_SIZE:
            raise BadInput(f"group_size must be 2 to {MAX_GROUP_SIZE}, got {group_size}", param="group_size")
        now = self._now()
        group_id = new_id("grp", now)
        values = self._opened(new, now)
        of_group = {"group_id": group_id, "group_size": group_size}
        members = [{**values, **of_group, "id": new_id("ep", now)} for _ in range(group_size)]
        self._db.execute(_INSERT, members)
        return EpisodeGroup(group_id, tuple(member["id"] for member in members))

    def get(self, tenant_id: str, episode_id: str) -> EpisodeRecord:
        """Raises NotFound, also for another tenant's episode."""
        row = self._db.execute(_GET, {"of_tenant": tenant_id, "of_episode": episode_id}).one_or_none()
        if row is None:
            raise NotFound(f"no episode {episode_id!r}")
        return _episode(row)

    def progress(self, episode_ids: Collection[str]) -> dict[str, tuple[str, EpisodeStatus]]:
        """Tenant and status of each of the episodes that exists."""
        query = select(Episode.id, Episode.tenant_id, Episode.status).where(Episode.id.in_(episode_ids))
        return {row.id: (row.tenant_id, EpisodeStatus(row.status)) for row in self._db.execute(query)}

    def finish(self, episode_id: str, stop_reason: StopReason, artifact: Artifact | None) -> None:
        """The open episode has ended with a result. Raises Conflict naming the state it is in otherwise.

        One without action tokens, and one that was cancelled, is untrainable from here on. An outage is no result.
        """
        if stop_reason is StopReason.OUTAGE:
            raise BadInput("an outage is not a result: record it with fail()")
        values = {
            "of_episode": episode_id,
            "stop_reason": stop_reason,
            "artifact": None if artifact is None else artifact.to_json(),
            "reason": CANCELLED if stop_reason is StopReason.CANCELLED else None,
            "finished_at": self._now(),
        }
        if self._db.execute(_FINISH, values).rowcount == 0:
            raise self._refused_move(episode_id, EpisodeStatus.FINISHED)

    def fail(self, episode_id: str, reason: str) -> None:
        """An outage (engine, sandbox, verifier) ended the episode: no reward, never trained on."""
        values = {"status": EpisodeStatus.FAILED, "failure_reason": reason, "stop_reason": StopReason.OUTAGE}
        self._move(episode_id, (EpisodeStatus.OPEN, EpisodeStatus.FINISHED), values)

    def drop(self, episode_id: str, reason: str) -> None:
        """The waiting episode is taken out of the queue, with the reason."""
        values = {"status": EpisodeStatus.DROPPED, "drop_reason": reason}
        self._move(episode_id, (EpisodeStatus.FINISHED, EpisodeStatus.GRADED), values)

    def mark_untrainable(self, episode_id: str, reason: str) -> None:
        """The episode is never reserved; the first reason is kept. Raises Conflict once it is reserved or trained."""
        waiting = (EpisodeStatus.OPEN, EpisodeStatus.FINISHED, EpisodeStatus.GRADED)
        kept = func.coalesce(Episode.untrainable_reason, reason)
        self._move(episode_id, waiting, {"untrainable_reason": kept})

    def fail_open(self, reason: str, older_than: float, tenant_id: str | None = None) -> list[str]:
        """Open episodes created before ``older_than`` have failed (their process is gone); returns their ids."""
        orphaned = [Episode.status == EpisodeStatus.OPEN, Episode.created_at < older_than]
        if tenant_id is not None:
            orphaned.append(Episode.tenant_id == tenant_id)
        values = {"status": EpisodeStatus.FAILED, "failure_reason": reason, "stop_reason": StopReason.OUTAGE}
        return list(self._db.execute(update(Episode).where(*orphaned).values(values).returning(Episode.id)).scalars())

    def erase(self, tenant_id: str, episode_id: str) -> None:
        """The episode, its turns and its feedback are gone; that a step trained on it stays known.

        Raises NotFound, or Conflict while a step holds it.
        """
        mine = (Episode.tenant_id == tenant_id, Episode.id == episode_id)
        gone = self._db.execute(delete(Episode).where(*mine, Episode.status != EpisodeStatus.RESERVED))
        if gone.rowcount == 0:
            record = self.get(tenant_id, episode_id)
            raise Conflict(f"episode {episode_id} is {record.status} by step {record.step}: erase it when that ends")

    def counts_by_status(self, tenant_id: str | None = None) -> dict[EpisodeStatus, int]:
        """Every status is a key."""
        query = select(Episode.status, func.count()).group_by(Episode.status)
        counts = dict.fromkeys(EpisodeStatus, 0)
        counts.update({EpisodeStatus(status): num for status, num in self._counts(query, tenant_id)})
        return counts

    def drops_by_reason(self, tenant_id: str | None = None) -> dict[str, int]:
        query = select(Episode.drop_reason, func.count()).where(Episode.drop_reason.is_not(None))
        return dict(self._counts(query.group_by(Episode.drop_reason), tenant_id))

    def untrainable_by_reason(self, tenant_id: str | None = None) -> dict[str, int]:
        query = select(Episode.untrainable_reason, func.count()).where(Episode.untrainable_reason.is_not(None))
        return dict(self._counts(query.group_by(Episode.untrainable_reason), tenant_id))

    def list(
        self,
        tenant_id: str,
        *,
        status: EpisodeStatus | None = None,
        env: str | None = None,
        weight_version: int | None = None,
        group_id: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[EpisodeRecord]:
        """The tenant's episodes, newest first. ``weight_version``: those with action tokens around that version."""
        query = _ALL.where(Episode.tenant_id == tenant_id).order_by(Episode.id.desc()).limit(check_limit(limit) + 1)
        if status is not None:
            query = query.where(Episode.status == status)
        if env is not None:
            query = query.where(Episode.env == env)
        if weight_version is not None:
            query = query.where(Episode.oldest_version <= weight_version, Episode.newest_version >= weight_version)
        if group_id is not None:
            query = query.where(Episode.group_id == group_id)
        if cursor is not None:
            query = query.where(Episode.id < check_name(cursor, "cursor"))
        rows = self._db.execute(query).all()
        items = [_episode(row) for row in rows[:limit]]
        return Page(items, items[-1].id if len(rows) > limit else None)

    def _opened(self, new: EpisodeNew, now: float) -> dict[str, Any]:
        reason = bar_without_consent(self._db, new.tenant_id, new.untrainable_reason)
        return {**episode_values(new, now), "untrainable_reason": reason}

    def _counts(self, query: Any, tenant_id: str | None) -> Collection[tuple[str, int]]:
        if tenant_id is not None:
            query = query.where(Episode.tenant_id == tenant_id)
        return [(row[0], row[1]) for row in self._db.execute(query)]

    def _move(self, episode_id: str, from_statuses: Collection[EpisodeStatus], values: dict[str, Any]) -> None:
        statement = update(Episode).where(Episode.id == episode_id, Episode.status.in_(from_statuses)).values(values)
        if self._db.execute(statement).rowcount == 0:
            raise self._refused_move(episode_id, values.get("status", "untrainable"))

    def _refused_move(self, episode_id: str, to_status: str) -> NotFound | Conflict:
        status = self._db.execute(select(Episode.status).where(Episode.id == episode_id)).scalar_one_or_none()
        if status is None:
            return NotFound(f"no episode {episode_id!r}")
        return Conflict(f"episode {episode_id} is {status}: it cannot become {to_status}")


_EPISODES = table_of(Episode)
_OF = _EPISODES.c
_ALL = select(*_OF)
_INSERT = insert(_EPISODES)
_GET = _ALL.where(_OF.tenant_id == bindparam("of_tenant"), _OF.id == bindparam("of_episode"))
_FINISH = (
    update(_EPISODES)
    .where(_OF.id == bindparam("of_episode"), _OF.status == literal_column(f"'{EpisodeStatus.OPEN}'"))
    .values(
        status=literal_column(f"'{EpisodeStatus.FINISHED}'"),
        stop_reason=bindparam("stop_reason"),
        artifact=bindparam("artifact"),
        untrainable_reason=func.coalesce(
            _OF.untrainable_reason,
            bindparam("reason", type_=Text),
            case((_OF.num_action_tokens == 0, literal_column(f"'{NO_ACTION_TOKENS}'"))),
        ),
        finished_at=bindparam("finished_at"),
    )
)


def episode_values(new: EpisodeNew, now: float) -> dict[str, Any]:
    """The row of an episode that is open, outside any group."""
    return {
        "id": new.id or new_id("ep", now),
        "tenant_id": check_name(new.tenant_id, "tenant_id"),
        "key_id": new.key_id,
        "env": check_name(new.env, "env"),
        "task_id": check_name(new.task_id, "task_id"),
        "split": new.split,
        "status": EpisodeStatus.OPEN,
        "env_revision": new.env_revision,
        "temperature": new.sampling.temperature,
        "top_p": new.sampling.top_p,
        "max_new_tokens": new.sampling.max_new_tokens,
        "limits": [new.limits.max_turns, new.limits.max_tokens, new.limits.timeout_s],
        "template_hash": new.template_hash,
        "tools_hash": new.tools_hash,
        "weight_version": new.weight_version,
        "task": None if new.task is None else dict(new.task),
        "tags": dict(new.metadata),
        "untrainable_reason": new.untrainable_reason,
        "num_turns": 0,
        "num_action_tokens": 0,
        "num_tool_calls": 0,
        "num_tool_errors": 0,
        "num_grading_attempts": 0,
        "created_at": now,
        "group_id": None,
        "group_size": None,
        "traceparent": new.traceparent,
    }


def _episode(row: Any) -> EpisodeRecord:
    verdict = None
    if row.reward is not None:
        verdict = Verdict(row.reward, row.is_success, row.evidence or {})
    return EpisodeRecord(
        id=row.id,
        tenant_id=row.tenant_id,
        key_id=row.key_id,
        env=row.env,
        task_id=row.task_id,
        split=row.split,
        status=EpisodeStatus(row.status),
        env_revision=row.env_revision,
        sampling=Sampling(row.temperature, row.top_p, row.max_new_tokens),
        limits=Limits(*row.limits),
        template_hash=row.template_hash,
        tools_hash=row.tools_hash,
        weight_version=row.weight_version,
        task=row.task,
        metadata=row.tags,
        artifact=None if row.artifact is None else Artifact.from_json(row.artifact),
        verdict=verdict,
        stop_reason=None if row.stop_reason is None else StopReason(row.stop_reason),
        failure_reason=row.failure_reason,
        drop_reason=row.drop_reason,
        untrainable_reason=row.untrainable_reason,
        num_turns=row.num_turns,
        num_action_tokens=row.num_action_tokens,
        num_tool_calls=row.num_tool_calls,
        num_tool_errors=row.num_tool_errors,
        oldest_version=row.oldest_version,
        newest_version=row.newest_version,
        step=row.step,
        created_at=row.created_at,
        finished_at=row.finished_at,
        graded_at=row.graded_at,
        trained_at=row.trained_at,
        group_id=row.group_id,
        group_size=row.group_size,
    )
