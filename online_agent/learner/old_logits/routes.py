"""The route that the recipe names, opened with the settings."""

from __future__ import annotations

from pathlib import Path

from online_agent.config.settings import Settings
from online_agent.errors import ConfigError
from online_agent.learner.old_logits.dedicated import DedicatedRoute
from online_agent.learner.old_logits.interruption import InterruptionRoute, Patience, ScoreCurrent
from online_agent.learner.old_logits.protocol import OldLogits
from online_agent.learner.old_logits.scoring import Scorer
from online_agent.learner.old_logits.snapshot import SnapshotRoute
from online_agent.learner.old_logits.window import VersionWindow
from online_agent.store.session import Database
from online_agent.types import TrainingEpisode
from online_agent.weights.store import WeightStore


def open_route(
    settings: Settings, db: Database, weights: WeightStore, model_dir: Path, score_current: ScoreCurrent
) -> OldLogits | None:
    """None for a recipe that needs no exact old log-probs. ``score_current`` asks the trainer's own actor.

    Raises ConfigError for the interruption of a recipe that replays routing: what is scored before an episode ends
    has no experts yet.
    """
    route, limits, recipe = settings.recipe.old_logits_route, settings.old_logits, settings.recipe
    if route == "snapshot":
        scorer = Scorer(model_dir, settings.learner, replays_routing=recipe.replays_routing)
        return SnapshotRoute(scorer, VersionWindow(weights, limits.max_held_bytes))
    if route == "dedicated":
        return DedicatedRoute(
            weights,
            settings.learner,
            replays_routing=recipe.replays_routing,
            max_held_bytes=limits.max_held_bytes,
            answer_timeout_s=limits.answer_timeout_s,
            upcoming=tuple if recipe.replays_routing else lambda: _next_in_queue(db, settings.learner.batch_episodes),
        )
    if route == "interruption":
        if recipe.replays_routing:
            raise ConfigError(f"recipe {recipe.name}: old log-probs by interruption cannot replay routing")
        patience = Patience(limits.serving_wait_s, limits.pause_wait_s, settings.weights.publish_every_versions)
        return InterruptionRoute(db, score_current, patience)
    return None


def _next_in_queue(db: Database, num: int) -> list[TrainingEpisode]:
    with db.reading() as tx:
        return tx.old_logprobs.upcoming(num)
