"""How much of a batch the reference leaves active: the signal of the automatic reset (arXiv 2605.12070)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from online_agent.algo.trust_regions.decoupled import decoupled_ppo


@dataclass(frozen=True, slots=True)
class ActiveTokens:
    """Counts over action tokens; they add over micro-batches and ranks."""

    num_actions: int
    num_in_mask: int
    num_active: int

    @property
    def ratio(self) -> float:
        """rho: the share still active after mask and clip. 1 without action tokens, since nothing was lost."""
        return self.num_active / self.num_actions if self.num_actions else 1.0

    @property
    def ratio_mask_only(self) -> float:
        """The share the discrepancy mask alone leaves."""
        return self.num_in_mask / self.num_actions if self.num_actions else 1.0

    def plus(self, other: ActiveTokens) -> ActiveTokens:
        return ActiveTokens(
            self.num_actions + other.num_actions,
            self.num_in_mask + other.num_in_mask,
            self.num_active + other.num_active,
        )


def active_ratio(
    logp: Tensor,
    logp_mu: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    logp_prox: Tensor,
    eps: float = 0.2,
    max_discrepancy: float = 2.0,
) -> ActiveTokens:
    """Counts of action tokens inside the mask [1/c, c] of prox/mu, and of those the clip of pi/prox also lets through.

    ``.ratio`` is rho; the reference is reset when it falls below tau (0.9 in the paper).
    """
    surrogate = decoupled_ppo(
        logp.detach(),
        logp_mu,
        advantages,
        mask,
        logp_prox=logp_prox,
        eps_low=eps,
        eps_high=eps,
        max_discrepancy=max_discrepancy,
    )
    return ActiveTokens(
        num_actions=int(mask.sum()),
        num_in_mask=int(surrogate.metrics["num_in_mask"]),
        num_active=int(surrogate.kept_mask.sum()),
    )
