"""Secrets of brought episodes: out of their texts, and out of their token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from envs.types import Observation
from online_agent.redaction import Redactor
from online_agent.redaction.tokens import blanked
from online_agent.rendering import ChatRenderer
from online_agent.store.records import ImportNew, TurnNew
from online_agent.types import Span

HELD_A_SECRET = "a secret stood in it: its ids are blank"


def without_secrets(item: ImportNew, redactor: Redactor, renderer: ChatRenderer | None) -> ImportNew:
    """The episode as it is stored. One whose ids held a secret is not what was sampled any more, so it trains nothing.

    Ids are read where there is a tokenizer; a server that answers clients has one.
    """
    turns = [_turn(turn, redactor) for turn in item.turns]
    reason = item.episode.untrainable_reason
    if renderer is not None:
        cleaned = [replace(turn, spans=_spans(turn.spans, redactor, renderer)) for turn in turns]
        if any(after.spans is not before.spans for before, after in zip(turns, cleaned, strict=True)):
            turns, reason = cleaned, reason or HELD_A_SECRET
    episode = replace(item.episode, metadata=redactor.json(item.episode.metadata), untrainable_reason=reason)
    return replace(item, episode=episode, turns=turns)


def _turn(turn: TurnNew, redactor: Redactor) -> TurnNew:
    return replace(
        turn,
        text=redactor.text(turn.text),
        tool_calls=[redactor.call(call) for call in turn.tool_calls],
        observations=[Observation(redactor.text(o.text), o.is_error, o.is_final) for o in turn.observations],
    )


def _spans(spans: Sequence[Span], redactor: Redactor, renderer: ChatRenderer) -> Sequence[Span]:
    """The very same where no secret was found. One may begin in a span and end in another."""
    whole = np.concatenate([span.token_ids for span in spans])
    left, names = blanked(redactor, renderer, whole)
    if not names:
        return spans
    ends = np.cumsum([len(span.token_ids) for span in spans])
    parts = np.split(left, ends[:-1])
    return [replace(span, token_ids=part) for span, part in zip(spans, parts, strict=True)]
