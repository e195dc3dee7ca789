"""The smallest text replacement that turns one source into another.

Short edits are what a small model can write without a slip: it copies one operator instead of a whole line.
"""

from __future__ import annotations

import re
from itertools import product

_TOKEN = re.compile(r"\w+|\n *| +|[=!<>+\-*/]=|//|\*\*|[^\w\s]")
_MAX_WIDENING = 8


def smallest_edit(before: str, after: str) -> tuple[str, str]:
    """(old, new) such that replacing the first occurrence of ``old`` in ``before`` gives ``after``.

    The stretch that differs is widened by whole tokens: inside its line if that is enough, by as few as possible,
    to the left first. Raises ValueError for equal texts.
    """
    if before == after:
        raise ValueError("nothing to edit: the texts are equal")
    olds, news = _TOKEN.findall(before), _TOKEN.findall(after)
    head = _common_prefix(olds, news)
    tail = _common_prefix(olds[head:][::-1], news[head:][::-1])
    end = len(olds) - tail
    candidates = []
    for left, right in product(range(min(head, _MAX_WIDENING) + 1), range(min(tail, _MAX_WIDENING) + 1)):
        old = "".join(olds[head - left : end + right])
        new = "".join(news[head - left : len(news) - tail + right])
        if old and before.replace(old, new, 1) == after:
            candidates.append(((old + new).count("\n"), left + right, right, old, new))
    if not candidates:
        return before, after
    return min(candidates)[3:]


def _common_prefix(one: list[str], other: list[str]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
