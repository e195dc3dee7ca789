"""How many episodes this process holds, whether they run or wait for a slot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from online_agent.errors import BadInput, Busy

BUSY_RETRY_S = 1.0


class Admission:
    """At most ``limit`` episodes are held; each that was taken in is given back once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_held = 0
        self._is_closed = False

    def take(self, num_episodes: int) -> None:
        """All are admitted or none. Raises Busy when there is no room now, BadInput when there never will be."""
        if self._is_closed:
            raise Busy("the server is shutting down", retry_after_s=BUSY_RETRY_S)
        if num_episodes > self._limit:
            raise BadInput(f"this server holds {self._limit} episodes at most, got {num_episodes}", param="group_size")
        room = self._limit - self._num_held
        if num_episodes > room:
            raise Busy(f"{self._limit} episodes may be under way, there is room for {room}", retry_after_s=BUSY_RETRY_S)
        self._num_held += num_episodes

    def give_back(self, num_episodes: int) -> None:
        self._num_held -= num_episodes

    @contextmanager
    def given_back_on_error(self, num_episodes: int) -> Iterator[None]:
        """What was admitted is free again when the episodes could not be opened."""
        try:
            yield
        except BaseException:
            self.give_back(num_episodes)
            raise

    def close(self) -> None:
        """Nothing more is admitted."""
        self._is_closed = True
