"""Which task an episode works on when none is named: the next of its split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from envs.types import Split


class TaskCounter:
    """Hands out task numbers, each once in this process.

    A process starts behind all episodes that finished before it: a restart does not begin again with the first tasks.
    """

    def __init__(self) -> None:
        self._counters: dict[tuple[str, Split], Iterator[int]] = {}

    def is_started(self, env: str, split: Split) -> bool:
        return (env, split) in self._counters

    def start(self, env: str, split: Split, first: int) -> None:
        """Number from ``first``; a counter that runs already goes on."""
        self._counters.setdefault((env, split), itertools.count(first))

    def next_id(self, env: str, split: Split) -> str:
        return f"{split}-{next(self._counters[env, split])}"
