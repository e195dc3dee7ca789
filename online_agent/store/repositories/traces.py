"""Where episodes came from, in OpenTelemetry's terms: the traces that asked for what a step trains on."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from online_agent.store.models import Completion, Episode
from online_agent.store.repositories.base import Repository


@dataclass(frozen=True, slots=True)
class EpisodeTrace:
    """A kept trace in which an episode was asked for, or one of the answers of a client's episode."""

    episode_id: str
    traceparent: str


class TraceRepository(Repository):
    def of_step(self, step: int) -> list[EpisodeTrace]:
        """Those of the episodes that the step holds or was trained on, without the answers that may not be trained on.

        In order of the episodes' ids and, within one, of its answers.
        """
        of_step = Episode.step == step
        own = select(Episode.id, Episode.traceparent).where(of_step, Episode.traceparent.is_not(None))
        answers = (
            select(Completion.episode_id, Completion.traceparent)
            .join(Episode, Episode.id == Completion.episode_id)
            .where(of_step, Completion.traceparent.is_not(None), Completion.untrainable_reason.is_(None))
            .order_by(Completion.episode_id, Completion.turn)
        )
        rows = [*self._db.execute(own.order_by(Episode.id)), *self._db.execute(answers)]
        return sorted((EpisodeTrace(*row) for row in rows), key=lambda trace: trace.episode_id)
