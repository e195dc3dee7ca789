"""Keys that opened a moment ago, so that not every call of an agent reads the database before it is looked at.

Invariant: what this process revokes or rotates opens nothing from its next call on; what another one does, after
``keep_s`` at most. Secrets are held as hashes, like in the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from online_agent.store.records import KeyRecord

MAX_KEYS = 4096

Look = Callable[[str], Awaitable[KeyRecord | None]]


@dataclass(frozen=True, slots=True)
class _Known:
    key: KeyRecord
    since: float
    until: float


class KnownKeys:
    """``clock`` is the store's: keys expire by it."""

    def __init__(self, keep_s: float, clock: Callable[[], float], look: Look) -> None:
        """``look`` finds the live key of a secret in the store. ``keep_s`` 0 asks it every time."""
        self._keep_s, self._clock, self._look = keep_s, clock, look
        self._known: dict[bytes, _Known] = {}
        self._num_changes = 0

    async def find(self, secret: str) -> KeyRecord | None:
        """The live key with this secret, or None. What opens nothing is looked up each time."""
        mark, now = hashlib.sha256(secret.encode()).digest(), self._clock()
        known = self._known.get(mark)
        if known is not None and known.since <= now < known.until:
            return known.key
        num_changes = self._num_changes
        key = await self._look(secret)
        if key is None:
            self._known.pop(mark, None)
        elif self._keep_s and num_changes == self._num_changes:
            if len(self._known) >= MAX_KEYS:
                self._known.clear()
            self._known[mark] = _Known(key, now, _until(key, now, self._keep_s))
        return key

    def forget(self) -> None:
        """A key changed: all are looked up again, also those whose look-up is under way."""
        self._num_changes += 1
        self._known.clear()


def _until(key: KeyRecord, now: float, keep_s: float) -> float:
    """Not beyond the moment at which the key, or the secret before its last rotation, opens nothing more."""
    ends = (now + keep_s, key.expires_at, key.old_until)
    return min(end for end in ends if end is not None and end > now)
