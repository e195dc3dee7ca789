"""Turns: one row each, written in one short transaction of two statements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Integer, Text, bindparam, case, func, insert, literal_column, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from envs.types import Observation
from online_agent.errors import Conflict, MisalignedEpisode, NotFound
from online_agent.store.encoding import pack_spans, unpack_spans
from online_agent.store.models import Episode, Turn, table_of
from online_agent.store.prepared import Prepared
from online_agent.store.records import TurnNew, TurnRecord
from online_agent.store.repositories.base import Repository
from online_agent.types import EpisodeStatus, Span, SpanKind, ToolCall

_EPISODES, _TURNS = table_of(Episode), table_of(Turn)


def _count_turn() -> ReturningUpdate[*tuple[Any, ...]]:
    """The open episode has one more turn. Built once: building it costs more than running it."""
    of = _EPISODES.c
    number, reason = bindparam("number", type_=Integer), bindparam("reason", type_=Text)
    oldest, newest = bindparam("oldest", type_=Integer), bindparam("newest", type_=Integer)
    return (
        update(_EPISODES)
        .where(of.id == bindparam("of_episode"), of.status == literal_column(f"'{EpisodeStatus.OPEN}'"))
        .where(number.is_(None) | (of.num_turns == number))
        .values(
            num_turns=of.num_turns + 1,
            num_action_tokens=of.num_action_tokens + bindparam("action_tokens"),
            num_tool_calls=of.num_tool_calls + bindparam("tool_calls"),
            num_tool_errors=of.num_tool_errors + bindparam("tool_errors"),
            oldest_version=case(
                (of.oldest_version.is_(None) | (of.oldest_version > oldest), oldest), else_=of.oldest_version
            ),
            newest_version=case(
                (of.newest_version.is_(None) | (of.newest_version < newest), newest), else_=of.newest_version
            ),
            untrainable_reason=func.coalesce(of.untrainable_reason, reason),
        )
        .returning(of.num_turns, of.tenant_id)
    )


_COUNT_TURN = Prepared(_count_turn())
_INSERT_TURN = Prepared(insert(_TURNS))


class TurnRows(Repository):
    def add_turn(self, episode_id: str, new: TurnNew) -> int:
        """The turn is stored whole; returns its number, counted from 0 without gaps.

        Spans that do not line up are stored as they came, and the episode becomes untrainable with the reason.
        Raises NotFound, or Conflict when the episode is no longer open or ``new.number`` is not the next one.
        """
        rows = _COUNT_TURN.rows(self._db, turn_counts(episode_id, new))
        if not rows:
            raise self._refused(episode_id, new.number)
        num_turns, tenant_id = rows[0]
        number = int(num_turns) - 1
        _INSERT_TURN.run(self._db, turn_values(episode_id, number, tenant_id, new, self._now()))
        return number

    def replace_turn(self, episode_id: str, number: int, new: TurnNew) -> None:
        """Another generation stands at the place of this turn, and the episode's counts follow.

        Raises NotFound when the episode, still open, has no such turn.
        """
        of_turn = (Turn.episode_id == episode_id, Turn.number == number)
        old = self._db.execute(select(*Turn.__table__.columns).where(*of_turn)).one_or_none()
        if old is None:
            raise NotFound(f"episode {episode_id!r} has no turn {number}")
        removed, added = turn_counts(episode_id, _turn_as_new(_turn(old))), turn_counts(episode_id, new)
        for key in ("action_tokens", "tool_calls", "tool_errors"):
            added[key] -= removed[key]
        if not _COUNT_TURN.rows(self._db, {**added, "number": None}):
            raise self._refused(episode_id, number)
        self._db.execute(
            update(Episode).where(Episode.id == episode_id).values(num_turns=Episode.num_turns - 1)
        )  # counting a turn adds one; this one was there
        values = turn_values(episode_id, number, old.tenant_id, new, self._now())
        self._db.execute(update(Turn).where(*of_turn).values(values))

    def turns(self, episode_id: str) -> list[TurnRecord]:
        """In order; empty for an episode that has none or does not exist."""
        query = select(*Turn.__table__.columns).where(Turn.episode_id == episode_id).order_by(Turn.number)
        return [_turn(row) for row in self._db.execute(query)]

    def spans(self, episode_id: str) -> list[Span]:
        """All spans in token order."""
        query = (
            select(Turn.span_index, Turn.token_ids, Turn.logprobs)
            .where(Turn.episode_id == episode_id)
            .order_by(Turn.number)
        )
        spans: list[Span] = []
        for row in self._db.execute(query):
            spans.extend(unpack_spans(row.span_index, row.token_ids, row.logprobs))
        return spans

    def _refused(self, episode_id: str, number: int | None) -> Conflict | NotFound:
        query = select(Episode.status, Episode.num_turns).where(Episode.id == episode_id)
        row = self._db.execute(query).one_or_none()
        if row is None:
            return NotFound(f"no episode {episode_id!r}")
        if row.status != EpisodeStatus.OPEN:
            return Conflict(f"episode {episode_id} is {row.status}: it takes no more turns")
        return Conflict(f"the next turn of episode {episode_id} is {row.num_turns}, not {number}")


def _turn_as_new(turn: TurnRecord) -> TurnNew:
    return TurnNew(turn.spans, tool_calls=turn.tool_calls, observations=turn.observations)


def _misalignment(new: TurnNew) -> str | None:
    try:
        for span in new.spans:
            span.check()
    except MisalignedEpisode as error:
        return error.message
    return None


def _num_action_tokens(new: TurnNew) -> int:
    return sum(len(span.token_ids) for span in new.spans if span.kind is SpanKind.ACTION)


def turn_counts(episode_id: str, new: TurnNew) -> dict[str, Any]:
    versions = [run.version for span in new.spans for run in span.version_runs if run.end > run.start]
    return {
        "of_episode": episode_id,
        "number": new.number,
        "action_tokens": _num_action_tokens(new),
        "tool_calls": len(new.tool_calls),
        "tool_errors": sum(observation.is_error for observation in new.observations),
        "oldest": min(versions, default=None),
        "newest": max(versions, default=None),
        "reason": _misalignment(new),
    }


def turn_values(episode_id: str, number: int, tenant_id: str, new: TurnNew, now: float) -> dict[str, Any]:
    index, token_ids, logprobs = pack_spans(new.spans)
    content = {
        "text": new.text,
        "tool_calls": [[call.name, dict(call.arguments), call.error] for call in new.tool_calls],
        "observations": [[o.text, o.is_error, o.is_final] for o in new.observations],
    }
    return {
        "episode_id": episode_id,
        "number": number,
        "tenant_id": tenant_id,
        "env_revision": new.env_revision,
        "content": content,
        "finish_reason": new.finish_reason,
        "span_index": index,
        "token_ids": token_ids,
        "logprobs": logprobs,
        "num_prompt_tokens": new.num_prompt_tokens,
        "num_cached_tokens": new.num_cached_tokens,
        "num_retractions": new.num_retractions,
        "latency_s": new.latency_s,
        "created_at": now,
        "routed_experts": new.routed_experts,
    }


def _turn(row: Any) -> TurnRecord:
    content: Mapping[str, Any] = row.content
    return TurnRecord(
        episode_id=row.episode_id,
        number=row.number,
        spans=unpack_spans(row.span_index, row.token_ids, row.logprobs),
        env_revision=row.env_revision,
        text=content["text"],
        tool_calls=[ToolCall(*call) for call in content["tool_calls"]],
        observations=[Observation(*observation) for observation in content["observations"]],
        finish_reason=row.finish_reason,
        num_prompt_tokens=row.num_prompt_tokens,
        num_cached_tokens=row.num_cached_tokens,
        num_retractions=row.num_retractions,
        latency_s=row.latency_s,
        created_at=row.created_at,
    )
