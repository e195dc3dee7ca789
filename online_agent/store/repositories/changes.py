"""Injected changes: pending until enough episodes of their environment have finished, then active, then ended."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, func, insert, literal_column, select, update

from online_agent.errors import BadInput, Conflict, NotFound
from online_agent.store.models import EnvChange, Episode, table_of
from online_agent.store.records import ChangeNew, ChangeRecord
from online_agent.store.repositories.base import Repository, check_name, new_id
from online_agent.types import ChangeState, Visibility

# The agent loop asks for these with every turn and every end: they are built once.
_OF = table_of(EnvChange).c
_OF_ENV = select(*_OF).where(_OF.env == bindparam("of_env"))
_ACTIVE = _OF_ENV.where(_OF.state == literal_column(f"'{ChangeState.ACTIVE}'")).order_by(_OF.activated_at, _OF.id)
_NOT_ENDED = (
    _OF_ENV.where(_OF.state.in_([literal_column(f"'{state}'") for state in (ChangeState.PENDING, ChangeState.ACTIVE)]))
    .order_by(_OF.id)
    .with_for_update()
)


class ChangeRepository(Repository):
    def add(self, new: ChangeNew) -> ChangeRecord:
        """The change is stored: active when it starts now, pending otherwise. Raises BadInput for bad counts."""
        if new.starts_after_episodes < 0:
            raise BadInput(f"starts: after_episodes must be >= 0, got {new.starts_after_episodes}", param="starts")
        if new.ends_after_episodes is not None and new.ends_after_episodes <= new.starts_after_episodes:
            raise BadInput(
                f"ends: after_episodes must be > {new.starts_after_episodes}, got {new.ends_after_episodes}",
                param="ends",
            )
        now = self._now()
        finished = self.finished_episodes(check_name(new.env, "env"))
        is_now = new.starts_after_episodes == 0
        record = ChangeRecord(
            id=new_id("chg", now),
            tenant_id=new.tenant_id,
            env=new.env,
            kind=new.kind,
            params=dict(new.params),
            visibility=new.visibility,
            is_mid_episode=new.is_mid_episode,
            state=ChangeState.ACTIVE if is_now else ChangeState.PENDING,
            starts_at_count=finished + new.starts_after_episodes,
            ends_at_count=None if new.ends_after_episodes is None else finished + new.ends_after_episodes,
            created_at=now,
            activated_at=now if is_now else None,
            ended_at=None,
        )
        values = {column.key: getattr(record, column.key) for column in EnvChange.__table__.columns}
        self._db.execute(insert(EnvChange).values(**values))
        return record

    def get(self, tenant_id: str, change_id: str) -> ChangeRecord:
        return _change(self._row(tenant_id, change_id))

    def of_env(self, env: str, tenant_id: str | None = None) -> list[ChangeRecord]:
        """Every change of the environment, of all tenants unless one is named, in order of injection."""
        query = select(*EnvChange.__table__.columns).where(EnvChange.env == env).order_by(EnvChange.id)
        if tenant_id is not None:
            query = query.where(EnvChange.tenant_id == tenant_id)
        return [_change(row) for row in self._db.execute(query)]

    def active(self, env: str, tenant_id: str | None = None) -> list[ChangeRecord]:
        """The changes in force, in the order they came into force. With ``tenant_id``, only that tenant's."""
        query = _ACTIVE if tenant_id is None else _ACTIVE.where(_OF.tenant_id == tenant_id)
        return [_change(row) for row in self._db.execute(query, {"of_env": env})]

    def revert(self, tenant_id: str, change_id: str) -> ChangeRecord:
        """The change is ended. Raises NotFound, or Conflict when it had ended before."""
        row = self._row(tenant_id, change_id)
        if row.state == ChangeState.ENDED:
            raise Conflict(f"change {change_id} has ended already")
        self._move(change_id, ChangeState.ENDED)
        return self.get(tenant_id, change_id)

    def activate_due(self, env: str, finished_episodes: int | None = None) -> list[ChangeRecord]:
        """Starts and ends what is due; returns the changes that moved, in their new state.

        ``finished_episodes`` is the total of ``env``; None counts it here.
        """
        rows = self._db.execute(_NOT_ENDED, {"of_env": env}).all()
        if not rows:
            return []
        count = self.finished_episodes(env) if finished_episodes is None else finished_episodes
        moved: list[ChangeRecord] = []
        for row in rows:
            if row.ends_at_count is not None and count >= row.ends_at_count:
                self._move(row.id, ChangeState.ENDED)
            elif row.state == ChangeState.PENDING and count >= row.starts_at_count:
                self._move(row.id, ChangeState.ACTIVE)
            else:
                continue
            moved.append(self.get(row.tenant_id, row.id))
        return moved

    def finished_episodes(self, env: str) -> int:
        """How many episodes of ``env`` have ended with a result."""
        query = select(func.count()).where(Episode.env == env, Episode.finished_at.is_not(None))
        return int(self._db.execute(query).scalar_one())

    def _row(self, tenant_id: str, change_id: str) -> Any:
        query = select(*EnvChange.__table__.columns).where(EnvChange.tenant_id == tenant_id, EnvChange.id == change_id)
        row = self._db.execute(query.with_for_update()).one_or_none()
        if row is None:
            raise NotFound(f"no change {change_id!r}")
        return row

    def _move(self, change_id: str, state: ChangeState) -> None:
        time_of = "activated_at" if state is ChangeState.ACTIVE else "ended_at"
        self._db.execute(
            update(EnvChange).where(EnvChange.id == change_id).values({"state": state, time_of: self._now()})
        )

    def list(self, tenant_id: str, env: str | None = None) -> list[ChangeRecord]:
        """Every change of the tenant, in order of injection."""
        query = select(*EnvChange.__table__.columns).where(EnvChange.tenant_id == tenant_id).order_by(EnvChange.id)
        if env is not None:
            query = query.where(EnvChange.env == env)
        return [_change(row) for row in self._db.execute(query)]


def _change(row: Any) -> ChangeRecord:
    values = dict(row._mapping)
    values["state"] = ChangeState(row.state)
    values["visibility"] = Visibility(row.visibility)
    return ChangeRecord(**values)
