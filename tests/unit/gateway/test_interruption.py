"""The learner pauses the engine while clients are being answered: they see a pause, and nothing that was sampled under
the version it is about to replace goes unscored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from online_agent.serving.client import EngineClient
from online_agent.store.records import InterruptionState
from online_agent.types import EpisodeStatus, TrainingEpisode
from tests.fakes.api import on_a_port
from tests.fakes.gateway import ClientDesk, open_desk
from tests.waiting import until

USER = {"role": "user", "content": "fix it"}
GO_ON = {"role": "user", "content": "go on"}
LONG = "hello world of many tests " * 4
SLOW_S = 0.2


@pytest.fixture
async def desk(tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[ClientDesk]:
    async with open_desk(tmp_path, model_dirs[1], is_interrupted=True) as opened:
        yield opened


async def asked(desk: ClientDesk) -> int:
    """The learner's question, answered: nothing is sampled any more."""
    with desk.world.db.transaction() as tx:
        number = tx.interruptions.ask(1)
    await until(lambda: state_of(desk, number) is InterruptionState.PAUSED)
    return number


def state_of(desk: ClientDesk, number: int) -> InterruptionState:
    with desk.world.db.reading() as tx:
        record = tx.interruptions.get(number)
    assert record is not None
    return record.state


def released(desk: ClientDesk, number: int) -> None:
    with desk.world.db.transaction() as tx:
        tx.interruptions.release(number)


async def is_sampling(desk: ClientDesk, num_calls: int = 1) -> None:
    await until(lambda: sum(len(run.versions) > 0 for run in desk.engine._running.values()) == num_calls)


def held(desk: ClientDesk) -> list[TrainingEpisode]:
    with desk.world.db.reading() as tx:
        return tx.old_logprobs.held_by(1)


def score(desk: ClientDesk) -> None:
    """Each token of version 1 that has no score gets its position as one, negative."""
    rows = held(desk)
    logps = [np.where(row.versions == 1, -np.arange(len(row.versions)), np.nan).astype(np.float32) for row in rows]
    with desk.world.db.transaction() as tx:
        tx.old_logprobs.put(rows, 1, logps)
        tx.old_logprobs.prune()


def scores_of(desk: ClientDesk, episode: str) -> list[TrainingEpisode]:
    with desk.world.db.reading() as tx:
        return tx.old_logprobs.fill(desk.training_rows(episode))


def assert_scored(row: TrainingEpisode) -> None:
    """Every token of version 1 has the score of its position, others have none."""
    assert row.old_logprobs is not None
    expected = np.where(row.versions == 1, -np.arange(len(row.versions)), np.nan).astype(np.float32)
    np.testing.assert_array_equal(row.old_logprobs, expected)


async def interrupted(desk: ClientDesk, *calls: asyncio.Task[httpx.Response]) -> list[list[int]]:
    """Calls under way are cut off, scored and continued by version 2; what of each was sampled before."""
    await is_sampling(desk, len(calls))
    number = await asked(desk)
    under_way = [row.token_ids[row.action_mask].tolist() for row in held(desk)]
    score(desk)
    desk.engine.token_delay_s = 0.0
    desk.engine.version_label = "2"
    released(desk, number)
    for call in calls:
        assert (await call).status_code == 200
    return under_way


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_that_was_interrupted_goes_on_and_its_tokens_are_scored(
    desk: ClientDesk, is_streamed: bool
) -> None:
    desk.engine.token_delay_s = SLOW_S
    desk.say(LONG)
    call = asyncio.create_task(desk.chat([USER], "task", stream=is_streamed))
    await is_sampling(desk)
    desk.say(" passed")
    [kept] = await interrupted(desk, call)
    [row] = scores_of(desk, "task")
    assert row.token_ids[row.action_mask].tolist() == [*kept, *desk.ids(" passed<|im_end|>")]
    assert row.versions[row.action_mask].tolist() == [1] * len(kept) + [2] * (row.num_action_tokens - len(kept))
    assert_scored(row)
    assert desk.record("task").untrainable_reason is None


async def test_several_answers_under_way_in_one_episode_are_each_scored(desk: ClientDesk) -> None:
    desk.say("one")
    await desk.answer([USER], "task")
    desk.engine.token_delay_s = SLOW_S
    desk.say(LONG, LONG)
    history = [USER, {"role": "assistant", "content": "one"}, GO_ON]
    call = asyncio.create_task(desk.chat(history, "task", n=2))
    await is_sampling(desk, 2)
    desk.say(" passed", " failed")
    first = await interrupted_together(desk, call)
    assert len(first) == 3  # the stored turn and both choices
    rows = scores_of(desk, "task")
    assert len(rows) == 2
    for row in rows:
        assert_scored(row)
        assert set(row.versions[row.action_mask].tolist()) == {1, 2}


async def interrupted_together(desk: ClientDesk, call: asyncio.Task[httpx.Response]) -> list[TrainingEpisode]:
    number = await asked(desk)
    rows = held(desk)
    score(desk)
    desk.engine.token_delay_s = 0.0
    desk.engine.version_label = "2"
    released(desk, number)
    assert (await call).status_code == 200
    return rows


async def test_what_is_scored_segment_by_segment_is_read_back_so(desk: ClientDesk) -> None:
    desk.say("one", "two", "another", "compacted")
    one = {"role": "assistant", "content": "one"}
    await desk.answer([USER], "task")
    await desk.answer([USER, one, GO_ON], "task")
    await desk.answer([USER, one, {"role": "user", "content": "another way"}], "task")
    await desk.answer([{"role": "user", "content": "all in short"}], "task")
    assert len(held(desk)) == 3
    score(desk)
    rows = scores_of(desk, "task")
    assert len(rows) == 3
    for row in rows:
        assert_scored(row)


async def test_calls_that_come_in_a_pause_wait_for_its_end(desk: ClientDesk) -> None:
    number = await asked(desk)
    desk.say("one", "two", "three")
    calls = [asyncio.create_task(desk.chat([USER], "task", stream=is_streamed)) for is_streamed in (False, True)]
    calls.append(asyncio.create_task(desk.post("/v1/chat/completions", body(), **{"X-Record": "false"})))
    await until(lambda: desk.gateway.num_in_flight == 3)
    await asyncio.sleep(0.1)
    assert desk.engine.bodies("/generate") == []
    released(desk, number)
    assert [response.status_code for response in await asyncio.gather(*calls)] == [200] * 3


def body(**more: Any) -> dict[str, Any]:
    return {"model": "online-agent", "messages": [USER], "max_tokens": 64, **more}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_call_that_waits_at_the_engines_door_is_sent_again(desk: ClientDesk, is_streamed: bool) -> None:
    async with EngineClient(desk.engine.url) as operator:
        await operator.pause("abort")
    desk.say("lost", "one")
    call = asyncio.create_task(desk.chat([USER], "task", stream=is_streamed))
    await until(lambda: len(desk.engine.bodies("/generate")) == 1)
    number = await asked(desk)
    released(desk, number)
    assert (await call).status_code == 200
    assert len(desk.engine.bodies("/generate")) == 2
    assert len(desk.completions("task")) == 1


async def test_a_client_that_leaves_in_a_pause_keeps_what_was_sampled(desk: ClientDesk) -> None:
    desk.engine.token_delay_s = SLOW_S
    desk.say(LONG)
    async with on_a_port(desk.world) as client:
        async with client.stream(
            "POST", "/v1/chat/completions", json=body(stream=True), headers={"X-Episode-Id": "task"}
        ) as response:
            assert response.status_code == 200
            await is_sampling(desk)
            number = await asked(desk)
        await until(lambda: desk.gateway.num_in_flight == 0)
    assert len(desk.engine.bodies("/generate")) == 1
    released(desk, number)
    [turn] = desk.completions("task")
    assert turn.is_cut_short
    assert desk.record("task").status is EpisodeStatus.OPEN
