"""How verdict and feedback become the one reward an episode is trained with."""

from __future__ import annotations

import math
from collections.abc import Mapping

from online_agent.errors import BadInput
from online_agent.store.records import FeedbackRule


def check_reward(value: float, param: str = "reward") -> float:
    """The value as a float. Raises BadInput naming it unless it is finite and in [-1, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 1:
        raise BadInput(f"{param} must be a finite number in [-1, 1], got {value!r}", param=param)
    return float(value)


def training_reward(rule: FeedbackRule, verdict: float, latest_by_source: Mapping[str, float]) -> float:
    """The reward under ``rule``; ``latest_by_source`` holds the last reward each source gave."""
    if rule is FeedbackRule.VERDICT_ONLY or not latest_by_source:
        return verdict
    rewards = list(latest_by_source.values())
    if rule is FeedbackRule.MEAN_WITH_VERDICT:
        rewards.append(verdict)
    return math.fsum(rewards) / len(rewards)
