"""Reading clients' episodes: how turns hang together, their tokens, what was discarded, and the rows to train on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select

from online_agent.store.encoding import unpack_spans
from online_agent.store.expert_rows import HEADER_BYTES, num_covered
from online_agent.store.models import ClientEpisode, Completion, DiscardedGeneration, Episode, Turn
from online_agent.store.prepared import Prepared
from online_agent.store.records import ClientTokens, CompletionLink, CompletionRecord, DiscardedRecord
from online_agent.store.repositories.base import Repository
from online_agent.store.segments import TrainableTurn, training_rows
from online_agent.types import Span, TrainingEpisode

_LINK = (
    Completion.turn,
    Completion.completion_id,
    Completion.choice,
    Completion.segment,
    Completion.branched_from,
    Completion.call_hash,
    Completion.history_hash,
    Completion.message_hash,
    Completion.num_forced,
    Completion.is_cut_short,
    Completion.created_at,
)

# Every call of a client runs these. They are built once: building one costs more than running it.
_LINKS = Prepared(select(*_LINK).where(Completion.episode_id == bindparam("of_episode")).order_by(Completion.turn))
_SPANS = select(Turn.number, Turn.span_index, Turn.token_ids, Turn.logprobs).where(
    Turn.episode_id == bindparam("of_episode")
)
_SPANS_UP_TO = Prepared(_SPANS.where(Turn.number <= bindparam("last")))
_SPANS_OF_TURNS = _SPANS.where(Turn.number.in_(bindparam("turns", expanding=True)))

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
        return [_link(row) for row in _LINKS.rows(self._db, {"of_episode": episode_id})]

    def spans_of(self, episode_id: str, turns: Collection[int] | None = None) -> dict[int, list[Span]]:
        """The spans of each of the turns (None: of all)."""
        rows: Iterable[Sequence[Any]]
        if turns is None:
            rows = self._db.execute(_SPANS, {"of_episode": episode_id})
        elif turns and len(turns) == max(turns) + 1:  # a conversation that nobody rewrote
            rows = _SPANS_UP_TO.rows(self._db, {"of_episode": episode_id, "last": max(turns)})
        else:
            rows = self._db.execute(_SPANS_OF_TURNS, {"of_episode": episode_id, "turns": list(turns)})
        return {number: unpack_spans(*packed) for number, *packed in rows}

    def num_routed(self, episode_id: str, path: Sequence[int]) -> int:
        """How many tokens of the sequence that these turns make, from its first on, have the experts that they used."""
        header = func.substr(Turn.routed_experts, 1, HEADER_BYTES)
        query = select(Turn.number, header).where(Turn.episode_id == episode_id, Turn.number.in_(path))
        headers: dict[int, bytes | None] = {row[0]: row[1] for row in self._db.execute(query)}
        return num_covered([headers.get(turn) for turn in path])

    def completion(self, tenant_id: str, completion_id: str) -> list[CompletionRecord]:
        """The choices of an answer, in order; empty for one that is unknown or was replaced."""
        mine = (Completion.tenant_id == tenant_id, Completion.completion_id == completion_id)
        query = select(*Completion.__table__.columns).where(*mine).order_by(Completion.choice)
        return [_completion(row) for row in self._db.execute(query)]

    def find_turns(self, tenant_id: str, completion_id: str) -> tuple[str, list[int]] | None:
        """Episode and turns of an answer; of a replaced one, the turn that took its place. None for an unknown id."""
        for table in (Completion, DiscardedGeneration):
            mine = (table.tenant_id == tenant_id, table.completion_id == completion_id)
            rows = self._db.execute(select(table.episode_id, table.turn).where(*mine)).all()
            if rows:
                return rows[0].episode_id, sorted({row.turn for row in rows if row.turn is not None})
        return None

    def discarded(self, episode_id: str) -> list[DiscardedRecord]:
        """In the order in which they were discarded."""
        columns = DiscardedGeneration.__table__.columns
        query = select(*columns).where(DiscardedGeneration.episode_id == episode_id).order_by(DiscardedGeneration.id)
        return [_discarded(row) for row in self._db.execute(query)]

    def completions(self, episode_id: str) -> list[CompletionRecord]:
        """In order of their turns."""
        columns = Completion.__table__.columns
        query = select(*columns).where(Completion.episode_id == episode_id).order_by(Completion.turn)
        return [_completion(row) for row in self._db.execute(query)]

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
        return training_rows(episode_id, turns, self.spans_of(episode_id), reward, self._experts_of(episode_id))

    def _experts_of(self, episode_id: str) -> dict[int, bytes | None]:
        """Turn → its packed experts, of those that have some."""
        has_some = (Turn.episode_id == episode_id, Turn.routed_experts.is_not(None))
        return {row[0]: row[1] for row in self._db.execute(select(Turn.number, Turn.routed_experts).where(*has_some))}


def _link(row: Any) -> CompletionLink:
    return CompletionLink(*row[: len(_LINK)])


def _completion(row: Any) -> CompletionRecord:
    return CompletionRecord(
        episode_id=row.episode_id,
        turn=row.turn,
        completion_id=row.completion_id,
        choice=row.choice,
        protocol=row.protocol,
        segment=row.segment,
        branched_from=row.branched_from,
        temperature=row.temperature,
        untrainable_reason=row.untrainable_reason,
        is_cut_short=row.is_cut_short,
        message=row.message,
        tags=row.tags,
        weight_version=row.weight_version,
        created_at=row.created_at,
    )


def _discarded(row: Any) -> DiscardedRecord:
    return DiscardedRecord(
        id=row.id,
        episode_id=row.episode_id,
        turn=row.turn,
        completion_id=row.completion_id,
        reason=row.reason,
        text=row.text,
        spans=unpack_spans(row.span_index, row.token_ids, row.logprobs),
        created_at=row.created_at,
    )
