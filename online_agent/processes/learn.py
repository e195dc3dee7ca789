"""The learner process: one rank without a launcher, or one of N under ``deepspeed`` or ``torchrun``.

Rank 0 owns the database and the weights directory and leads; the other ranks repeat its calls.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from online_agent.config.environment import settings_of_environment
from online_agent.config.settings import Settings
from online_agent.errors import ConfigError
from online_agent.jobs.enqueue import JobQueue
from online_agent.learner.loop import LearnerLoop
from online_agent.learner.old_logits.protocol import OldLogits
from online_agent.learner.old_logits.routes import open_route
from online_agent.learner.ranks import Ranks, join_ranks
from online_agent.learner.team import Team, follow
from online_agent.learner.trainer import PolicyTrainer
from online_agent.store.session import Database
from online_agent.supervisor.readiness import announce_ready
from online_agent.telemetry.logging import setup_logging
from online_agent.telemetry.tracing import setup_tracing, shut_down_tracing
from online_agent.weights.store import WeightStore


def main() -> None:
    """Learn until SIGTERM; the step under way is finished and committed first."""
    settings = settings_of_environment()
    ranks = join_ranks(settings.learner)
    setup_logging("learner" if ranks.is_first else f"learner-{ranks.rank}", settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Ranks above 0 leave when rank 0 dismisses them, not in the middle of a collective.
        signal.signal(number, lambda *_: stop.set())
    if ranks.is_first:
        _lead(settings, ranks, stop)
    else:
        follow(PolicyTrainer(Path(ranks.broadcast()), settings.learner, settings.recipe))


def _lead(settings: Settings, ranks: Ranks, stop: threading.Event) -> None:
    setup_tracing("learner", settings)
    db = Database(settings.database_url, settings.database.busy_timeout_s)
    weights = WeightStore(settings.weights_dir)
    jobs = JobQueue(settings)
    route: OldLogits | None = None
    try:
        model_dir = _model_dir(db, weights)
        ranks.broadcast(str(model_dir))
        team = Team(PolicyTrainer(model_dir, settings.learner, settings.recipe))
        route = open_route(settings, db, weights, model_dir, team.log_probs)
        loop = LearnerLoop(db, weights, team, settings, on_committed=jobs.publish, old_logits=route)
        loop.start()
        announce_ready(settings, "learner")
        loop.run(stop)
        team.dismiss()
    finally:
        if route is not None:
            route.close()
        jobs.close()
        db.close()
        shut_down_tracing()


def _model_dir(db: Database, weights: WeightStore) -> Path:
    """The served directory of the version to continue from: it gives the networks their shape."""
    with db.reading() as tx:
        version = tx.control.get().current_version
    if version is None:
        raise ConfigError("there is no weight version to learn from: import a seed model first")
    return weights.open(version).serving_dir
