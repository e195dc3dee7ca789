"""The experts that the engine used reach the episode: one row for each token that is fed in training."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from envs.protocols import Environment
from online_agent.agent.runner import EpisodeRunner
from online_agent.rendering import ChatRenderer
from online_agent.serving.client import EngineClient
from online_agent.store.session import Database
from online_agent.types import TrainingEpisode
from online_agent.weights.experts import ExpertShape
from tests.fakes.engine import ScriptedEngine, experts_of
from tests.fakes.environment import NotesEnvironment
from tests.fakes.tiny_model import CONTEXT_LENGTH, VOCAB_SIZE
from tests.unit.agent.conftest import SETTINGS, Desk, call_text

SHAPE = ExpertShape(num_layers=3, num_chosen=2, num_experts=8)
READ, SUBMIT = call_text("read_file", path="notes.txt"), call_text("submit")


@pytest.fixture
async def moe_desk(model_dirs: dict[int, Path], database: Database) -> AsyncIterator[Desk]:
    """A desk whose engine serves a mixture of experts."""
    renderer = ChatRenderer.load(model_dirs[1])
    environments: dict[str, Environment] = {"notes": NotesEnvironment()}
    limits = {"vocab_size": VOCAB_SIZE, "context_length": CONTEXT_LENGTH}
    async with (
        ScriptedEngine(model_dirs[1]).running() as engine,
        EngineClient(engine.url, experts=SHAPE, **limits) as client,
    ):
        engine.experts = SHAPE
        finished: list[str] = []
        runner = EpisodeRunner(database, client, renderer, environments, SETTINGS, finished.append)
        yield Desk(engine, renderer, database, runner, environments, finished)
        await runner.drain(1.0)


class SeenEnough(Exception):
    """Takes the reservation back."""


def reserved(desk: Desk, episode_id: str) -> TrainingEpisode:
    """The episode as the learner would get it."""
    desk.grade(episode_id)
    with suppress(SeenEnough), desk.db.transaction() as tx:
        [episode] = tx.episodes.reserve(1, batch=1, current_version=1, max_staleness=8)
        raise SeenEnough
    return episode


async def test_every_token_that_is_fed_in_training_has_the_experts_that_the_engine_used(moe_desk: Desk) -> None:
    moe_desk.say(READ, READ, SUBMIT)
    record = await moe_desk.run()

    episode = reserved(moe_desk, record.id)

    expected = experts_of(episode.token_ids.tolist(), SHAPE)
    assert episode.routed_experts is not None
    np.testing.assert_array_equal(episode.routed_experts[:-1], expected[:-1])
    assert not episode.routed_experts[-1].any()


async def test_each_turn_asks_only_for_what_no_earlier_turn_returned(moe_desk: Desk) -> None:
    moe_desk.say(READ, SUBMIT)
    await moe_desk.run()

    first, second = moe_desk.engine.bodies("/generate")
    num_sampled = len(moe_desk.ids(f"{READ}<|im_end|>"))
    assert first["routed_experts_start_len"] == 0
    assert second["routed_experts_start_len"] == len(first["input_ids"]) + num_sampled - 1


async def test_what_one_turn_did_not_return_the_next_one_makes_good(moe_desk: Desk) -> None:
    moe_desk.say(READ, raw={"routed_experts": None})
    moe_desk.say(SUBMIT)
    record = await moe_desk.run()

    episode = reserved(moe_desk, record.id)

    assert episode.routed_experts is not None
    np.testing.assert_array_equal(episode.routed_experts[:-1], experts_of(episode.token_ids.tolist(), SHAPE)[:-1])


@pytest.mark.parametrize("answer", [None, "", "AAAA", "%", "CAAAAA==" * 40])
async def test_an_episode_whose_last_rows_are_missing_or_wrong_is_trained_without_experts(
    moe_desk: Desk, answer: str | None
) -> None:
    moe_desk.say(READ)
    moe_desk.say(SUBMIT, raw={"routed_experts": answer})
    record = await moe_desk.run()

    assert record.untrainable_reason is None
    assert reserved(moe_desk, record.id).routed_experts is None
