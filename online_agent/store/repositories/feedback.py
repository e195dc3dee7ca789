"""Feedback: every row is kept, with the fate it met."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, insert, select, update

from online_agent.errors import BadInput, Conflict, NotFound
from online_agent.store.models import Episode, Feedback
from online_agent.store.records import FeedbackNew, FeedbackRecord, FeedbackTrust
from online_agent.store.repositories.base import check_limit, check_name
from online_agent.store.repositories.consent import NOT_OPTED_IN, OPTED_OUT
from online_agent.store.repositories.feedback_trust import FeedbackTrustRows
from online_agent.store.rewards import check_reward
from online_agent.types import EpisodeStatus, FeedbackFate

HELD_OUT = "held-out task"
DISCARDED = "discarded by an operator"
_UNDECIDED = (Feedback.fate == FeedbackFate.QUARANTINED) & Feedback.fate_reason.not_in((HELD_OUT, DISCARDED))
_STILL_COUNTS = (EpisodeStatus.OPEN, EpisodeStatus.FINISHED, EpisodeStatus.GRADED)


class FeedbackRepository(FeedbackTrustRows):
    def add(
        self, tenant_id: str, episode_id: str, new: FeedbackNew, trust: FeedbackTrust | None = None
    ) -> FeedbackRecord:
        """The feedback is stored with its fate. Raises NotFound, or BadInput naming the bad value.

        ACCEPTED     may still enter a training reward; the reason says where the tenant lets nothing be trained
        DUPLICATE    equals the last one of the same source
        LATE         the episode is reserved, trained, dropped or failed; the step is not changed. Where a reserved
                     episode returns to the queue, its late feedback is accepted again
        QUARANTINED  the task is held out: live feedback never touches it; or ``trust`` does not let it count, and an
                     operator decides
        """
        check_name(new.source, "source")
        if new.person is not None:
            check_name(new.person, "person")
        if new.reward is None and not new.text:
            raise BadInput("feedback needs a reward or a text", param="reward")
        reward = None if new.reward is None else check_reward(new.reward)
        query = select(Episode.status, Episode.split, Episode.num_turns, Episode.untrainable_reason).where(
            Episode.tenant_id == tenant_id, Episode.id == episode_id
        )
        episode = self._db.execute(query.with_for_update()).one_or_none()
        if episode is None:
            raise NotFound(f"no episode {episode_id!r}")
        turns = _check_turns(new.turns, episode.num_turns)
        fate, reason = self._fate(episode_id, episode.status, episode.split, new, reward, turns)
        if trust is not None and fate is FeedbackFate.ACCEPTED:
            reason = self._mistrust(trust, tenant_id, new, reward)
            fate = FeedbackFate.ACCEPTED if reason is None else FeedbackFate.QUARANTINED
        if fate is FeedbackFate.ACCEPTED and episode.untrainable_reason in (NOT_OPTED_IN, OPTED_OUT):
            reason = episode.untrainable_reason
        values: dict[str, Any] = {
            "source": new.source,
            "person": new.person,
            "reward": reward,
            "text": new.text,
            "weight": check_weight(new.weight),
            "fate": fate,
            "fate_reason": reason,
            "created_at": self._now(),
        }
        statement = (
            insert(Feedback)
            .values(tenant_id=tenant_id, episode_id=episode_id, turns=list(turns), **values)
            .returning(Feedback.id)
        )
        feedback_id = int(self._db.execute(statement).scalar_one())
        return FeedbackRecord(id=feedback_id, episode_id=episode_id, turns=turns, step=None, **values)

    def of_episode(self, tenant_id: str, episode_id: str) -> list[FeedbackRecord]:
        """In order of arrival. Raises NotFound."""
        owned = select(Episode.id).where(Episode.tenant_id == tenant_id, Episode.id == episode_id)
        if self._db.execute(owned).one_or_none() is None:
            raise NotFound(f"no episode {episode_id!r}")
        query = select(*Feedback.__table__.columns).where(Feedback.episode_id == episode_id).order_by(Feedback.id)
        return [_feedback(row) for row in self._db.execute(query)]

    def quarantined(self, tenant_id: str, limit: int, after_id: int = 0) -> list[FeedbackRecord]:
        """What waits for an operator, oldest first: not what is about a held-out task, nor what was discarded."""
        query = (
            select(*Feedback.__table__.columns)
            .where(
                Feedback.tenant_id == tenant_id,
                _UNDECIDED,
                Feedback.id > after_id,
            )
            .order_by(Feedback.id)
            .limit(check_limit(limit))
        )
        return [_feedback(row) for row in self._db.execute(query)]

    def num_waiting(self) -> int:
        """Over all tenants: what an operator has not decided about."""
        return int(self._db.execute(select(func.count()).where(_UNDECIDED)).scalar_one())

    def release(self, tenant_id: str, feedback_id: int) -> FeedbackRecord:
        """The quarantined feedback counts, unless it is too late by now. Raises NotFound, Conflict."""
        row = self._waiting(tenant_id, feedback_id)
        status = self._db.execute(
            select(Episode.status).where(Episode.id == row.episode_id).with_for_update()
        ).scalar_one()
        if status in _STILL_COUNTS:
            return self._settled(feedback_id, FeedbackFate.ACCEPTED, None)
        return self._settled(feedback_id, FeedbackFate.LATE, f"episode is {status}")

    def discard(self, tenant_id: str, feedback_id: int) -> FeedbackRecord:
        """The quarantined feedback is kept and never counts. Raises NotFound, Conflict."""
        self._waiting(tenant_id, feedback_id)
        return self._settled(feedback_id, FeedbackFate.QUARANTINED, DISCARDED)

    def _waiting(self, tenant_id: str, feedback_id: int) -> Any:
        mine = (Feedback.tenant_id == tenant_id, Feedback.id == feedback_id)
        query = select(*Feedback.__table__.columns).where(*mine).with_for_update()
        row = self._db.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"no feedback {feedback_id}")
        if row.fate != FeedbackFate.QUARANTINED or row.fate_reason in (HELD_OUT, DISCARDED):
            why = f" ({row.fate_reason})" if row.fate_reason else ""
            raise Conflict(f"feedback {feedback_id} is {row.fate}{why}: there is nothing to decide")
        return row

    def _settled(self, feedback_id: int, fate: FeedbackFate, reason: str | None) -> FeedbackRecord:
        mine = Feedback.id == feedback_id
        self._db.execute(update(Feedback).where(mine).values(fate=fate, fate_reason=reason))
        return _feedback(self._db.execute(select(*Feedback.__table__.columns).where(mine)).one())

    def _fate(
        self,
        episode_id: str,
        status: str,
        split: str,
        new: FeedbackNew,
        reward: float | None,
        turns: tuple[int, ...],
    ) -> tuple[FeedbackFate, str | None]:
        if split != "train":
            return FeedbackFate.QUARANTINED, HELD_OUT
        query = (
            select(Feedback.reward, Feedback.text, Feedback.turns)
            .where(Feedback.episode_id == episode_id, Feedback.source == new.source)
            .order_by(Feedback.id.desc())
            .limit(1)
        )
        last = self._db.execute(query).one_or_none()
        if last is not None and (last.reward, last.text, tuple(last.turns)) == (reward, new.text, turns):
            return FeedbackFate.DUPLICATE, "same as the last one of this source"
        if status not in _STILL_COUNTS:
            return FeedbackFate.LATE, f"episode is {status}"
        return FeedbackFate.ACCEPTED, None


def check_weight(weight: float) -> float:
    """The weight as a float. Raises BadInput unless it is finite and not below 0."""
    if not math.isfinite(weight) or weight < 0:
        raise BadInput(f"weight must be a finite number of 0 or more, got {weight!r}", param="weight")
    return float(weight)


def _check_turns(turns: Sequence[int], num_turns: int) -> tuple[int, ...]:
    for turn in turns:
        is_integer = isinstance(turn, int) and not isinstance(turn, bool)
        if not is_integer or not 0 <= turn < num_turns:
            known = f"below {num_turns}" if num_turns else "left out while the episode has none"
            raise BadInput(f"turns must be {known}, got {turn!r}", param="turns")
    return tuple(turns)


def _feedback(row: Any) -> FeedbackRecord:
    return FeedbackRecord(
        id=row.id,
        episode_id=row.episode_id,
        source=row.source,
        reward=row.reward,
        text=row.text,
        turns=tuple(row.turns),
        fate=FeedbackFate(row.fate),
        fate_reason=row.fate_reason,
        step=row.step,
        created_at=row.created_at,
        person=row.person,
        weight=row.weight,
    )
