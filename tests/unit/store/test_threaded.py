"""The database from inside an event loop."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import OperationalError

from online_agent.errors import NotFound
from online_agent.store.session import Database, Transaction
from online_agent.store.threaded import ThreadedDatabase


async def test_work_runs_on_a_thread_and_what_it_wrote_is_committed_when_it_returns(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    with ThreadPoolExecutor(1) as threads:
        store = ThreadedDatabase(db, threads)

        def work(tx: Transaction) -> int:
            tx.events.add("written", {})
            return threading.get_ident()

        assert await store.write(work) != threading.get_ident()
        assert [event.kind for event in await store.read(lambda tx: tx.events.list())] == ["written"]
    db.close()


async def test_work_that_fails_leaves_nothing_and_says_why(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    with ThreadPoolExecutor(1) as threads:
        store = ThreadedDatabase(db, threads)

        def work(tx: Transaction) -> None:
            tx.events.add("written", {})
            raise NotFound("no such thing")

        with pytest.raises(NotFound, match="no such thing"):
            await store.write(work)
        assert await store.read(lambda tx: tx.events.list()) == []
    db.close()


async def test_reading_refuses_to_write(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    with ThreadPoolExecutor(1) as threads, pytest.raises(OperationalError, match="readonly"):
        await ThreadedDatabase(db, threads).read(lambda tx: tx.events.add("written", {}))
    db.close()
