"""A learner on a real database and a real weights directory, ready to be started in a test or in its own process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from envs.types import Verdict
from online_agent.config.settings import Settings
from online_agent.config.training import LearnerSettings, WeightsSettings
from online_agent.learner.loop import LearnerLoop
from online_agent.learner.stages import Stage
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import RecipeTable
from online_agent.recipes.parts import Ewma
from online_agent.store.session import Database
from online_agent.types import StopReason
from online_agent.weights.store import WeightStore
from tests.fakes.episodes import make_turn, open_episode, seed_version
from tests.fakes.tenants import opt_in
from tests.fakes.tiny_model import VOCAB_SIZE

BATCH = 3
LEARNER = LearnerSettings(recipe="patient", batch_episodes=BATCH, critic_warmup_steps=1, lease_s=60.0)
# SAO whose average forgets late, so that a test's few updates do not reset it.
OWN_RECIPES = {"patient": RecipeTable(base="sao", watched_average=Ewma(tau=0.5))}
# About what the tiny model gives any token; the ratio is near 1.
LIKELY_LOGPROB = -float(np.log(VOCAB_SIZE))


@dataclass(frozen=True)
class Workplace:
    """A migrated database with a serving version 0, and its directory."""

    settings: Settings
    db: Database
    weights: WeightStore

    def add_episodes(self, num: int, version: int = 0) -> list[str]:
        return [self._add_episode(version, float(n % 2)) for n in range(num)]

    def _add_episode(self, version: int, reward: float) -> str:
        episode_id = open_episode(self.db)
        with self.db.transaction() as tx:
            tx.episodes.add_turn(episode_id, make_turn(versions=[version], logprob=LIKELY_LOGPROB))
            tx.episodes.finish(episode_id, StopReason.SUBMITTED, None)
            tx.episodes.grade(episode_id, Verdict(reward, reward > 0))
        return episode_id

    def loop(
        self,
        on_committed: Callable[[int], None] = lambda version: None,
        on_stage: Callable[[Stage], None] = lambda stage: None,
    ) -> LearnerLoop:
        trainer = PolicyTrainer(self.weights.open(0).serving_dir, self.settings.learner, self.settings.recipe)
        return LearnerLoop(self.db, self.weights, trainer, self.settings, on_committed, on_stage)


def open_workplace(data_dir: Path, learner: LearnerSettings = LEARNER) -> Workplace:
    settings = Settings(
        data_dir=data_dir, learner=learner, recipes=OWN_RECIPES, weights=WeightsSettings(min_free_bytes=1)
    )
    return Workplace(settings, Database(settings.database_url), WeightStore(settings.weights_dir))


def new_workplace(data_dir: Path, model_dir: Path, learner: LearnerSettings = LEARNER) -> Workplace:
    place = open_workplace(data_dir, learner)
    place.db.migrate()
    opt_in(place.db)
    place.weights.import_seed(model_dir)
    seed_version(place.db)
    return place


def spoil_gradient(network: torch.nn.Module) -> RemovableHandle:
    """From now until the handle is removed, one gradient of the network is NaN."""
    first = next(p for p in network.parameters() if p.requires_grad)
    return first.register_hook(lambda gradient: gradient * float("nan"))


def live_until(data_dir: str, stage: Stage | None) -> None:
    """One life of a learner process: killed (SIGKILL) when its first step reaches ``stage``, or, with None, training
    until the queue is too short. Meant to be the target of a process of its own."""
    place = open_workplace(Path(data_dir))

    def on_stage(reached: Stage) -> None:
        if reached is stage:
            os.kill(os.getpid(), signal.SIGKILL)

    loop = place.loop(on_stage=on_stage)
    loop.start()
    while loop.run_once():
        pass
    place.db.close()
