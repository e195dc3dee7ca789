"""From a request for a group to the step that trains on it: the HTTP application, the store and the learner's loop.

Only the arithmetic is a fake: a trainer that remembers what it was given and writes the smallest version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from online_agent.config.training import LearnerSettings, WeightsSettings
from online_agent.learner.loop import LearnerLoop
from online_agent.learner.report import METRIC_KEYS, ReferenceReset, StepReport
from online_agent.learner.stages import Stage
from online_agent.types import EpisodeStatus, TrainingEpisode
from tests.fakes.api import World, open_world

BATCH, SIZE = 8, 4


@dataclass
class RememberingTrainer:
    """``batches`` are the episodes of each step."""

    batches: list[list[TrainingEpisode]] = field(default_factory=list)
    is_warming_up = False

    def step(self, episodes: Sequence[TrainingEpisode], *, version: int, is_warmup: bool) -> StepReport:
        self.batches.append(list(episodes))
        return StepReport(is_warmup, dict.fromkeys(METRIC_KEYS))

    def reset_reference(self, cause: str) -> ReferenceReset:
        return ReferenceReset(cause, None)

    def export(self, directory: Path) -> None:
        (directory / "serving/config.json").write_text('{"architectures": ["Tiny"]}')
        (directory / "serving/tokenizer.json").write_text("{}")
        (directory / "learner/state.json").write_text("{}")
        for name in ("serving/model.safetensors", "learner/critic.safetensors"):
            save_file({"w": np.full((2, 2), len(self.batches), np.float32)}, directory / name)

    def restore(self, directory: Path) -> None:
        assert directory.is_dir()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    learner = LearnerSettings(recipe="grpo", batch_episodes=BATCH)
    async with open_world(tmp_path, learner=learner, weights=WeightsSettings(min_free_bytes=1)) as opened:
        opened.write_version(1)
        yield opened


def started_loop(world: World, trainer: RememberingTrainer, on_stage: Any = lambda stage: None) -> LearnerLoop:
    runtime = world.runtime
    loop = LearnerLoop(world.db, runtime.weights, trainer, runtime.settings, lambda version: None, on_stage)
    loop.start()
    return loop


def statuses(world: World, episode_ids: Sequence[str]) -> Counter[EpisodeStatus]:
    with world.db.reading() as tx:
        return Counter(status for _, status in tx.episodes.progress(episode_ids).values())


async def grade_group(world: World) -> None:
    answer = await world.client.post("/v1/episodes", json={"env": "add_one", "group_size": SIZE})
    for episode_id in answer.json()["episode_ids"]:
        world.runner.finish(episode_id)


async def test_groups_asked_for_over_http_are_trained_on_whole_and_once(world: World) -> None:
    trainer = RememberingTrainer()
    loop = started_loop(world, trainer)
    groups = [await world.episode(group_size=SIZE) for _ in range(3)]
    assert loop.run_once()
    assert [episode.id for episode in trainer.batches[0]] == [i for group in groups[:2] for i in group["episode_ids"]]
    assert [episode.group_id for episode in trainer.batches[0]] == [
        group["group_id"] for group in groups[:2] for _ in range(SIZE)
    ]
    assert {episode.task_id for episode in trainer.batches[0]} == {"add_one/train-0", "add_one/train-1"}
    assert not loop.run_once()
    assert statuses(world, groups[2]["episode_ids"]) == {EpisodeStatus.GRADED: SIZE}
    groups.append(await world.episode(group_size=SIZE))
    assert loop.run_once()
    assert [len(batch) for batch in trainer.batches] == [BATCH, BATCH]
    assert statuses(world, [i for group in groups for i in group["episode_ids"]]) == {EpisodeStatus.TRAINED: 4 * SIZE}


async def test_a_learner_of_groups_waits_for_the_last_member(world: World) -> None:
    trainer = RememberingTrainer()
    loop = started_loop(world, trainer)
    await world.episode(group_size=SIZE)
    world.runner.hold()
    answer = await world.client.post("/v1/episodes", json={"env": "add_one", "group_size": SIZE})
    late = answer.json()["episode_ids"]
    for episode_id in late[:-1]:
        world.runner.finish(episode_id)
    assert not loop.run_once()
    with world.db.transaction() as tx:
        tx.episodes.fail(late[-1], "EngineUnavailable: gone")
    assert not loop.run_once()  # 4 + 3 leave room for another one
    await grade_group(world)
    assert loop.run_once()
    assert [len(batch) for batch in trainer.batches] == [2 * SIZE - 1]


async def test_single_episodes_are_dropped_by_a_learner_of_groups_and_held_out_ones_kept(world: World) -> None:
    loop = started_loop(world, RememberingTrainer())
    alone, heldout = await world.episode(), await world.episode(split="heldout")
    for _ in range(2):
        await world.episode(group_size=SIZE)
    assert loop.run_once()
    row = (await world.client.get(f"/v1/episodes/{alone['id']}")).json()
    assert (row["status"], row["drop_reason"]) == ("dropped", "ungrouped")
    assert (await world.client.get(f"/v1/episodes/{heldout['id']}")).json()["status"] == "graded"


class Killed(BaseException):
    """The end of the process, as far as a test in the same process can have it."""


@contextmanager
def a_kill_at(stage: Stage) -> Iterator[Any]:
    def die(passed: Stage) -> None:
        if passed is stage:
            raise Killed

    with pytest.raises(Killed):
        yield die


@pytest.mark.parametrize("stage", [Stage.RESERVED, Stage.TRAINED, Stage.WRITTEN, Stage.RENAMED])
async def test_a_killed_learner_gives_whole_groups_back_to_the_next_one(world: World, stage: Stage) -> None:
    groups = [await world.episode(group_size=SIZE) for _ in range(2)]
    ids = [i for group in groups for i in group["episode_ids"]]
    with a_kill_at(stage) as die:
        started_loop(world, RememberingTrainer(), die).run_once()
    assert statuses(world, ids) == {EpisodeStatus.RESERVED: BATCH}
    trainer = RememberingTrainer()
    assert started_loop(world, trainer).run_once()
    assert [[episode.id for episode in batch] for batch in trainer.batches] == [ids]
    with world.db.reading() as tx:
        assert tx.episodes.trained_twice() == 0
