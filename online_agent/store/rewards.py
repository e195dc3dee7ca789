"""How verdict and feedback become the one reward an episode is trained with."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from online_agent.errors import BadInput
from online_agent.store.records import FeedbackRule


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one source says, and how much it counts beside the others; the verdict counts 1."""

    reward: float
    weight: float = 1.0


def check_reward(value: float, param: str = "reward") -> float:
    """The value as a float. Raises BadInput naming it unless it is finite and in [-1, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 1:
        raise BadInput(f"{param} must be a finite number in [-1, 1], got {value!r}", param=param)
    return float(value)


def weighted_mean(opinions: Iterable[Opinion]) -> float | None:
    """sum(weight * reward) / sum(weight); None where nothing counts."""
    counted = [opinion for opinion in opinions if opinion.weight > 0]
    if not counted:
        return None
    largest = max(opinion.weight for opinion in counted)  # the smallest numbers keep no digits in a product
    weights = [opinion.weight / largest for opinion in counted]
    rewards = [opinion.reward for opinion in counted]
    return math.fsum(map(operator.mul, weights, rewards)) / math.fsum(weights)


def training_reward(rule: FeedbackRule, verdict: float, latest_by_source: Mapping[str, Opinion]) -> float:
    """The reward under ``rule``; ``latest_by_source`` holds the last opinion of each source."""
    if rule is FeedbackRule.VERDICT_ONLY:
        return verdict
    opinions = list(latest_by_source.values())
    if rule is FeedbackRule.MEAN_WITH_VERDICT:
        opinions.append(Opinion(verdict))
    mean = weighted_mean(opinions)
    return verdict if mean is None else mean
