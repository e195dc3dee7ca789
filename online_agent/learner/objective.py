"""The loss of a recipe over the micro-batches of a step, normalised by counts of the whole step.

Most trust regions judge a token by itself. Two things need the whole step before any gradient: SAT's quantile of
|d|, and the number of kept tokens where the loss is averaged over these. ``measure`` takes them over all micro-batches
and ranks, so that neither cut shows in the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from online_agent.algo.objective import aggregate, distances, surrogate
from online_agent.algo.ratios import Metrics, Surrogate, merge_metrics
from online_agent.algo.trust_regions import sat_threshold
from online_agent.learner.batching import MicroBatch
from online_agent.learner.proximal import Anchors
from online_agent.learner.ranks import Ranks
from online_agent.recipes import Recipe
from online_agent.recipes.parts import Sat, SatGspo


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Of the whole step, all ranks: action tokens, and episodes that have any."""

    num_tokens: int
    num_episodes: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """``threshold``: SAT's q; ``num_kept``: tokens the region lets through. None where the recipe needs none."""

    threshold: Tensor | None = None
    num_kept: float | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """One micro-batch before its update: the policy's log-probs, what they are compared with, and the advantages."""

    batch: MicroBatch
    logp_N: Tensor
    anchors: Anchors
    advantages_N: Tensor


class Objective:
    """Losses of one recipe. ``measure`` is a collective."""

    def __init__(self, recipe: Recipe, ranks: Ranks) -> None:
        self._region = recipe.trust_region
        self._aggregation = recipe.aggregation
        self._ranks = ranks

    @property
    def _wants_threshold(self) -> bool:
        return isinstance(self._region, Sat | SatGspo) and self._region.over == "step"

    @property
    def needs_statistics(self) -> bool:
        """Whether ``loss`` has to wait for ``measure``."""
        return self._wants_threshold or self._aggregation == "kept_token_mean"

    @torch.no_grad()
    def measure(self, step: Sequence[Judged]) -> Statistics:
        """The statistics over all micro-batches of the step."""
        threshold = self._threshold(step) if self._wants_threshold else None
        if self._aggregation != "kept_token_mean":
            return Statistics(threshold)
        so_far = Statistics(threshold)
        kept = sum(self._surrogate(each, so_far).kept_mask.sum().double() for each in step)
        return Statistics(threshold, float(self._ranks.sum(torch.as_tensor(kept, dtype=torch.float64))))

    def loss(self, judged: Judged, statistics: Statistics, counts: StepCounts) -> tuple[Tensor, Metrics]:
        """This micro-batch's part of the step's loss, differentiable in its log-probs, and the region's metrics."""
        result = self._surrogate(judged, statistics)
        denominator = {
            "global_token_mean": float(counts.num_tokens),
            "kept_token_mean": statistics.num_kept,
            "per_episode_mean": float(counts.num_episodes),
            "sequence_mean": float(counts.num_episodes),
        }[self._aggregation]
        assert denominator is not None, "the kept tokens of the step have not been counted"
        # All action tokens of an episode count in its mean, known old log-prob or not.
        everywhere_1N = torch.ones_like(judged.logp_N[None])
        loss = aggregate(self._aggregation, result, everywhere_1N, denominator, episode_BT=rows_of(judged.batch))
        return loss, result.metrics

    def step_metrics(self, parts: Sequence[Metrics]) -> dict[str, float]:
        """The metrics of all micro-batches and ranks as one. A collective."""
        own = merge_metrics(list(parts))
        every_KR = self._ranks.gather_tokens(torch.stack([value.double() for value in own.values()])[:, None])
        merged = merge_metrics([dict(zip(own, column, strict=True)) for column in every_KR.unbind(1)])
        return {key: float(value) for key, value in merged.items()}

    def _threshold(self, step: Sequence[Judged]) -> Tensor:
        assert isinstance(self._region, Sat | SatGspo)
        d_N = torch.cat([self._distances(self._region, each) for each in step])
        every_N = self._ranks.gather_tokens(d_N[None])[0]
        return sat_threshold(every_N, torch.ones_like(every_N), quantile=self._region.quantile)

    def _distances(self, region: Sat | SatGspo, judged: Judged) -> Tensor:
        known_N, anchors = judged.anchors.is_known_N, judged.anchors
        against_N = judged.batch.logp_mu_N if anchors.logp_N is None else anchors.logp_N
        d_1N = distances(region, judged.logp_N[None], against_N[None], known_N[None], episode_BT=rows_of(judged.batch))
        return d_1N[0][known_N]

    def _surrogate(self, judged: Judged, statistics: Statistics) -> Surrogate:
        prox_N = judged.anchors.logp_N
        return surrogate(
            self._region,
            judged.logp_N[None],
            judged.batch.logp_mu_N[None],
            judged.advantages_N[None].to(judged.logp_N.dtype),
            judged.anchors.is_known_N[None],
            logp_prox=None if prox_N is None else prox_N[None],
            threshold=statistics.threshold,
            episode_BT=rows_of(judged.batch),
        )


def rows_of(batch: MicroBatch) -> Tensor:
    """(1, N) the row each action token lies in."""
    num_actions_B = batch.num_actions_B
    rows_B = torch.arange(len(num_actions_B), device=num_actions_B.device)
    return rows_B.repeat_interleave(num_actions_B, output_size=batch.logp_mu_N.numel())[None]
