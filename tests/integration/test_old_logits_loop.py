"""The learner's loop with exact old log-probs: filled before each step, paid for in its metrics."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from online_agent.config.training import LearnerSettings
from online_agent.learner.loop import LearnerLoop
from online_agent.learner.old_logits.routes import open_route
from online_agent.learner.report import METRIC_KEYS
from online_agent.learner.trainer import PolicyTrainer
from online_agent.promotion.retention import prune_versions, scored_versions
from online_agent.types import VersionState
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.learner import BATCH, Workplace, new_workplace
from tests.fakes.tiny_model import write_tiny_model

pytestmark = SILENCED

EXACT = LearnerSettings(
    recipe="decoupled-exact", batch_episodes=BATCH, critic_warmup_steps=0, actor_lr=1e-6, lease_s=60.0
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    made = new_workplace(tmp_path / "data", write_tiny_model(tmp_path / "seed", scale=0.01), EXACT)
    yield made
    made.db.close()


def started(place: Workplace) -> LearnerLoop:
    serving_dir = place.weights.open(0).serving_dir
    trainer = PolicyTrainer(serving_dir, place.settings.learner, place.settings.recipe)
    route = open_route(place.settings, place.db, place.weights, serving_dir, trainer.log_probs)
    loop = LearnerLoop(place.db, place.weights, trainer, place.settings, lambda version: None, old_logits=route)
    loop.start()
    return loop


def supersede(place: Workplace, version: int) -> None:
    """It was never served, as when the learner is faster than promotion."""
    with place.db.transaction() as tx:
        assert tx.weights.move(version, {VersionState.CANDIDATE}, VersionState.RETIRED, "superseded")


def last_metrics(place: Workplace) -> dict[str, float | None]:
    with place.db.reading() as tx:
        return dict(tx.steps.last(1)[0].metrics)


def test_stale_episodes_are_trained_against_the_versions_that_sampled_them(place: Workplace) -> None:
    loop = started(place)
    place.add_episodes(BATCH)
    assert loop.run_once()
    place.add_episodes(BATCH - 1, version=0)
    place.add_episodes(1, version=1)
    assert loop.run_once()

    metrics = last_metrics(place)
    assert loop.version == 2
    assert set(metrics) == set(METRIC_KEYS)
    assert metrics["old_logits/missing_tokens"] == 0
    assert metrics["old_logits/seconds"] > 0
    assert metrics["old_logits/bytes"] > 0
    assert metrics["old_logits/paused_seconds"] == 0


def test_retention_keeps_the_versions_of_the_staleness_window_for_the_route(place: Workplace) -> None:
    loop = started(place)
    for _ in range(3):
        place.add_episodes(BATCH, version=loop.version)
        assert loop.run_once()
    supersede(place, 1)
    spared = prune_versions(place.db, place.weights, 2, scored_versions(place.settings))
    assert spared == []
    assert place.weights.versions() == [0, 1, 2, 3]
    assert prune_versions(place.db, place.weights, 2, 0) == [1]  # 0 serves, 2 and 3 are the newest


def test_a_version_that_is_gone_costs_its_tokens_and_not_the_learner(place: Workplace) -> None:
    loop = started(place)
    for version in (0, 1, 2):
        place.add_episodes(BATCH, version=version)
        assert loop.run_once()
    supersede(place, 1)
    assert prune_versions(place.db, place.weights, 2) == [1]
    loop = started(replace(place))  # a learner that holds nothing in memory
    place.add_episodes(BATCH - 1, version=2)
    place.add_episodes(1, version=1)

    assert loop.run_once()

    assert last_metrics(place)["old_logits/missing_tokens"] == 6
