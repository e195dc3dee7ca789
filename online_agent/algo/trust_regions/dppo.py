"""Masking by total variation instead of ratio (DPPO-TV, arXiv 2602.04879)."""

from __future__ import annotations

import torch
from torch import Tensor

from online_agent.algo.ratios import Surrogate, log_ratio, masked, ratio_metrics


def dppo_tv(
    logp: Tensor, logp_mu: Tensor, advantages: Tensor, mask: Tensor, *, max_difference: float = 1e-3
) -> Surrogate:
    """loss = -M r A;  M = 1 where A (r - 1) <= 0 or |pi - mu| <= max_difference, else 0.

    Judges by the change of probability, so that rare tokens may move by a large ratio and common ones may not.
    Elementwise; differentiable in ``logp``, M is detached.
    """
    d = log_ratio(logp, logp_mu, mask)
    advantages = masked(advantages, mask)
    difference = (masked(logp, mask).exp() - masked(logp_mu.to(logp.dtype), mask).exp()).abs()
    kept = mask.bool() & ((advantages * d.detach() <= 0) | (difference <= max_difference))
    loss = torch.where(kept, -d.exp() * advantages, torch.zeros_like(d))
    return Surrogate(loss, kept, ratio_metrics(d, mask, kept))
