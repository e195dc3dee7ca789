"""Episodes that clients run: found by id or name, added to answer by answer, closed and rewarded.

Invariants
- A turn that another one continues is never replaced; one that is, keeps its number, and what stood there is kept.
- A segment grows at its end only. What continues an earlier turn, or has a context of its own, begins a new one.
- Closed episodes take no more turns, except those that were only idle and have no reward yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import BindParameter, Integer, bindparam, delete, func, insert, select, update

from online_agent.errors import Conflict, NotFound
from online_agent.store.encoding import pack_spans, unpack_spans
from online_agent.store.models import ClientEpisode, Completion, DiscardedGeneration, Episode, Turn, table_of
from online_agent.store.prepared import Prepared
from online_agent.store.records import (
    ClientEpisodeRecord,
    CompletionLink,
    CompletionNew,
    EpisodeNew,
    SeenEpisode,
    TurnNew,
)
from online_agent.store.repositories.base import check_name
from online_agent.store.repositories.client_rewards import ClientRewardRows
from online_agent.store.repositories.client_rows import ClientRows
from online_agent.store.repositories.episodes import EpisodeRepository
from online_agent.store.segments import TurnTree, as_context
from online_agent.types import EpisodeStatus, Span, SpanKind, StopReason

_EPISODE = (
    Episode.id,
    ClientEpisode.tenant_id,
    ClientEpisode.name,
    ClientEpisode.parent_id,
    Episode.status,
    Episode.stop_reason,
    ClientEpisode.active_at,
    Episode.num_turns,
    ClientEpisode.num_segments,
    Episode.num_action_tokens,
    ClientEpisode.num_kept_tokens,
    ClientEpisode.num_discarded_tokens,
    Episode.temperature,
)
_ALL = select(*_EPISODE).join(Episode, Episode.id == ClientEpisode.episode_id)

# Every call of a client runs these. They are built once: building one costs more than running it.
_ASKED: BindParameter[str] = bindparam("id_or_name")
FIND = Prepared(
    _ALL.where(ClientEpisode.tenant_id == bindparam("of_tenant")).where(
        # Both in one table: with the id of the other one the database would read all episodes of the tenant.
        (ClientEpisode.episode_id == _ASKED) | (ClientEpisode.name == _ASKED)
    )
)
_GET = Prepared(_ALL.where(ClientEpisode.episode_id == bindparam("of_episode")))
_LOCK = select(Episode.id).where(Episode.id == bindparam("of_episode")).with_for_update()
_INSERT_EPISODE = insert(table_of(ClientEpisode))
_INSERT_COMPLETION = Prepared(insert(table_of(Completion)))
_WARM = (
    update(table_of(Episode))
    .where(Episode.id == bindparam("of_episode"), Episode.temperature == 0)
    .values(temperature=bindparam("sampled_at"))
)
_COUNT = Prepared(
    update(table_of(ClientEpisode))
    .where(ClientEpisode.episode_id == bindparam("of_episode"))
    .values(
        active_at=bindparam("now"),
        num_kept_tokens=ClientEpisode.num_kept_tokens + bindparam("kept", type_=Integer),
        num_discarded_tokens=ClientEpisode.num_discarded_tokens + bindparam("discarded", type_=Integer),
        num_segments=ClientEpisode.num_segments + bindparam("segments", type_=Integer),
    )
)


class ClientRepository(ClientRows, ClientRewardRows):
    def find(self, tenant_id: str, id_or_name: str) -> ClientEpisodeRecord | None:
        """The tenant's episode of that id, or the one it calls so."""
        rows = FIND.rows(self._db, {"of_tenant": tenant_id, "id_or_name": id_or_name})
        row = next((row for row in rows if row[0] == id_or_name), rows[0] if rows else None)
        return None if row is None else _episode(row)

    def get(self, episode_id: str) -> ClientEpisodeRecord:
        """Raises NotFound."""
        rows = _GET.rows(self._db, {"of_episode": episode_id})
        if not rows:
            raise NotFound(f"no episode {episode_id!r}")
        return _episode(rows[0])

    def open(self, new: EpisodeNew, name: str | None = None, parent_id: str | None = None) -> str:
        """The episode ``new`` is open under ``name``; returns its id, or that of the one which has it already."""
        if name is not None:
            self._take_turns_on(new.tenant_id, check_name(name, "X-Episode-Id"))
        known = self.find(new.tenant_id, name or new.id)
        if known is not None:
            return known.id
        episode_id = EpisodeRepository(self._db, self._now).create(new)
        values = {
            "episode_id": episode_id,
            "tenant_id": new.tenant_id,
            "name": name,
            "parent_id": parent_id,
            "active_at": self._now(),
            "num_segments": 0,
            "num_kept_tokens": 0,
            "num_discarded_tokens": 0,
        }
        self._db.execute(_INSERT_EPISODE, values)
        return episode_id

    def add(self, episode_id: str, new: CompletionNew, seen: SeenEpisode | None = None) -> int:
        """The answer is a turn of the episode; returns its number.

        An exact retry of an answer that nothing continued yet takes its place. ``seen`` saves reading the links again
        when nothing was written since. Raises NotFound, or Conflict when the episode is closed.
        """
        episode = self._active(episode_id)
        links = seen.links if seen is not None and seen.is_still(episode) else self.links(episode_id)
        tree = TurnTree(links)
        retried = self._retried(tree, new)
        if retried is not None:
            return self._replace(episode, retried, new)
        segment, branched_from, spans = self._place(episode, tree, new)
        turns = EpisodeRepository(self._db, self._now)
        turn = turns.add_turn(episode_id, _with_spans(new, spans, episode.num_turns))
        self._insert(episode, new, turn, segment, branched_from)
        self._count(episode_id, kept=_num_kept(new), segments=max(0, segment + 1 - episode.num_segments))
        return turn

    def discard(self, episode_id: str, completion_id: str, reason: str, text: str, spans: Sequence[Span]) -> None:
        """A generation that did not come to its end is kept beside the episode, which may go on."""
        episode = self._active(episode_id)
        self._keep_aside(episode, None, completion_id, reason, text, pack_spans(spans))
        self._count(episode_id, discarded=_num_sampled(spans))

    @property
    def _has_one_writer(self) -> bool:
        """On SQLite no other transaction is under way."""
        return self._db.dialect.name == "sqlite"

    def _take_turns_on(self, tenant_id: str, name: str) -> None:
        """Of two calls that open the name at once, one waits here for the other."""
        if not self._has_one_writer:
            key = func.hashtextextended(f"{tenant_id}/{name}", 0)
            self._db.execute(select(func.pg_advisory_xact_lock(key)))

    def _active(self, episode_id: str) -> ClientEpisodeRecord:
        """The episode, open and locked. One that was only idle is open again."""
        if not self._has_one_writer:
            self._db.execute(_LOCK, {"of_episode": episode_id}).one_or_none()
        episode = self.get(episode_id)
        if not episode.is_active:
            raise Conflict(f"episode {episode_id} is {episode.status}: it takes no more answers", param="X-Episode-Id")
        if episode.status is EpisodeStatus.FINISHED:
            reopened = {"status": EpisodeStatus.OPEN, "stop_reason": None, "finished_at": None}
            self._db.execute(update(Episode).where(Episode.id == episode_id).values(reopened))
        return episode

    def _retried(self, tree: TurnTree, new: CompletionNew) -> CompletionLink | None:
        """The last answer to the very same call, if it had been given before this one came in and led to nothing."""
        same = [
            link
            for segment in tree.segments.values()
            for link in segment
            if (link.call_hash, link.choice) == (new.call_hash, new.choice)
            and (link.is_cut_short or link.created_at <= new.asked_at)
            and tree.is_leaf(link.turn)
            and tree.before(link.turn) == new.parent
        ]
        return max(same, key=lambda link: link.turn, default=None)

    def _place(
        self, episode: ClientEpisodeRecord, tree: TurnTree, new: CompletionNew
    ) -> tuple[int, int | None, list[Span]]:
        """Segment, the turn it branched off from, and the spans to store."""
        spans = list(new.turn.spans)
        if new.parent is None:
            return episode.num_segments, None, spans
        parent = tree.link(new.parent)
        if parent is None or parent.completion_id != new.parent_completion:
            return episode.num_segments, None, [*as_context(new.context), *spans]
        if tree.is_tip(parent.turn):
            return parent.segment, None, spans
        return episode.num_segments, parent.turn, spans

    def _replace(self, episode: ClientEpisodeRecord, link: CompletionLink, new: CompletionNew) -> int:
        mine = (Completion.episode_id == episode.id, Completion.turn == link.turn)
        old = self._db.execute(select(Completion.untrainable_reason).where(*mine)).one()
        row = self._db.execute(
            select(Turn.content, Turn.span_index, Turn.token_ids, Turn.logprobs).where(
                Turn.episode_id == episode.id, Turn.number == link.turn
            )
        ).one()
        reason = f"retried as {new.completion_id}"
        packed = (row.span_index, row.token_ids, row.logprobs)
        self._keep_aside(episode, link.turn, link.completion_id, reason, row.content["text"], packed)
        num_sampled = _num_sampled(unpack_spans(*packed))
        self._db.execute(delete(Completion).where(*mine))
        turn = _with_spans(new, list(new.turn.spans), link.turn)
        EpisodeRepository(self._db, self._now).replace_turn(episode.id, link.turn, turn)
        self._insert(episode, new, link.turn, link.segment, link.branched_from)
        was_kept = num_sampled if old.untrainable_reason is None else 0
        self._count(episode.id, kept=_num_kept(new) - was_kept, discarded=num_sampled)
        return link.turn

    def _insert(
        self, episode: ClientEpisodeRecord, new: CompletionNew, turn: int, segment: int, branched_from: int | None
    ) -> None:
        values = {
            "episode_id": episode.id,
            "turn": turn,
            "tenant_id": episode.tenant_id,
            "completion_id": new.completion_id,
            "choice": new.choice,
            "protocol": new.protocol,
            "segment": segment,
            "branched_from": branched_from,
            "call_hash": new.call_hash,
            "history_hash": new.history_hash,
            "message_hash": new.message_hash,
            "num_forced": new.num_forced,
            "temperature": new.temperature,
            "untrainable_reason": new.untrainable_reason,
            "is_cut_short": new.is_cut_short,
            "message": dict(new.message),
            "tags": dict(new.tags),
            "weight_version": new.weight_version,
            "answer_kind": new.answer_kind,
            "has_tools": new.has_tools,
            "traceparent": new.traceparent,
            "created_at": self._now(),
        }
        _INSERT_COMPLETION.run(self._db, values)
        if new.temperature > 0 and not episode.temperature:
            self._db.execute(_WARM, {"of_episode": episode.id, "sampled_at": new.temperature})

    def _keep_aside(
        self,
        episode: ClientEpisodeRecord,
        turn: int | None,
        completion_id: str,
        reason: str,
        text: str,
        packed: tuple[list[list[Any]], bytes, bytes],
    ) -> None:
        span_index, token_ids, logprobs = packed
        values = {
            "episode_id": episode.id,
            "tenant_id": episode.tenant_id,
            "turn": turn,
            "completion_id": completion_id,
            "reason": reason,
            "text": text,
            "span_index": span_index,
            "token_ids": token_ids,
            "logprobs": logprobs,
            "created_at": self._now(),
        }
        self._db.execute(insert(DiscardedGeneration).values(values))

    def _count(self, episode_id: str, *, kept: int = 0, discarded: int = 0, segments: int = 0) -> None:
        added = {"kept": kept, "discarded": discarded, "segments": segments}
        _COUNT.run(self._db, {"of_episode": episode_id, "now": self._now(), **added})


def _with_spans(new: CompletionNew, spans: Sequence[Span], number: int) -> TurnNew:
    return replace(new.turn, spans=[replace(span, turn=number) for span in spans], number=number)


def _num_sampled(spans: Sequence[Span]) -> int:
    return sum(len(span.token_ids) for span in spans if span.kind is SpanKind.ACTION)


def _num_kept(new: CompletionNew) -> int:
    return _num_sampled(new.turn.spans) if new.untrainable_reason is None else 0


def _episode(row: Any) -> ClientEpisodeRecord:
    episode_id, tenant_id, name, parent_id, status, stop_reason, *counts = row
    reason = None if stop_reason is None else StopReason(stop_reason)
    return ClientEpisodeRecord(episode_id, tenant_id, name, parent_id, EpisodeStatus(status), reason, *counts)
