"""SIGTERM: say "not ready", take no new episodes, finish those under way, and only then let the server close.

uvicorn would close its sockets first and hang up on whoever asks ``/readyz``; so the drain stands before its handler.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from api.runtime import Runtime
from online_agent.telemetry.logging import get_logger

log = get_logger(__name__)


@contextmanager
def draining_on_sigterm(runtime: Runtime) -> Iterator[None]:
    """Inside the block SIGTERM drains ``runtime`` and then reaches the handler that was installed before."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; an application run inside another program has its own
        return
    before = signal.getsignal(signal.SIGTERM)
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def drain_then(signum: int) -> None:
        await drain(runtime)
        signal.signal(signal.SIGTERM, before)
        signal.raise_signal(signum)

    def begin(signum: int) -> None:
        if runtime.is_draining:
            return
        runtime.is_draining = True
        tasks.add(loop.create_task(drain_then(signum)))

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(begin, signum)

    signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def drain(runtime: Runtime) -> None:
    """No new episodes; those under way have ended and who waited for one was answered, or the drain time is over."""
    runtime.is_draining = True
    log.info("draining")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + runtime.settings.api.drain_timeout_s
    await runtime.until_nobody_waits(runtime.settings.api.drain_timeout_s)
    await runtime.runner.drain(max(0.0, deadline - loop.time()))
