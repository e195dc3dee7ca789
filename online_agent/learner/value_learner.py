"""The critic's side of a step: values, critic targets, and K updates towards them.

Pass 1 only gathers a gradient. Its values are those *before* the K updates, so K updates cost K forward passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from online_agent.algo.aggregation import global_token_mean
from online_agent.algo.values import value_loss
from online_agent.learner.batching import MicroBatch, collate, plan
from online_agent.learner.credit import States, gae_credit, states_of, with_state_after_it
from online_agent.learner.ranks import Ranks
from online_agent.learner.report import MetricSheet, clip_ratio
from online_agent.learner.zero_engine import ZeroEngine
from online_agent.recipes.parts import Gae
from online_agent.types import TrainingEpisode


@dataclass(frozen=True, slots=True)
class ValuePass:
    """Columns (N,) of each micro-batch, without gradient."""

    values: list[Tensor]
    targets: list[Tensor]
    advantages: list[Tensor]


@dataclass(frozen=True, slots=True)
class SavedCritic:
    parameters: dict[str, Tensor]
    moments: dict[str, Tensor]
    lr: float
    num_updates: int


class ValueLearner:
    """All methods are collectives."""

    def __init__(self, engine: ZeroEngine, advantage: Gae, ranks: Ranks, *, clip_norm: float, max_tokens: int) -> None:
        self.engine = engine
        self._advantage = advantage
        self._part = advantage.critic
        self._ranks = ranks
        self._clip_norm = clip_norm
        self._max_tokens = max_tokens

    @property
    def is_read_after_updates(self) -> bool:
        """Advantages come from the values after the K updates."""
        return self._part.values_from == "after"

    def first_pass(
        self, batches: Sequence[MicroBatch], episodes: Sequence[TrainingEpisode], num_tokens: int
    ) -> ValuePass:
        """Values, targets and advantages; the engine holds the gradient of the value loss."""
        bootstraps = self._bootstraps(batches, episodes)
        seen = ValuePass([], [], [])
        for batch, bootstrap_B in zip(batches, bootstraps, strict=True):
            states = states_of(self._advantage, batch)
            values_W = self._values(batch, states)
            advantages_N, targets_N = gae_credit(self._advantage, batch, states, values_W, bootstrap_B)
            values_N = values_W[states.is_action_W]
            self.engine.backward(self._loss(values_N, targets_N, values_N.detach(), num_tokens))
            for column, x_N in zip(
                (seen.values, seen.targets, seen.advantages), (values_N, targets_N, advantages_N), strict=True
            ):
                column.append(x_N.detach())
        return seen

    @torch.no_grad()
    def advantages_now(self, batches: Sequence[MicroBatch], episodes: Sequence[TrainingEpisode]) -> list[Tensor]:
        """Advantages (N,) from the critic as it is now."""
        advantages = []
        for batch, bootstrap_B in zip(batches, self._bootstraps(batches, episodes), strict=True):
            states = states_of(self._advantage, batch)
            advantages.append(gae_credit(self._advantage, batch, states, self._values(batch, states), bootstrap_B)[0])
        return advantages

    def update(
        self, batches: Sequence[MicroBatch], first: ValuePass, num_tokens: int, sheet: MetricSheet
    ) -> int | None:
        """K updates, the first with the gradient that is held. The number of the one that was not finite, or None."""
        for number in range(1, self._part.updates + 1):
            if number > 1:
                self._pass_again(batches, first, num_tokens, sheet)
            applied = self.engine.apply()
            sheet.put(
                critic__grad_norm=applied.grad_norm,
                critic__clip_ratio=clip_ratio(applied.grad_norm, self._clip_norm),
            )
            if not applied.is_applied:
                return number
        return None

    def saved(self) -> SavedCritic:
        """A copy of everything an update changes."""
        parameters = {name: tensor.clone() for name, tensor in self.engine.parameters().items()}
        moments = {name: tensor.clone() for name, tensor in self.engine.moments().items()}
        return SavedCritic(parameters, moments, self.engine.lr, self.engine.num_updates)

    def put_back(self, saved: SavedCritic) -> None:
        self.engine.load(saved.parameters, saved.moments, lr=saved.lr, updates=saved.num_updates)

    def _pass_again(self, batches: Sequence[MicroBatch], first: ValuePass, num_tokens: int, sheet: MetricSheet) -> None:
        total = torch.zeros((), device=self._ranks.device)
        for batch, targets_N, old_N in zip(batches, first.targets, first.values, strict=True):
            values_N: Tensor = self.engine(batch.token_ids_BT, batch.positions_N, batch.num_shared)
            loss = self._loss(values_N, targets_N, old_N, num_tokens)
            self.engine.backward(loss)
            total += loss.detach() / self._ranks.world_size
        sheet.put(critic__loss_last=float(self._ranks.sum(total)))

    def _values(self, batch: MicroBatch, states: States) -> Tensor:
        values_W: Tensor = self.engine(batch.token_ids_BT, states.positions_W, batch.num_shared)
        return values_W

    def _loss(self, values_N: Tensor, targets_N: Tensor, old_N: Tensor, num_tokens: int) -> Tensor:
        mask_N = torch.ones_like(values_N)
        squared_N = value_loss(values_N, targets_N, mask_N, old_values=old_N, clip=self._part.value_clip)
        return global_token_mean(squared_N, mask_N, float(num_tokens)) * self._ranks.world_size

    @torch.no_grad()
    def _bootstraps(self, batches: Sequence[MicroBatch], episodes: Sequence[TrainingEpisode]) -> list[Tensor | None]:
        """(B,) of each micro-batch the value of the state a truncated episode ended in, 0 for the others."""
        if not self._advantage.is_bootstrapped:
            return [None] * len(batches)
        value_E = torch.zeros(len(episodes), device=self._ranks.device)
        cut = [i for i, e in enumerate(episodes) if e.is_truncated and e.action_mask.any()]
        ended = [with_state_after_it(episodes[i]) for i in cut]
        # Every rank asks for all of them: they are few, and the passes stay the same number on each.
        for rows in plan(ended, max_tokens=self._max_tokens):
            batch = collate(ended, rows, self._ranks.device)
            values_N: Tensor = self.engine(batch.token_ids_BT, batch.positions_N, batch.num_shared)
            value_E[[cut[i] for i in rows]] = values_N
        return [_of_rows(value_E, batch) for batch in batches]


def _of_rows(value_E: Tensor, batch: MicroBatch) -> Tensor:
    """(B,) the entries of the micro-batch's rows; 0 for the row of a filler."""
    rows_B = value_E.new_zeros(len(batch.action_mask_BP))
    rows_B[: len(batch.episode_B)] = value_E[list(batch.episode_B)]
    return rows_B
