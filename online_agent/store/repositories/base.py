"""What every repository has: a connection inside a transaction, and a clock. Repositories query; they never commit."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

from sqlalchemy import Connection

from online_agent.errors import BadInput

MAX_NAME_CHARS = 255
MAX_PAGE = 1000


class Repository:
    def __init__(self, connection: Connection, clock: Callable[[], float]) -> None:
        self._db = connection
        self._now = clock


class _RisingMicroseconds:
    """Microseconds that rise with every call of this process, also within one tick of the clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def at(self, now: float) -> int:
        with self._lock:
            self._last = max(int(now * 1e6), self._last + 1)
            return self._last


_rising = _RisingMicroseconds()


def new_id(prefix: str, now: float) -> str:
    """An id that sorts by time of creation and cannot be guessed (80 random bits)."""
    return f"{prefix}_{_rising.at(now):014x}{secrets.token_hex(10)}"


def check_name(value: str, param: str) -> str:
    """The value, or BadInput when it is empty, longer than a name may be, or holds characters no name has."""
    if not value or len(value) > MAX_NAME_CHARS or not value.isprintable():
        raise BadInput(f"{param} must have 1 to {MAX_NAME_CHARS} printable characters, got {value[:64]!r}", param=param)
    return value


def check_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise BadInput(f"limit must be 1 to {MAX_PAGE}, got {limit}", param="limit")
    return limit
