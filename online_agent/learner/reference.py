"""The EWMA reference of the policy, kept beside the actor, and the rule that resets it (arXiv 2605.12070).

The reference is the bias-corrected average of the published actors (``algo.references.EwmaReference``). Each step
measures rho, the share of action tokens that stay active against it; below tau it forgets its past.

A recipe that trains against the average evaluates it on the whole batch anyway, and its rho is that of its own trust
region. Any other only watches the average: rho is then the learner's own signal that the policy has moved away from
its recent past, with the mask and clip of the paper, measured on every ``PROBE_STRIDE``-th episode in order of length,
starting at another one each step: one part in 25 to 30 of a step's work.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from online_agent.algo.references import ActiveTokens, EwmaReference, active_ratio, ewma_beta
from online_agent.learner.batching import MicroBatch
from online_agent.learner.models import Actor
from online_agent.learner.report import ReferenceReset
from online_agent.recipes.parts import Ewma

PROBE_STRIDE = 4
# The window W_stale is measured over; the paper's mask c and clip eps.
STALENESS_WINDOW_STEPS = 8
MAX_DISCREPANCY = 2.0
CLIP_EPS = 0.2

RESET_BELOW_TAU = "active_share_below_tau"


def policy_inputs(batch: MicroBatch, replays_routing: bool) -> tuple[Tensor | int | None, ...]:
    """The arguments of ``Actor.forward``; with the experts the engine chose when the recipe replays them."""
    experts = batch.experts_BTLK if replays_routing else None
    return batch.token_ids_BT, batch.positions_N, batch.targets_N, batch.temperature_N, batch.num_shared, experts


class PolicyReference:
    """Average of the published actors with its own network to evaluate it."""

    def __init__(self, actor: Actor, part: Ewma, *, replays_routing: bool = False) -> None:
        self._network = copy.deepcopy(actor).eval()
        # What never moves, under an adapter all but its factors, needs no average.
        moving = {name: p for name, p in self._network.named_parameters() if p.requires_grad}
        self._network.requires_grad_(False)
        self._ewma = EwmaReference(moving)
        # The network reads the average itself: no copy after an update.
        for name, parameter in moving.items():
            parameter.data = self._ewma.parameters[name]
        self._tau = part.tau
        self._configured = part.staleness_versions
        self._replays_routing = replays_routing
        self._staleness: deque[float] = deque(maxlen=STALENESS_WINDOW_STEPS)
        self.num_resets = 0

    @property
    def weight(self) -> float:
        return self._ewma.weight

    @property
    def beta(self) -> float:
        """From the configured W_stale, or the mean staleness of the last batches."""
        measured = sum(self._staleness) / len(self._staleness) if self._staleness else 0.0
        return ewma_beta(measured if self._configured is None else self._configured)

    @property
    def age_versions(self) -> float:
        """The mean age of what is in the average."""
        return self._ewma.age_versions

    @torch.no_grad()
    def log_probs(self, batch: MicroBatch) -> Tensor:
        """(N,) log-probs of the average."""
        logp_N: Tensor = self._network(*policy_inputs(batch, self._replays_routing))
        return logp_N

    def probe(self, batch: MicroBatch, *, logp_N: Tensor, advantages_N: Tensor) -> ActiveTokens:
        """How many of the batch's action tokens the reference leaves active. ``logp_N`` is the current actor's."""
        return active_ratio(
            logp_N,
            batch.logp_mu_N,
            advantages_N,
            torch.ones_like(logp_N),
            logp_prox=self.log_probs(batch),
            eps=CLIP_EPS,
            max_discrepancy=MAX_DISCREPANCY,
        )

    def publish(
        self, parameters: Mapping[str, Tensor], staleness: Sequence[int], active: ActiveTokens | None
    ) -> ReferenceReset | None:
        """A version with these parameters is about to be published: it enters the average, or replaces it.

        It replaces the average when ``active`` fell below tau; the reset is returned.
        """
        if staleness:
            self._staleness.append(sum(staleness) / len(staleness))
        if active is not None and active.num_actions and active.ratio < self._tau:
            return self.reset(parameters, RESET_BELOW_TAU, active.ratio)
        self._ewma.update(self._moving(parameters), self.beta)
        return None

    def reset(self, parameters: Mapping[str, Tensor], cause: str, active_share: float | None = None) -> ReferenceReset:
        """prox = theta, w = 1."""
        self._ewma.reset(self._moving(parameters))
        self.num_resets += 1
        return ReferenceReset(cause, active_share)

    def begin(self, parameters: Mapping[str, Tensor]) -> None:
        """As if new: the average of this actor alone, no staleness measured, no reset counted."""
        self._ewma.reset(self._moving(parameters))
        self._staleness.clear()
        self.num_resets = 0

    def _moving(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: parameters[name] for name in self._ewma.parameters}

    def tensors(self) -> dict[str, Tensor]:
        return self._ewma.state_dict()

    def counters(self) -> dict[str, float | list[float]]:
        return {"num_resets": self.num_resets, "staleness": list(self._staleness)}

    def load(self, tensors: Mapping[str, Tensor], counters: Mapping[str, object]) -> None:
        """The reference that was saved. Raises KeyError when the names differ."""
        self._ewma.load_state_dict(tensors)
        staleness = counters["staleness"]
        assert isinstance(staleness, list)
        self._staleness = deque(staleness, maxlen=STALENESS_WINDOW_STEPS)
        self.num_resets = int(str(counters["num_resets"]))
