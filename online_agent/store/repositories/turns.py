"""Turns: one row each, written in one short transaction of two statements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import case, func, insert, select, update

from envs.types import Observation
from online_agent.errors import Conflict, MisalignedEpisode, NotFound
from online_agent.store.encoding import pack_spans, unpack_spans
from online_agent.store.models import Episode, Turn
from online_agent.store.records import TurnNew, TurnRecord
from online_agent.store.repositories.base import Repository
from online_agent.types import EpisodeStatus, Span, SpanKind, ToolCall


class TurnRows(Repository):
    def add_turn(self, episode_id: str, new: TurnNew) -> int:
        """The turn is stored whole; returns its number, counted from 0 without gaps.

        Spans that do not line up are stored as they came, and the episode becomes untrainable with the reason.
        Raises NotFound, or Conflict when the episode is no longer open or ``new.number`` is not the next one.
        """
        reason = _misalignment(new)
        versions = [run.version for span in new.spans for run in span.version_runs if run.end > run.start]
        values: dict[str, Any] = {
            "num_turns": Episode.num_turns + 1,
            "num_action_tokens": Episode.num_action_tokens + _num_action_tokens(new),
            "num_tool_calls": Episode.num_tool_calls + len(new.tool_calls),
            "num_tool_errors": Episode.num_tool_errors + sum(o.is_error for o in new.observations),
        }
        if versions:
            values["oldest_version"] = _extreme(Episode.oldest_version, min(versions), is_oldest=True)
            values["newest_version"] = _extreme(Episode.newest_version, max(versions), is_oldest=False)
        if reason is not None:
            values["untrainable_reason"] = func.coalesce(Episode.untrainable_reason, reason)
        is_next = [Episode.id == episode_id, Episode.status == EpisodeStatus.OPEN]
        if new.number is not None:
            is_next.append(Episode.num_turns == new.number)
        statement = update(Episode).where(*is_next).values(values).returning(Episode.num_turns, Episode.tenant_id)
        row = self._db.execute(statement).one_or_none()
        if row is None:
            raise self._refused(episode_id, new.number)
        number = int(row.num_turns) - 1
        self._db.execute(insert(Turn), _turn_values(episode_id, number, row.tenant_id, new, self._now()))
        return number

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


def _misalignment(new: TurnNew) -> str | None:
    try:
        for span in new.spans:
            span.check()
    except MisalignedEpisode as error:
        return error.message
    return None


def _num_action_tokens(new: TurnNew) -> int:
    return sum(len(span.token_ids) for span in new.spans if span.kind is SpanKind.ACTION)


def _extreme(column: Any, value: int, *, is_oldest: bool) -> Any:
    replaces = column > value if is_oldest else column < value
    return case((column.is_(None) | replaces, value), else_=column)


def _turn_values(episode_id: str, number: int, tenant_id: str, new: TurnNew, now: float) -> dict[str, Any]:
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
