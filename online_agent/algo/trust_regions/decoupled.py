"""Ratios split at a proximal policy: pi/mu = (prox/mu) * (pi/prox), corrected and clipped apart.

r_d = prox/mu is the discrepancy (engine against trainer, or age); r_s = pi/prox is what this update moved.
Missing Old Logits eq. 2.1 (arXiv 2605.12070), and its neighbours that treat r_d otherwise:
TIS (Yao et al. 2025), masked IS (Liu et al. 2025) and IcePop (arXiv 2510.18855).
``logp_prox`` and ``logp_mu`` carry no gradient. All elementwise over any shape; differentiable in ``logp``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from online_agent.algo.ratios import (
    Surrogate,
    clipped_surrogate,
    is_inside,
    is_unclipped,
    log_ratio,
    masked,
    ratio_metrics,
    rounding,
)


def decoupled_ppo(
    logp: Tensor,
    logp_mu: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    logp_prox: Tensor,
    eps_low: float,
    eps_high: float,
    max_discrepancy: float,
    weight_cap: float | None = None,
    is_weighted: bool = True,
) -> Surrogate:
    """loss = -M w min(r_s A, clip(r_s, 1-eps_low, 1+eps_high) A);  M = 1[1/c <= r_d <= c];  w = sg(r_d).

    w is at most ``weight_cap``, c is ``max_discrepancy``; ``is_weighted=False`` takes w = 1.
    ``kept_mask`` is what mask and clip leave active; ``num_in_mask`` counts what the mask alone leaves.
    """
    d = _discrepancy(logp_prox, logp_mu, mask)
    slack = masked(rounding(logp_prox, logp_mu), mask).to(d.dtype)
    in_mask = mask.bool() & is_inside(d, 1.0 / max_discrepancy, max_discrepancy, slack)
    weight = d.exp() if is_weighted else torch.ones_like(d)
    weight = weight if weight_cap is None else weight.clamp(max=weight_cap)
    return _weighted_clip(logp, logp_prox, advantages, mask, weight, in_mask, eps_low, eps_high, d)


def tis(
    logp: Tensor,
    logp_mu: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    logp_prox: Tensor,
    cap: float,
    eps_low: float,
    eps_high: float,
) -> Surrogate:
    """Truncated importance sampling: w = sg(min(prox/mu, cap)), no token is dropped for its discrepancy."""
    d = _discrepancy(logp_prox, logp_mu, mask)
    return _weighted_clip(logp, logp_prox, advantages, mask, d.exp().clamp(max=cap), mask.bool(), eps_low, eps_high, d)


def masked_is(
    logp: Tensor,
    logp_mu: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    logp_prox: Tensor,
    cap: float,
    eps_low: float,
    eps_high: float,
) -> Surrogate:
    """Masked importance sampling: w = sg(prox/mu) up to ``cap``, 0 above it."""
    d = _discrepancy(logp_prox, logp_mu, mask)
    weight = d.exp()
    in_mask = mask.bool() & (weight <= cap)
    return _weighted_clip(logp, logp_prox, advantages, mask, weight, in_mask, eps_low, eps_high, d)


def icepop(
    logp: Tensor,
    logp_mu: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    logp_prox: Tensor,
    low: float = 0.5,
    high: float = 5.0,
    eps_low: float,
    eps_high: float,
) -> Surrogate:
    """IcePop: w = k = sg(prox/mu) where low <= k <= high, else 0."""
    d = _discrepancy(logp_prox, logp_mu, mask)
    in_mask = mask.bool() & is_inside(d, low, high, masked(rounding(logp_prox, logp_mu), mask).to(d.dtype))
    return _weighted_clip(logp, logp_prox, advantages, mask, d.exp(), in_mask, eps_low, eps_high, d)


def _discrepancy(logp_prox: Tensor, logp_mu: Tensor, mask: Tensor) -> Tensor:
    return log_ratio(logp_prox.detach(), logp_mu, mask)


def _weighted_clip(
    logp: Tensor,
    logp_prox: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weight: Tensor,
    in_mask: Tensor,
    eps_low: float,
    eps_high: float,
    discrepancy: Tensor,
) -> Surrogate:
    d = log_ratio(logp, logp_prox, mask)
    advantages = masked(advantages, mask)
    kept = in_mask & is_unclipped(d, advantages, 1.0 - eps_low, 1.0 + eps_high)
    surrogate = clipped_surrogate(d, advantages, 1.0 - eps_low, 1.0 + eps_high)
    loss = torch.where(in_mask, -weight * surrogate, torch.zeros_like(surrogate))
    return Surrogate(loss, kept, ratio_metrics(d, mask, kept, in_mask=in_mask, side=discrepancy))
