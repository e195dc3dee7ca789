"""Sampled ids that spell a secret: each id that holds a part of one becomes the id of ``BLANK``.

Invariants
- The number of ids stays, so that log-probs and weight versions still line up with them.
- No text that can be read out of the ids left holds a secret: where blanking its own ids is not enough, all become
  blank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from online_agent.redaction.patterns import BLANK
from online_agent.redaction.redactor import Found, Redactor
from online_agent.rendering import ChatRenderer
from online_agent.types import Int32Array

ReadTexts = Callable[[Int32Array], Iterable[str]]
"""Everything that a reader of the ids would take for text."""


def sampled_secret(names: Iterable[str]) -> str:
    """Why a turn that held a secret is never trained on."""
    return f"a secret was sampled ({', '.join(names)}): its ids are blank"


def blanked(
    redactor: Redactor, renderer: ChatRenderer, token_ids: Int32Array, texts_of: ReadTexts | None = None
) -> tuple[Int32Array, tuple[str, ...]]:
    """The ids without secrets, and the names of the patterns found; the ids as they came where there are none.

    ``texts_of`` reads what the plain text may hide, such as the arguments of a call as JSON unescapes them.
    """
    texts_of = texts_of or (lambda ids: ())
    found = redactor.find(renderer.decode(token_ids))
    hidden = [name for text in texts_of(token_ids) for name in _names(redactor.find(text))]
    names = tuple(sorted({*_names(found), *hidden}))
    if not names:
        return token_ids, ()
    left = _without(token_ids, found, _bounds(renderer, token_ids), _blank_id(renderer))
    if any(redactor.find(text) for text in (renderer.decode(left), *texts_of(left))):
        left = all_blank(renderer, token_ids)
    return left, names


def all_blank(renderer: ChatRenderer, token_ids: Int32Array) -> Int32Array:
    """As many ids, all of them blank."""
    return np.full_like(token_ids, _blank_id(renderer))


def _blank_id(renderer: ChatRenderer) -> int:
    return int(renderer.encode_text(BLANK)[0])


def _names(found: Iterable[Found]) -> list[str]:
    return [one.name for one in found]


def _bounds(renderer: ChatRenderer, token_ids: Int32Array) -> list[tuple[int, int]]:
    """Where in the decoded text each id stands; those of one character share its place."""
    stream = renderer.encoder.text_stream()
    bounds: list[tuple[int, int]] = []
    start = at = 0
    waiting = 0
    for token_id in token_ids.tolist():
        at += len(stream.push(token_id))
        waiting += 1
        if at > start:
            bounds += [(start, at)] * waiting
            start, waiting = at, 0
    return bounds + [(start, at + 1)] * waiting


def _without(
    token_ids: Int32Array, found: Sequence[Found], bounds: Sequence[tuple[int, int]], blank: int
) -> Int32Array:
    left = token_ids.copy()
    for index, (start, end) in enumerate(bounds):
        if any(one.start < end and start < one.end for one in found):
            left[index] = blank
    return left
