"""Feedback: every row is kept, with the fate it met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, select

from online_agent.errors import BadInput, NotFound
from online_agent.store.models import Episode, Feedback
from online_agent.store.records import FeedbackNew, FeedbackRecord
from online_agent.store.repositories.base import Repository, check_name
from online_agent.store.rewards import check_reward
from online_agent.types import EpisodeStatus, FeedbackFate

_STILL_COUNTS = (EpisodeStatus.OPEN, EpisodeStatus.FINISHED, EpisodeStatus.GRADED)


class FeedbackRepository(Repository):
    def add(self, tenant_id: str, episode_id: str, new: FeedbackNew) -> FeedbackRecord:
        """The feedback is stored with its fate. Raises NotFound, or BadInput naming the bad value.

        ACCEPTED     may still enter a training reward
        DUPLICATE    equals the last one of the same source
        LATE         the episode is reserved, trained, dropped or failed; the step is not changed. Where a reserved
                     episode returns to the queue, its late feedback is accepted again
        QUARANTINED  the task is held out: live feedback never touches it
        """
        check_name(new.source, "source")
        if new.reward is None and not new.text:
            raise BadInput("feedback needs a reward or a text", param="reward")
        reward = None if new.reward is None else check_reward(new.reward)
        query = select(Episode.status, Episode.split, Episode.num_turns).where(
            Episode.tenant_id == tenant_id, Episode.id == episode_id
        )
        episode = self._db.execute(query.with_for_update()).one_or_none()
        if episode is None:
            raise NotFound(f"no episode {episode_id!r}")
        turns = _check_turns(new.turns, None if episode.status == EpisodeStatus.OPEN else episode.num_turns)
        fate, reason = self._fate(episode_id, episode.status, episode.split, new, reward, turns)
        values: dict[str, Any] = {
            "source": new.source,
            "reward": reward,
            "text": new.text,
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
            return FeedbackFate.QUARANTINED, "held-out task"
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


def _check_turns(turns: Sequence[int], num_turns: int | None) -> tuple[int, ...]:
    for turn in turns:
        is_integer = isinstance(turn, int) and not isinstance(turn, bool)
        if not is_integer or turn < 0 or (num_turns is not None and turn >= num_turns):
            known = "0 or more" if num_turns is None else f"below {num_turns}"
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
    )
