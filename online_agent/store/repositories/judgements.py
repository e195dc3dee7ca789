"""Answers that a judge may read: something followed them, they may be trained on, and none has dealt with them."""

from __future__ import annotations

from sqlalchemy import and_, exists, func, insert, or_, select
from sqlalchemy.orm import aliased

from online_agent.store.models import Completion, Episode, Judgement
from online_agent.store.records import DueJudgement
from online_agent.store.repositories.base import Repository, check_limit
from online_agent.store.repositories.consent import HAS_CONSENT
from online_agent.types import EpisodeStatus

_STILL_COUNTS = (EpisodeStatus.OPEN, EpisodeStatus.FINISHED, EpisodeStatus.GRADED)
_Next = aliased(Completion)
_GOES_ON = and_(
    _Next.episode_id == Completion.episode_id,
    or_(
        and_(_Next.segment == Completion.segment, _Next.turn > Completion.turn),
        _Next.branched_from == Completion.turn,
    ),
)
_DEALT_WITH = exists().where(Judgement.episode_id == Completion.episode_id, Judgement.turn == Completion.turn)
_DUE = (
    select(Completion.tenant_id, Completion.episode_id, Completion.turn, func.min(_Next.turn))
    .join(_Next, _GOES_ON)
    .join(Episode, Episode.id == Completion.episode_id)
    .where(
        Episode.status.in_(_STILL_COUNTS),
        Episode.untrainable_reason.is_(None),
        Completion.untrainable_reason.is_(None),
        HAS_CONSENT,
        ~_DEALT_WITH,
    )
    .group_by(Completion.tenant_id, Completion.episode_id, Completion.turn)
    .order_by(Completion.episode_id, Completion.turn)
)


class JudgementRepository(Repository):
    def due(self, limit: int) -> list[DueJudgement]:
        """The oldest episodes first."""
        return [DueJudgement(*row) for row in self._db.execute(_DUE.limit(check_limit(limit)))]

    def add(self, due: DueJudgement, outcome: str) -> bool:
        """The answer is dealt with. False where it was, or its episode is gone."""
        of_answer = (Completion.episode_id == due.episode_id, Completion.turn == due.turn)
        waiting = select(Completion.turn).where(*of_answer, ~_DEALT_WITH).with_for_update()
        if self._db.execute(waiting).one_or_none() is None:
            return False
        self._db.execute(
            insert(Judgement).values(
                episode_id=due.episode_id,
                turn=due.turn,
                tenant_id=due.tenant_id,
                outcome=outcome,
                created_at=self._now(),
            )
        )
        return True
