"""A learner process that uses a second model and is then killed."""

from __future__ import annotations

import time
from pathlib import Path

from online_agent.config.training import LearnerSettings
from online_agent.learner.old_logits.dedicated import DedicatedRoute
from online_agent.weights.store import WeightStore
from tests.fakes.policy_versions import VERSIONS, mixed_episodes


def fill_and_wait(weights_root: str, told: str) -> None:
    """Fills one batch, writes the pid of the second process to ``told``, and never returns."""
    route = DedicatedRoute(
        WeightStore(Path(weights_root)), LearnerSettings(), max_held_bytes=10**9, answer_timeout_s=60.0
    )
    route.fill(mixed_episodes(1, VERSIONS), version=VERSIONS[-1])
    Path(told).write_text(str(route.pid))
    time.sleep(600)
