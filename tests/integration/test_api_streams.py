"""Episodes as server-sent events over real sockets (C25): order, resend, clients that leave, idle streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from online_agent.store import engines
from tests.fakes.api import TENANT, World, on_a_port, open_world

STREAM = {"Accept": "text/event-stream"}
BODY = {"env": "add_one"}
NUM_STREAMS = 10


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with on_a_port(world) as connected:
        yield connected


async def events_of(answer: httpx.Response) -> list[tuple[str, Any]]:
    """Name and data of each event, up to the end of the stream."""
    events, name = [], ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            events.append((name, orjson.loads(line.removeprefix("data: "))))
    return events


async def test_a_stream_tells_the_episode_in_order_and_ends(client: httpx.AsyncClient) -> None:
    async with client.stream("POST", "/v1/episodes", json=BODY, headers=STREAM) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = await events_of(answer)
    assert [name for name, _ in events] == ["turn", "tool_call", "observation", "verdict", "done"]
    assert events[-1][1]["status"] == "graded"


async def test_a_refused_episode_is_an_error_answer_and_not_a_stream(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/episodes", json={"env": "nope"}, headers=STREAM)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_name"


async def leave_after_the_first_turn(client: httpx.AsyncClient, **query: str) -> str:
    """The id of an episode whose stream was left."""
    async with client.stream("POST", "/v1/episodes", json=BODY, headers=STREAM, params=query) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("event: turn"):
                break
    return answer.headers["x-episode-id"]


async def test_a_client_that_leaves_does_not_end_the_episode(world: World, client: httpx.AsyncClient) -> None:
    world.runner.hold()
    episode_id = await leave_after_the_first_turn(client)
    world.runner.let_go()
    record = await world.runner.wait(episode_id, timeout_s=5)
    assert record.status == "graded"
    assert world.runner.cancelled == []


async def test_a_client_that_asked_for_it_ends_the_episode_by_leaving(world: World, client: httpx.AsyncClient) -> None:
    world.runner.hold()
    episode_id = await leave_after_the_first_turn(client, on_disconnect="cancel")
    async with asyncio.timeout(5):
        await world.runner.has_cancelled.wait()
    assert world.runner.cancelled == [episode_id]
    world.runner.let_go()


async def test_a_resend_with_the_same_key_joins_the_stream_of_the_same_episode(
    world: World, client: httpx.AsyncClient
) -> None:
    headers = {**STREAM, "Idempotency-Key": "k1"}
    ids = []
    for _ in range(2):
        async with client.stream("POST", "/v1/episodes", json=BODY, headers=headers) as answer:
            ids.append(answer.headers["x-episode-id"])
            assert (await events_of(answer))[-1][0] == "done"
    assert ids[0] == ids[1]
    assert len(world.runner.started) == 1


async def test_idle_streams_hold_no_database_connection_and_block_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "POOL_SIZE", 2)
    monkeypatch.setattr(engines, "MAX_OVERFLOW", {"sqlite": 0})
    async with open_world(tmp_path) as world, on_a_port(world) as client, AsyncExitStack() as stack:
        world.runner.hold()
        answers = [
            await stack.enter_async_context(client.stream("POST", "/v1/episodes", json=BODY, headers=STREAM))
            for _ in range(NUM_STREAMS)
        ]
        await world.runner.until_started(NUM_STREAMS)
        for pool in (world.db._reader.pool, world.db._writer.pool):
            assert pool.checkedout() == 0  # type: ignore[attr-defined]
        async with asyncio.timeout(1):
            listed = await client.get("/v1/episodes")
            assert (await client.get("/healthz")).status_code == 200
        assert len(listed.json()["data"]) == NUM_STREAMS
        world.runner.let_go()
        for answer in answers:
            assert (await events_of(answer))[-1][0] == "done"
        with world.db.reading() as tx:
            assert {record.status for record in tx.episodes.list(TENANT).items} == {"graded"}
