"""Stored episodes as rows that can be imported again: token ids, log-probs and weight versions, turn by turn.

A row is one sequence of tokens. A client's episode that branched or lost its history is several, one for each of its
segments, as it is for the learner: what another row owns is context here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from online_agent.errors import MisalignedEpisode
from online_agent.store.records import CLIENT_ENV, CompletionLink, CompletionRecord, EpisodeRecord, TurnRecord
from online_agent.store.segments import SEGMENT_MARK, TurnTree, as_context
from online_agent.types import EpisodeStatus, Span, SpanKind, StopReason

IMPORTED_PREFIX = "imported:"
"""Brought episodes keep to environments of their own: they say nothing about what the served agent meets today."""
IMPORTED_AS = "imported_as"
ENDED = frozenset(EpisodeStatus) - {EpisodeStatus.OPEN, EpisodeStatus.FAILED}
SEVERAL_TEMPERATURES = "several temperatures in one segment"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """What is read of one episode. ``links`` and ``completions`` are empty unless a client ran it."""

    record: EpisodeRecord
    turns: Sequence[TurnRecord]
    links: Sequence[CompletionLink] = ()
    completions: Sequence[CompletionRecord] = ()


def native_rows(stored: StoredEpisode) -> Iterator[Row]:
    """The rows of the episode: ``id``, or ``id``, ``id#1``, ... for the segments of a client's."""
    record = stored.record
    if record.env != CLIENT_ENV:
        yield _row(record, _owner_id(record), record.sampling.temperature, record.untrainable_reason, stored.turns)
        return
    tree = TurnTree(stored.links)
    turn_of = {turn.number: turn for turn in stored.turns}
    barred = {completion.turn for completion in stored.completions if completion.untrainable_reason is not None}
    temperature_of = {completion.turn: completion.temperature for completion in stored.completions}
    for number in sorted(tree.segments):
        own = [link.turn for link in tree.segments[number]]
        acting = set(own) - barred
        turns = [
            turn_of[turn] if turn in acting else replace(turn_of[turn], spans=as_context(turn_of[turn].spans))
            for turn in tree.path(own[-1])
        ]
        temperatures = {temperature_of[turn] for turn in acting} or {record.sampling.temperature}
        reason = record.untrainable_reason or (SEVERAL_TEMPERATURES if len(temperatures) > 1 else None)
        row_id = f"{record.id}{SEGMENT_MARK}{number}" if number else record.id
        yield _row(record, row_id, max(temperatures), reason, turns)


def _owner_id(record: EpisodeRecord) -> str:
    """The id it was imported under, or ours."""
    return str((record.task or {}).get(IMPORTED_AS, record.id)) if record.env.startswith(IMPORTED_PREFIX) else record.id


def _row(
    record: EpisodeRecord, row_id: str, temperature: float, reason: str | None, turns: Sequence[TurnRecord]
) -> Row:
    verdict = record.verdict
    return {
        "id": row_id,
        "env": record.env.removeprefix(IMPORTED_PREFIX),
        "task_id": record.task_id,
        "split": record.split,
        "sampling": {**asdict(record.sampling), "temperature": temperature},
        "stop_reason": str(record.stop_reason or StopReason.CLOSED),
        "reward": None if verdict is None else verdict.reward,
        "is_success": None if verdict is None else verdict.is_success,
        "untrainable_reason": reason,
        "metadata": dict(record.metadata),
        "turns": [_turn(turn) for turn in turns],
    }


def _turn(turn: TurnRecord) -> Row:
    return {
        "text": turn.text,
        "tool_calls": [
            {"name": call.name, "arguments": dict(call.arguments), "error": call.error} for call in turn.tool_calls
        ],
        "observations": [asdict(observation) for observation in turn.observations],
        "finish_reason": turn.finish_reason,
        "spans": [_span(span) for span in turn.spans],
    }


def _span(span: Span) -> Row:
    """One that does not line up has no log-probs here: it could not be trained on, and is not on import either."""
    is_exact = span.kind is SpanKind.ACTION and span.logprobs is not None
    if is_exact:
        try:
            span.check()
        except MisalignedEpisode:
            is_exact = False
    return {
        "kind": str(span.kind),
        "token_ids": span.token_ids.tolist(),
        "logprobs": span.logprobs.tolist() if is_exact and span.logprobs is not None else None,
        "version_runs": [[run.version, run.start, run.end] for run in span.version_runs] if is_exact else [],
    }
