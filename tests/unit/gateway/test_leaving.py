"""Clients that leave, and many that stay: the engine is freed, no database connection is held."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

import httpx
import pytest

from online_agent.gateway.exchange import Exchange
from online_agent.gateway.markup import MarkupReader
from online_agent.gateway.sampler import ChoiceSampler
from online_agent.types import EpisodeStatus
from tests.fakes.api import on_a_port
from tests.fakes.gateway import MODEL, ClientDesk, events_of
from tests.waiting import until

USER = {"role": "user", "content": "fix it"}
BODY = {"model": MODEL, "messages": [USER], "max_tokens": 400}


async def seconds_until(is_true: Callable[[], bool]) -> float:
    """How long it took to come true."""
    started = time.monotonic()
    await until(is_true)
    return time.monotonic() - started


async def first_chunk(client: httpx.AsyncClient, headers: dict[str, str] | None = None) -> str:
    """Reads a little of a stream and goes; returns the episode's id."""
    async with client.stream(
        "POST", "/v1/chat/completions", json={**BODY, "stream": True}, headers=headers
    ) as response:
        async for line in response.aiter_lines():
            if '"content":"' in line and '"content":""' not in line:
                return response.headers["X-Episode-Id"]
    raise AssertionError("the stream said nothing")


async def test_a_client_that_leaves_its_stream_frees_the_engine_within_two_seconds(desk: ClientDesk) -> None:
    """C19, twenty times: partial tokens are kept, no reward, nothing in the training queue, no open session."""
    desk.engine.token_delay_s = 0.02
    async with on_a_port(desk.world) as client:
        episodes = await asyncio.gather(*(first_chunk(client) for _ in range(20)))
        seconds = await seconds_until(lambda: desk.engine.num_running == 0)
        assert seconds < 2.0
        await until(lambda: desk.gateway.num_in_flight == 0)
    assert len({body["rid"] for body in desk.engine.bodies("/abort_request")}) == 20
    for episode in episodes:
        record = desk.record(episode)
        assert (record.status, record.stop_reason, record.verdict) == (EpisodeStatus.FINISHED, "cancelled", None)
        assert 0 < record.num_action_tokens < 400
        [completion] = desk.completions(episode)
        assert completion.is_cut_short
        assert desk.client_episode(episode).num_kept_tokens == 0
    with desk.world.db.reading() as tx:
        assert tx.episodes.queue().num_ready == 0


async def test_a_client_that_leaves_a_plain_call_frees_the_engine_too(desk: ClientDesk) -> None:
    desk.engine.token_delay_s = 0.02
    async with on_a_port(desk.world) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json=BODY, headers={"X-Episode-Id": "task"}, timeout=0.3)
        assert await seconds_until(lambda: desk.engine.num_running == 0) < 2.0
        await until(lambda: desk.gateway.num_in_flight == 0)
    [completion] = desk.completions("task")
    assert completion.is_cut_short


async def test_an_episode_goes_on_after_its_client_left_and_came_back(desk: ClientDesk) -> None:
    """C22: the resent call takes the place of the one that was cut short."""
    desk.engine.token_delay_s = 0.02
    async with on_a_port(desk.world) as client:
        await first_chunk(client, {"X-Episode-Id": "task"})
        await until(lambda: desk.gateway.num_in_flight == 0)
        assert desk.record("task").status is EpisodeStatus.OPEN
        desk.engine.token_delay_s = 0.0
        desk.say("hello")
        answer = (await client.post("/v1/chat/completions", json=BODY, headers={"X-Episode-Id": "task"})).json()
    assert desk.record("task").num_turns == 1
    assert desk.completions("task")[0].completion_id == answer["id"]
    assert len(desk.discarded("task")) == 1


async def test_streams_hold_no_database_connection(desk: ClientDesk) -> None:
    """C25: ten streams at one token a while; an episode and the health page answer at once."""
    desk.engine.token_delay_s = 0.1
    for _ in range(10):
        desk.say("hello world of tests passed and failed")
    async with on_a_port(desk.world) as client:
        streams = [
            asyncio.create_task(client.post("/v1/chat/completions", json={**BODY, "stream": True}, timeout=30))
            for _ in range(10)
        ]
        await until(lambda: desk.engine.num_running == 10)
        pools = (desk.world.db._reader.pool, desk.world.db._writer.pool)
        assert [pool.checkedout() for pool in pools] == [0, 0]  # type: ignore[attr-defined]
        started = time.monotonic()
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/episodes")).status_code == 200
        assert time.monotonic() - started < 1.0
        answers = await asyncio.gather(*streams)
    for answer in answers:
        assert events_of(answer.text)[-1] == "[DONE]"
        assert desk.record(answer.headers["X-Episode-Id"]).num_turns == 1


async def test_a_second_call_may_name_an_episode_whose_first_answer_is_under_way(desk: ClientDesk) -> None:
    desk.engine.token_delay_s = 0.05
    desk.say("hello world hello world", "ok")
    streamed = {**BODY, "stream": True}
    side = {**BODY, "messages": [{"role": "user", "content": "a title"}]}
    async with (
        on_a_port(desk.world) as client,
        client.stream("POST", "/v1/chat/completions", json=streamed) as response,
    ):
        episode = response.headers["X-Episode-Id"]
        other = await client.post("/v1/chat/completions", json=side, headers={"X-Episode-Id": episode})
        assert other.status_code == 200
        await response.aread()
    assert desk.record(episode).num_turns == 2


async def test_a_stream_that_waits_sends_a_sign_of_life(desk: ClientDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.gateway.answering.PING_S", 0.05)
    desk.say("hello", delay_s=0.4)
    async with on_a_port(desk.world) as client:
        response = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
    assert ": ping" in response.text
    assert events_of(response.text)[-1] == "[DONE]"


async def test_a_client_that_leaves_before_the_engine_says_anything_frees_it_too(desk: ClientDesk) -> None:
    desk.say("hello", delay_s=30.0)
    async with on_a_port(desk.world) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json=BODY, headers={"X-Episode-Id": "task"}, timeout=0.3)
        assert await seconds_until(lambda: desk.gateway.num_in_flight == 0) < 2.5
    assert desk.engine.bodies("/abort_request")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_an_answer_took_is_free_without_a_collection(desk: ClientDesk, is_streamed: bool) -> None:
    def held() -> list[int]:
        return [
            sum(type(thing) is kind for thing in gc.get_objects()) for kind in (Exchange, ChoiceSampler, MarkupReader)
        ]

    desk.say("a", "b")
    await desk.chat([USER], stream=is_streamed)
    gc.collect()
    before = held()
    gc.disable()
    try:
        assert (await desk.chat([USER], stream=is_streamed)).status_code == 200
        left = held()
    finally:
        gc.enable()
    assert left == before
