"""The experts of a mixture come along with clients' answers, so that what they are trained as can replay them.

The scripted engine's experts are a fixed function of token and position: a row is right when it has those of its own
tokens, whatever turns it was put together from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from online_agent.serving.client import EngineClient
from online_agent.store.records import FeedbackRule
from online_agent.types import TrainingEpisode
from online_agent.weights.experts import ExpertShape
from tests.fakes.engine import experts_of
from tests.fakes.gateway import ClientDesk, open_desk
from tests.waiting import until

SHAPE = ExpertShape(num_layers=2, num_chosen=2, num_experts=8)
USER = {"role": "user", "content": "fix it"}
GO_ON = {"role": "user", "content": "go on"}


@pytest.fixture
async def desk(tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[ClientDesk]:
    async with open_desk(tmp_path, model_dirs[1], experts=SHAPE) as opened:
        yield opened


def said(answer: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


def assert_every_token_has_its_experts(*rows: TrainingEpisode) -> None:
    assert rows
    for row in rows:
        assert row.routed_experts is not None
        last_action = int(np.flatnonzero(row.action_mask)[-1])
        expected = experts_of(row.token_ids.tolist(), SHAPE)
        np.testing.assert_array_equal(row.routed_experts[:last_action], expected[:last_action])


def asked_from(desk: ClientDesk) -> list[int]:
    return [body["routed_experts_start_len"] for body in desk.engine.bodies("/generate")]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_each_call_asks_only_for_what_no_earlier_turn_returned(desk: ClientDesk, is_streamed: bool) -> None:
    desk.say("one", "two", "three")
    history = [USER]
    for word in ("one", "two", "three"):
        await desk.chat(history, "task", stream=is_streamed)
        history = [*history, {"role": "assistant", "content": word}, GO_ON]
    prompts, actions = desk.prompts(), desk.actions("task")
    num_whole = [len(prompt) + len(sampled) for prompt, sampled in zip(prompts, actions, strict=True)]
    assert asked_from(desk) == [0, num_whole[0] - 1, num_whole[1] - 1]
    assert_every_token_has_its_experts(*desk.training_rows("task"))


async def test_segments_take_those_of_the_turns_they_branched_from(desk: ClientDesk) -> None:
    desk.say("one", "two", "three", "four", "five")
    one = said(await desk.answer([USER], "task"))
    two = said(await desk.answer([USER, one, GO_ON], "task"))
    await desk.answer([USER, one, {"role": "user", "content": "another way"}], "task")  # branches behind the first
    await desk.answer([USER, one, GO_ON, two, GO_ON], "task")
    await desk.answer([{"role": "user", "content": "compacted"}, two, GO_ON], "task")  # a context of its own
    rows = desk.training_rows("task")
    assert [int(row.action_mask.sum()) for row in rows] == [
        sum(len(desk.actions("task")[turn]) for turn in turns) for turns in ((0, 1, 3), (2,), (4,))
    ]
    assert_every_token_has_its_experts(*rows)


async def test_choices_and_retries_have_their_own(desk: ClientDesk) -> None:
    desk.say("one", "another one", "two", "two again")
    one = said(await desk.answer([USER], "task", n=2))
    await desk.answer([USER, one, GO_ON], "task")
    await desk.answer([USER, one, GO_ON], "task")
    assert len(desk.discarded("task")) == 1
    assert_every_token_has_its_experts(*desk.training_rows("task"))


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_that_a_stop_string_ends_is_continued_without_a_gap(
    desk: ClientDesk, is_streamed: bool
) -> None:
    desk.say("hello world of tests", "two")
    await desk.chat([USER], "task", stop=["world"], stream=is_streamed)
    text = desk.completions("task")[0].message["text"]
    await desk.answer([USER, {"role": "assistant", "content": text}, GO_ON], "task")
    assert len(desk.actions("task")) == 2
    assert asked_from(desk)[1] == len(desk.prompts()[0]) + len(desk.actions("task")[0]) - 1
    assert_every_token_has_its_experts(*desk.training_rows("task"))


async def test_an_answer_that_the_engine_cut_off_has_those_of_both_pieces(desk: ClientDesk) -> None:
    desk.engine.token_delay_s = 0.05
    desk.say("hello world of tests")
    call = asyncio.create_task(desk.chat([USER], "task"))
    await until(lambda: any(run.versions for run in desk.engine._running.values()))
    async with EngineClient(desk.engine.url) as operator:
        await operator.pause("abort")
        desk.engine.token_delay_s = 0.0
        desk.say(" passed")
        await operator.resume()
    assert (await call).status_code == 200
    assert len(desk.prompts()) == 2
    assert_every_token_has_its_experts(*desk.training_rows("task"))


async def test_rows_that_did_not_come_are_asked_for_again(desk: ClientDesk) -> None:
    desk.say("one", raw={"routed_experts": None})
    desk.say("two")
    one = said(await desk.answer([USER], "task"))
    [row] = desk.training_rows("task")
    assert row.routed_experts is None
    await desk.answer([USER, one, GO_ON], "task")
    assert asked_from(desk) == [0, 0]
    assert_every_token_has_its_experts(*desk.training_rows("task"))


async def test_a_recipe_that_replays_routing_takes_whole_episodes_and_drops_those_with_a_gap(desk: ClientDesk) -> None:
    desk.say("one", "two", "compacted")
    one = said(await desk.answer([USER], "whole"))
    await desk.answer([USER, one, GO_ON], "whole")
    await desk.answer([{"role": "user", "content": "short"}, one, GO_ON], "whole")
    desk.say("one", raw={"routed_experts": None})
    await desk.answer([USER], "without")
    for name in ("whole", "without"):
        answer = await desk.post(f"/v1/episodes/{name}/close", {"reward": 1.0})
        assert answer.status_code == 200, answer.text
    with desk.world.db.transaction() as tx:
        rows = tx.episodes.reserve(1, 4, 1, 8, FeedbackRule.MEAN_WITH_VERDICT, allow_fewer=True, needs_experts=True)
        reason = tx.episodes.get("acme", desk.client_episode("without").id).drop_reason
        tx.connection.rollback()
    assert {row.episode_id for row in rows} == {desk.client_episode("whole").id}
    assert len(rows) == 2
    assert_every_token_has_its_experts(*rows)
    assert reason == "no_experts"
