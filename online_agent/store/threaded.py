"""The database from inside an event loop: work runs on a thread, in a short transaction that nothing else waits in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import TypeVar

from online_agent.store.session import Database, Transaction

T = TypeVar("T")


class ThreadedDatabase:
    """Raises what ``Database`` and the work raise."""

    def __init__(self, db: Database, threads: Executor) -> None:
        self._db, self._threads = db, threads

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """The result of ``work``, which must not write."""
        return await self._run(self._db.reading, work)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """The result of ``work``, committed when this returns."""
        return await self._run(self._db.transaction, work)

    async def _run(
        self, opened: Callable[[], AbstractContextManager[Transaction]], work: Callable[[Transaction], T]
    ) -> T:
        def run() -> T:
            with opened() as tx:
                return work(tx)

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)
