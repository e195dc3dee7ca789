"""Writes of many episodes in one transaction: a turn costs its share of a commit instead of a whole one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from online_agent.store.session import Database, Transaction

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[Transaction], Any]
Result = Any


@dataclass(slots=True)
class _Pending:
    work: Work
    future: asyncio.Future[Result] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class GroupWriter:
    """While one transaction is being committed, the writes that arrive wait and are committed together next.

    Each write is durable when ``run`` returns, and fails alone: when one of a group is refused, the group is rolled
    back and its writes are made one by one. So a ``work`` may run twice, and must do nothing but write through ``tx``.
    """

    def __init__(self, db: Database, threads: Executor) -> None:
        self._db, self._threads = db, threads
        self._pending: list[_Pending] = []
        self._task: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """The result of ``work``, committed. Raises what ``work`` raises, and Busy or StorageFull from the store."""
        pending = _Pending(work)
        self._pending.append(pending)
        if self._task is None:
            self._task = asyncio.create_task(self._commit_all())
        # A caller that is cancelled leaves; its write is made all the same.
        result: T = await asyncio.shield(pending.future)
        return result

    async def _commit_all(self) -> None:
        try:
            while self._pending:
                group, self._pending = self._pending, []
                if not await self._settled(group):
                    logger.info("a group of writes is made one by one", extra={"num_writes": len(group)})
                    for pending in group:
                        await self._settled([pending])
        finally:
            self._task = None

    async def _settled(self, group: list[_Pending]) -> bool:
        """Whether the callers have their answers: always for a single write, else when the group was committed."""
        committed = asyncio.get_running_loop().run_in_executor(self._threads, self._commit, [p.work for p in group])
        # An error belongs to the callers, whatever it is.
        [outcome] = await asyncio.gather(committed, return_exceptions=True)
        if isinstance(outcome, BaseException):
            if len(group) > 1:
                return False
            _settle(group[0].future, None, outcome)
        else:
            for pending, result in zip(group, outcome, strict=True):
                _settle(pending.future, result, None)
        return True

    def _commit(self, works: list[Work]) -> list[Result]:
        with self._db.transaction() as tx:
            return [work(tx) for work in works]


def _settle(future: asyncio.Future[Result], result: Result, error: BaseException | None) -> None:
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # counts as seen: a caller that was cancelled meanwhile does not look
