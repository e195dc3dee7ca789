"""The actor's side of a step: log-probs, the recipe's loss, and one update.

The pass only gathers a gradient. Where the recipe needs statistics of the whole step and the step has several
micro-batches, a pass without gradient takes them first; with one micro-batch its own log-probs serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from online_agent.learner.batching import MicroBatch
from online_agent.learner.objective import Judged, Objective, Statistics, StepCounts
from online_agent.learner.proximal import Proximal
from online_agent.learner.ranks import Ranks
from online_agent.learner.reference import policy_inputs
from online_agent.learner.zero_engine import ZeroEngine
from online_agent.recipes import Recipe
from online_agent.types import TrainingEpisode


@dataclass(frozen=True, slots=True)
class PolicyPass:
    """Columns (N,) of each micro-batch without gradient, and the step's loss, region metrics and statistics.

    ``reference`` holds the log-probs ratios were taken against.
    """

    logps: list[Tensor]
    reference: list[Tensor]
    loss: float
    metrics: dict[str, float]
    statistics: Statistics
    num_unknown: int


class PolicyLearner:
    """All methods are collectives."""

    def __init__(self, engine: ZeroEngine, recipe: Recipe, proximal: Proximal, ranks: Ranks) -> None:
        self.engine = engine
        self._objective = Objective(recipe, ranks)
        self._proximal = proximal
        self._replays_routing = recipe.replays_routing
        self._ranks = ranks

    def fixed(self, batches: Sequence[MicroBatch], episodes: Sequence[TrainingEpisode]) -> list[Tensor | None]:
        """What the reference knows before the policy is asked, (N,) of each micro-batch."""
        return [self._proximal.fixed(batch, episodes) for batch in batches]

    def run(
        self,
        batches: Sequence[MicroBatch],
        advantages: Sequence[Tensor],
        fixed: Sequence[Tensor | None],
        counts: StepCounts,
        *,
        is_warmup: bool,
    ) -> PolicyPass:
        """One pass over the step; the engine then holds the gradient of the loss, except in a warm-up."""
        statistics = self._survey(batches, advantages, fixed)
        logps, reference, parts = [], [], []
        total, num_unknown = torch.zeros(2, device=self._ranks.device)
        for batch, advantages_N, fixed_N in zip(batches, advantages, fixed, strict=True):
            with torch.set_grad_enabled(not is_warmup):
                judged = self._judged(batch, advantages_N, fixed_N)
                if statistics is None:
                    statistics = self._objective.measure([_detached(judged)])
                loss, metrics = self._objective.loss(judged, statistics, counts)
            if not is_warmup:
                self.engine.backward(loss * self._ranks.world_size)
            total = total + loss.detach()
            parts.append(metrics)
            logps.append(judged.logp_N.detach())
            anchor_N = judged.anchors.logp_N
            reference.append(batch.logp_mu_N if anchor_N is None else anchor_N)
            num_unknown = num_unknown + (~judged.anchors.is_known_N).sum()
        assert statistics is not None, "a step has at least one micro-batch"
        return PolicyPass(
            logps=logps,
            reference=reference,
            loss=float(self._ranks.sum(total)),
            metrics=self._objective.step_metrics(parts),
            statistics=statistics,
            num_unknown=int(self._ranks.sum(num_unknown)),
        )

    def _survey(
        self, batches: Sequence[MicroBatch], advantages: Sequence[Tensor], fixed: Sequence[Tensor | None]
    ) -> Statistics | None:
        """The step's statistics before any gradient; None where the one micro-batch there is will give them."""
        if not self._objective.needs_statistics:
            return Statistics()
        if len(batches) == 1:
            return None
        with torch.no_grad():
            return self._objective.measure(
                [self._judged(*columns) for columns in zip(batches, advantages, fixed, strict=True)]
            )

    def _judged(self, batch: MicroBatch, advantages_N: Tensor, fixed_N: Tensor | None) -> Judged:
        logp_N = self._logp(batch)
        return Judged(batch, logp_N, self._proximal.anchors(batch, logp_N, fixed_N), advantages_N)

    def _logp(self, batch: MicroBatch) -> Tensor:
        logp_N: Tensor = self.engine(*policy_inputs(batch, self._replays_routing))
        return logp_N


def _detached(judged: Judged) -> Judged:
    return Judged(judged.batch, judged.logp_N.detach(), judged.anchors, judged.advantages_N)
