"""One tiny model and trainers of it. DeepSpeed is imported once, inside the first test that needs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from online_agent.config.training import LearnerSettings
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import Recipe, find_recipe
from tests.fakes.tiny_model import write_tiny_model

MakeTrainer = Callable[..., PolicyTrainer]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("learner") / "model", scale=0.05)


@pytest.fixture
def make_trainer(model_dir: Path) -> MakeTrainer:
    """A fresh trainer of the tiny model; keyword arguments are learner settings."""

    def make(recipe: Recipe | str = "sao", **settings: object) -> PolicyTrainer:
        chosen = find_recipe(recipe) if isinstance(recipe, str) else recipe
        return PolicyTrainer(model_dir, LearnerSettings(**{"critic_warmup_steps": 0, **settings}), chosen)

    return make
