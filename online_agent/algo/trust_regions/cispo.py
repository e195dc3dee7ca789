"""Clipped importance weights that keep every token's gradient (CISPO, arXiv 2506.13585)."""

from __future__ import annotations

import torch
from torch import Tensor

from online_agent.algo.ratios import Surrogate, log_ratio, masked, ratio_metrics


def cispo(
    logp: Tensor, logp_mu: Tensor, advantages: Tensor, mask: Tensor, *, eps_low: float, eps_high: float
) -> Surrogate:
    """loss = -sg(clip(r, 1-eps_low, 1+eps_high)) A logp. Elementwise; differentiable in ``logp``."""
    d = log_ratio(logp, logp_mu, mask).detach()
    weight = torch.clamp(d.exp(), 1.0 - eps_low, 1.0 + eps_high) * masked(advantages, mask)
    loss = -weight * torch.where(mask.bool(), logp, torch.zeros_like(logp))
    return Surrogate(loss, mask.bool(), ratio_metrics(d, mask, mask.bool()))
