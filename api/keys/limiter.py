"""A bucket of requests per key. Each process of the API has its own: with N of them a key may make N times as many."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from online_agent.errors import Busy

MINUTE_S = 60.0
_ROUNDING = 1e-9


class OverLimit(Busy):
    """A key used up what it may in this minute or on this day."""

    code = "rate_limit_exceeded"


@dataclass(slots=True)
class _Bucket:
    requests: float
    at: float


class KeyLimiter:
    """Token buckets that hold a minute's requests and fill evenly; and which keys were used when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._used_at: dict[str, float] = {}

    def take(self, key_id: str, per_minute: int) -> None:
        """One request of the key. Raises OverLimit, which says when the next one is free."""
        now, rate = self._clock(), per_minute / MINUTE_S
        bucket = self._buckets.setdefault(key_id, _Bucket(per_minute, now))
        bucket.requests = min(per_minute, bucket.requests + (now - bucket.at) * rate)
        bucket.at = now
        if bucket.requests < 1 - _ROUNDING:
            raise OverLimit(
                f"this key may make {per_minute} requests a minute", retry_after_s=(1 - bucket.requests) / rate
            )
        bucket.requests = max(0.0, bucket.requests - 1)

    def is_first_use(self, key_id: str, within_s: float) -> bool:
        """Whether the key was not used here in the last ``within_s``; from now on it was."""
        now = self._clock()
        last = self._used_at.get(key_id)
        if last is not None and now - last < within_s:
            return False
        self._used_at[key_id] = now
        return True
