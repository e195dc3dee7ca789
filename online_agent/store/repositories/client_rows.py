"""Reading the turns of a client's episode: how they hang together, their tokens, and the rows they are trained as."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import func, select

from online_agent.store.encoding import unpack_spans
from online_agent.store.models import ClientEpisode, Completion, Episode, Turn
from online_agent.store.records import ClientTokens, CompletionLink
from online_agent.store.repositories.base import Repository
from online_agent.store.segments import TrainableTurn, training_rows
from online_agent.types import Span, TrainingEpisode

_LINK = (
    Completion.turn,
    Completion.completion_id,
    Completion.choice,
    Completion.segment,
    Completion.branched_from,
    Completion.prompt_hash,
    Completion.history_hash,
    Completion.message_hash,
    Completion.num_forced,
    Completion.is_cut_short,
    Completion.created_at,
)


_SAMPLED = Episode.num_action_tokens + ClientEpisode.num_discarded_tokens


class ClientRows(Repository):
    def tokens(self) -> ClientTokens:
        """How much of what clients sampled can be trained on."""
        share = ClientEpisode.num_kept_tokens * 1.0 / func.nullif(_SAMPLED, 0)
        query = select(
            func.count(),
            func.coalesce(func.sum(_SAMPLED), 0),
            func.coalesce(func.sum(ClientEpisode.num_kept_tokens), 0),
            func.avg(share),
        ).join(Episode, Episode.id == ClientEpisode.episode_id)
        num_episodes, num_sampled, num_kept, mean = self._db.execute(query.select_from(ClientEpisode)).one()
        return ClientTokens(num_episodes, int(num_sampled), int(num_kept), None if mean is None else float(mean))

    def links(self, episode_id: str) -> list[CompletionLink]:
        """In order of their turns."""
        query = select(*_LINK).where(Completion.episode_id == episode_id).order_by(Completion.turn)
        return [_link(row) for row in self._db.execute(query)]

    def spans_of(self, episode_id: str, turns: Collection[int] | None = None) -> dict[int, list[Span]]:
        """The spans of each of the turns (None: of all)."""
        query = select(Turn.number, Turn.span_index, Turn.token_ids, Turn.logprobs).where(Turn.episode_id == episode_id)
        if turns is not None:
            query = query.where(Turn.number.in_(turns))
        return {
            row.number: unpack_spans(row.span_index, row.token_ids, row.logprobs) for row in self._db.execute(query)
        }

    def training_rows(self, episode_id: str, reward: float) -> list[TrainingEpisode]:
        """What the learner trains on. Raises MisalignedEpisode for turns that do not line up."""
        query = (
            select(*_LINK, Completion.temperature, Completion.untrainable_reason)
            .where(Completion.episode_id == episode_id)
            .order_by(Completion.turn)
        )
        turns = [
            TrainableTurn(_link(row), row.temperature, row.untrainable_reason is None)
            for row in self._db.execute(query)
        ]
        return training_rows(episode_id, turns, self.spans_of(episode_id), reward)


def _link(row: Any) -> CompletionLink:
    return CompletionLink(*row[: len(_LINK)])
