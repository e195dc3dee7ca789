from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from online_agent.agent.group_writer import GroupWriter
from online_agent.errors import NotFound
from online_agent.store.session import Database, Transaction


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


class Gate:
    """A write that keeps its transaction open until the test lets it go."""

    def __init__(self) -> None:
        self.is_inside, self.may_leave = threading.Event(), threading.Event()

    def __call__(self, tx: Transaction) -> None:
        self.is_inside.set()
        assert self.may_leave.wait(10)


def event(kind: str) -> object:
    return lambda tx: tx.events.add(kind, {})


def kinds(database: Database) -> list[str]:
    with database.reading() as tx:
        return [record.kind for record in tx.events.list()]


async def together(writer: GroupWriter, *works: object) -> list[object]:
    """The results of writes that all arrive while another transaction is open."""
    gate = Gate()
    first = asyncio.create_task(writer.run(gate))
    await asyncio.to_thread(gate.is_inside.wait, 10)
    tasks = [asyncio.create_task(writer.run(work)) for work in works]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    gate.may_leave.set()
    await first
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_writes_that_arrive_together_share_one_transaction(
    database: Database, threads: ThreadPoolExecutor
) -> None:
    seen: list[int] = []
    works = [lambda tx, kind=kind: (seen.append(id(tx)), tx.events.add(kind, {}))[1] for kind in "abc"]
    results = await together(GroupWriter(database, threads), *works)
    assert kinds(database) == ["a", "b", "c"]
    assert results == sorted(results)  # type: ignore[type-var]
    assert len(set(seen)) == 1


async def test_a_write_that_is_refused_fails_alone(database: Database, threads: ThreadPoolExecutor) -> None:
    def refuse(tx: Transaction) -> None:
        tx.events.add("half", {})
        raise NotFound("no such episode")

    results = await together(GroupWriter(database, threads), event("a"), refuse, event("b"))
    assert isinstance(results[1], NotFound)
    assert kinds(database) == ["a", "b"]


async def test_a_bug_in_one_write_reaches_its_caller_and_no_other(
    database: Database, threads: ThreadPoolExecutor
) -> None:
    results = await together(GroupWriter(database, threads), event("a"), lambda tx: 1 / 0)
    assert isinstance(results[1], ZeroDivisionError)
    assert kinds(database) == ["a"]


async def test_a_caller_that_is_cancelled_leaves_and_its_write_is_made(
    database: Database, threads: ThreadPoolExecutor
) -> None:
    writer, gate = GroupWriter(database, threads), Gate()
    first = asyncio.create_task(writer.run(gate))
    await asyncio.to_thread(gate.is_inside.wait, 10)
    leaving = asyncio.create_task(writer.run(event("kept")))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    gate.may_leave.set()
    await first
    await writer.run(event("after"))  # type: ignore[arg-type]
    assert kinds(database) == ["kept", "after"]
