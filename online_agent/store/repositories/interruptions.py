"""The agreement between learner and api about pausing the engine. Each move is a compare-and-set.

The learner asks and later releases; the api pauses, resumes and ends. Either may die at any point: an open row that
nobody ends is ended by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, insert, select, update

from online_agent.store.encoding import pack_spans
from online_agent.store.models import Episode, Interruption, PartialGeneration
from online_agent.store.records import InterruptionRecord, InterruptionState, PartialGenerationNew
from online_agent.store.repositories.base import Repository

_ALL = select(
    Interruption.number,
    Interruption.version,
    Interruption.state,
    Interruption.outcome,
    Interruption.asked_at,
    Interruption.paused_at,
    Interruption.ended_at,
)
_S = InterruptionState
SUPERSEDED = "superseded"


class InterruptionRepository(Repository):
    def ask(self, version: int) -> int:
        """The learner wants the engine paused before it replaces ``version``; the number of the new row.

        One that is still open is ended as superseded.
        """
        self._db.execute(self._ended(SUPERSEDED, self._now()).where(Interruption.is_open))
        values = {"version": version, "state": _S.ASKED, "is_open": True, "asked_at": self._now()}
        return int(self._db.execute(insert(Interruption).values(values).returning(Interruption.number)).scalar_one())

    def get(self, number: int) -> InterruptionRecord | None:
        row = self._db.execute(_ALL.where(Interruption.number == number)).one_or_none()
        return None if row is None else _record(row)

    def current(self) -> InterruptionRecord | None:
        """The open one. Cheap enough to poll."""
        row = self._db.execute(_ALL.where(Interruption.is_open)).one_or_none()
        return None if row is None else _record(row)

    def pause(self, number: int, paused_at: float, partials: Sequence[PartialGenerationNew]) -> bool:
        """asked → paused: the engine samples nothing since ``paused_at``; what was under way is stored.

        False, storing nothing, when the learner no longer waits. Generations of erased episodes are left out.
        """
        asked = (Interruption.number == number, Interruption.state == _S.ASKED)
        moved = self._db.execute(update(Interruption).where(*asked).values(state=_S.PAUSED, paused_at=paused_at))
        if moved.rowcount == 0:
            return False
        self._db.execute(delete(PartialGeneration))
        tenant_of = self._tenants([partial.episode_id for partial in partials])
        rows = [_partial(p, tenant_of[p.episode_id], self._now()) for p in partials if p.episode_id in tenant_of]
        if rows:
            self._db.execute(insert(PartialGeneration), rows)
        return True

    def release(self, number: int) -> bool:
        """The learner publishes nothing: a paused engine may go on, one that was only asked for need not pause."""
        mine = Interruption.number == number
        if self._db.execute(self._ended("withdrawn", self._now()).where(mine, Interruption.state == _S.ASKED)).rowcount:
            return True
        paused = update(Interruption).where(mine, Interruption.state == _S.PAUSED).values(state=_S.RELEASED)
        return bool(self._db.execute(paused).rowcount)

    def end(self, number: int, outcome: str, ended_at: float | None = None) -> bool:
        """The engine samples again since ``ended_at`` (now when not given). False when it had ended already."""
        mine = (Interruption.number == number, Interruption.is_open)
        return bool(self._db.execute(self._ended(outcome, ended_at or self._now()).where(*mine)).rowcount)

    def ended_after(self, number: int) -> list[InterruptionRecord]:
        """Those with a higher number that paused the engine and have ended, in order."""
        query = _ALL.where(Interruption.number > number, ~Interruption.is_open, Interruption.paused_at.is_not(None))
        return [_record(row) for row in self._db.execute(query.order_by(Interruption.number))]

    def _ended(self, outcome: str, ended_at: float) -> Any:
        return update(Interruption).values(state=_S.ENDED, is_open=False, outcome=outcome, ended_at=ended_at)

    def _tenants(self, episode_ids: Sequence[str]) -> dict[str, str]:
        query = select(Episode.id, Episode.tenant_id).where(Episode.id.in_(episode_ids))
        return {row.id: row.tenant_id for row in self._db.execute(query)}


def _partial(new: PartialGenerationNew, tenant_id: str, now: float) -> dict[str, Any]:
    index, token_ids, logprobs = pack_spans(new.spans)
    return {
        "episode_id": new.episode_id,
        "tenant_id": tenant_id,
        "temperature": new.temperature,
        "span_index": index,
        "token_ids": token_ids,
        "logprobs": logprobs,
        "created_at": now,
    }


def _record(row: Any) -> InterruptionRecord:
    return InterruptionRecord(
        row.number, row.version, _S(row.state), row.outcome, row.asked_at, row.paused_at, row.ended_at
    )
