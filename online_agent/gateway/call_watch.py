"""Whether the model's tool calls can be read: counted, and told to the operator when they stop being readable."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from online_agent.errors import OnlineAgentError
from online_agent.gateway.answer_reader import AnswerText
from online_agent.gateway.calls import CallAnswer
from online_agent.store.session import Database
from online_agent.telemetry.logging import get_logger

log = get_logger(__name__)

WINDOW, MIN_ANSWERS = 50, 20
"""Answers that hold a call or the beginning of one: so many are looked back on, and so few are too few to judge."""
ALARM_SHARE, CLEAR_SHARE = 0.5, 0.2
"""Shares of them with a call that cannot be read: far apart, so that one answer does not turn an alarm on and off."""
ALARM, CLEARED = "tool_calls_unreadable", "tool_calls_readable"

TellCalls = Callable[[int, int], None]
"""Hears how many calls of an answer were read, and how many were not."""


class CallWatch:
    """One per process; ``ended`` is called with each answer that is over, in the event loop."""

    def __init__(self, db: Database, threads: Executor, family: str, tell: TellCalls) -> None:
        self._db, self._threads, self._family, self._tell = db, threads, family, tell
        self._is_unread: deque[bool] = deque(maxlen=WINDOW)
        self._is_alarmed = False

    def ended(self, work: asyncio.Task[CallAnswer]) -> None:
        if work.cancelled() or work.exception() is not None:
            return
        for choice in work.result().choices:
            self.note(choice.answer, choice.weight_version)

    def note(self, answer: AnswerText, version: int | None) -> None:
        """The answer counts if it holds a call, or what looks like one."""
        if not answer.calls and not answer.unread:
            return
        self._tell(len(answer.calls), len(answer.unread))
        self._is_unread.append(bool(answer.unread))
        share = sum(self._is_unread) / len(self._is_unread)
        if len(self._is_unread) >= MIN_ANSWERS and not self._is_alarmed and share >= ALARM_SHARE:
            self._turn(True, ALARM, share, version)
        elif self._is_alarmed and share <= CLEAR_SHARE:
            self._turn(False, CLEARED, share, version)

    def _turn(self, is_alarmed: bool, kind: str, share: float, version: int | None) -> None:
        self._is_alarmed = is_alarmed
        data = {"family": self._family, "share": share, "num_answers": len(self._is_unread)}
        log.warning(kind, **data, version=version)
        self._threads.submit(self._write, kind, data, version)

    def _write(self, kind: str, data: dict[str, object], version: int | None) -> None:
        try:
            with self._db.transaction() as tx:
                tx.events.add(kind, data, version=version)
        except OnlineAgentError as error:
            log.warning("event not stored", kind=kind, reason=error.message)
