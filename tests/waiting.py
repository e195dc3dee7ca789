"""Waiting in tests: for a condition with a deadline, never for a guessed time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 10.0) -> None:
    """Returns when the condition holds. Raises TimeoutError when it does not within ``timeout_s``."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(0.005)
