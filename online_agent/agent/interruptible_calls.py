"""Engine calls, one after another, that a pause holds at the door or cuts off: what every view of them shares."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

import numpy as np

from online_agent.errors import EngineError
from online_agent.types import Generation

T = TypeVar("T")


class AbortableEngine(Protocol):
    async def abort(self, rid: str) -> None: ...


class InterruptibleCalls:
    def __init__(self, engine: AbortableEngine, gate: asyncio.Event) -> None:
        self._abortable, self._gate = engine, gate
        self._rid = ""
        self._is_interrupted = self._is_aborted = False
        self._wake = asyncio.Event()
        self._waiting: asyncio.Future[Any] | None = None
        """For what the engine answers first; a call that is called back before can be sent again unnoticed."""

    async def abort(self, rid: str) -> None:
        """The generation that was begun under ``rid`` ends with what it has."""
        self._is_aborted = True
        self._wake.set()
        await self._abortable.abort(self._rid)

    async def interrupt(self) -> None:
        """The call under way comes back with what it has. The gate must be closed."""
        self._is_interrupted = True
        with contextlib.suppress(EngineError):  # the pause that follows aborts it too
            await self._abortable.abort(self._rid)

    def _begin_call(self, rid: str) -> None:
        self._rid, self._is_aborted = rid, False
        self._wake.clear()

    async def _is_let_in(self) -> bool:
        """True once the gate is open; False when the call was aborted before."""
        while not self._gate.is_set() and not self._is_aborted:
            waits = [asyncio.ensure_future(event.wait()) for event in (self._gate, self._wake)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return not self._is_aborted

    async def _first(self, answer: Awaitable[T]) -> T | None:
        """What the engine answers first; None when an interruption called the call back before."""
        waiting = asyncio.ensure_future(answer)
        self._waiting = waiting
        try:
            return await waiting
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self._is_interrupted or (current is not None and current.cancelling()):
                raise
            return None

    async def _call_back(self) -> None:
        """A call that the engine has not answered at all ends here."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.cancel()
            await asyncio.wait({self._waiting})


def nothing(num_prompt_tokens: int) -> Generation:
    """What an aborted call gives that had not begun."""
    return Generation(np.empty(0, np.int32), np.empty(0, np.float32), (), "abort", num_prompt_tokens)
