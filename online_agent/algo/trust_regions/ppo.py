"""The clipped surrogate of PPO; with eps_high > eps_low it is DAPO's clip-higher (arXiv 2503.14476)."""

from __future__ import annotations

from torch import Tensor

from online_agent.algo.ratios import (
    Surrogate,
    clipped_surrogate,
    is_unclipped,
    log_ratio,
    masked,
    ratio_metrics,
)


def ppo_clip(
    logp: Tensor, logp_reference: Tensor, advantages: Tensor, mask: Tensor, *, eps_low: float, eps_high: float
) -> Surrogate:
    """loss_t = -min(r A, clip(r, 1-eps_low, 1+eps_high) A), r = exp(logp - logp_reference).

    The gradient is zero only beyond the edge that A pushes towards. Elementwise; differentiable in ``logp``.
    """
    d = log_ratio(logp, logp_reference, mask)
    advantages = masked(advantages, mask)
    kept = mask.bool() & is_unclipped(d, advantages, 1.0 - eps_low, 1.0 + eps_high)
    loss = -clipped_surrogate(d, advantages, 1.0 - eps_low, 1.0 + eps_high)
    return Surrogate(loss, kept, ratio_metrics(d, mask, kept))
