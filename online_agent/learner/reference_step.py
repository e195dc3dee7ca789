"""The end of a step for the EWMA reference: rho as it was in this step, then the new actor enters or replaces it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from online_agent.algo.references import ActiveTokens
from online_agent.learner.batching import MicroBatch, collate, num_fed_tokens, plan
from online_agent.learner.policy_learner import PolicyPass
from online_agent.learner.ranks import Ranks
from online_agent.learner.reference import PROBE_STRIDE, PolicyReference
from online_agent.learner.report import MetricSheet, ReferenceReset, staleness_of
from online_agent.recipes import Recipe
from online_agent.recipes.parts import Ewma
from online_agent.types import TrainingEpisode


class ReferenceStep:
    """``advance`` is a collective."""

    def __init__(self, reference: PolicyReference, recipe: Recipe, ranks: Ranks, max_tokens: int) -> None:
        self._reference = reference
        self._trains_against_it = isinstance(recipe.reference, Ewma)
        self._ranks = ranks
        self._max_tokens = max_tokens

    def advance(
        self,
        episodes: Sequence[TrainingEpisode],
        batches: Sequence[MicroBatch],
        seen: PolicyPass,
        advantages: Sequence[Tensor],
        *,
        parameters: Mapping[str, Tensor],
        version: int,
        num_steps: int,
        sheet: MetricSheet,
    ) -> ReferenceReset | None:
        """``parameters`` are the updated actor's, to be published next. The reset, if rho was below tau."""
        if self._trains_against_it:
            active = ActiveTokens(*(int(seen.metrics[f"num_{name}"]) for name in ("actions", "in_mask", "kept")))
        else:
            active = self._probe(episodes, batches, seen.logps, advantages, num_steps)
        sheet.put(
            ewma__active_share=active.ratio,
            ewma__active_share_mask_only=active.ratio_mask_only,
            ewma__probed_tokens=float(active.num_actions),
        )
        return self._reference.publish(parameters, staleness_of(episodes, version), active)

    def _probe(
        self,
        episodes: Sequence[TrainingEpisode],
        batches: Sequence[MicroBatch],
        logps: Sequence[Tensor],
        advantages: Sequence[Tensor],
        num_steps: int,
    ) -> ActiveTokens:
        logp_E, advantages_E = _by_episode(batches, logps), _by_episode(batches, advantages)
        chosen = tuple(i for i in _probed(episodes, num_steps) if i in logp_E)
        counted = torch.zeros(3, dtype=torch.float64, device=self._ranks.device)
        for start in plan([episodes[i] for i in chosen], max_tokens=self._max_tokens):
            rows = tuple(chosen[i] for i in start)
            active = self._reference.probe(
                collate(episodes, rows, self._ranks.device),
                logp_N=torch.cat([logp_E[i] for i in rows]),
                advantages_N=torch.cat([advantages_E[i] for i in rows]),
            )
            counted += torch.tensor([active.num_actions, active.num_in_mask, active.num_active], device=counted.device)
        return ActiveTokens(*(int(n) for n in self._ranks.sum(counted).tolist()))


def _probed(episodes: Sequence[TrainingEpisode], num_steps: int) -> list[int]:
    """Chosen from the whole batch, whoever holds the episode: the number of ranks does not move rho."""
    usable = sorted(
        (i for i, e in enumerate(episodes) if num_fed_tokens(e)), key=lambda i: (-len(episodes[i].token_ids), i)
    )
    return usable[num_steps % PROBE_STRIDE :: PROBE_STRIDE] or usable[:1]


def _by_episode(batches: Sequence[MicroBatch], columns: Sequence[Tensor]) -> dict[int, Tensor]:
    """Per episode of this rank, its action tokens' entries."""
    split: dict[int, Tensor] = {}
    for batch, column_N in zip(batches, columns, strict=True):
        if batch.episode_B:
            split.update(zip(batch.episode_B, torch.split(column_N, batch.num_actions_B.tolist()), strict=True))
    return split
