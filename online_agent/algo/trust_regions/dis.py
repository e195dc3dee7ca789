"""Direct double-sided importance sampling (SAO eq. 1-3, arXiv 2607.07508)."""

from __future__ import annotations

import torch
from torch import Tensor

from online_agent.algo.ratios import Surrogate, is_strictly_inside, log_ratio, masked, ratio_metrics, rounding


def dis(
    logp: Tensor, logp_mu: Tensor, advantages: Tensor, mask: Tensor, *, eps_low: float, eps_high: float
) -> Surrogate:
    """loss_t = -sg(f(r_t)) A_t logp_t;  r = exp(logp - logp_mu);  f(r) = r if 1-eps_low < r < 1+eps_high else 0.

    The ratio is taken against the log-probs the engine recorded: no old policy, no second pass. Outside the band
    the gradient is zero whatever the sign of A. A ratio on the edge is outside. Bands of the paper: reasoning
    (0.3, 5.0), coding (0.8, 3.0). Elementwise over any shape; differentiable in ``logp``, f is detached.
    """
    d = log_ratio(logp, logp_mu, mask).detach()
    slack = masked(rounding(logp, logp_mu), mask)
    kept = mask.bool() & is_strictly_inside(d, 1.0 - eps_low, 1.0 + eps_high, slack)
    weight = torch.where(kept, d.exp() * masked(advantages, mask), torch.zeros_like(d))
    loss = -weight * torch.where(kept, logp, torch.zeros_like(logp))
    metrics = ratio_metrics(d, mask, kept)
    metrics["num_below"] = (mask.bool() & ~kept & (d < 0)).sum().to(d.dtype)
    metrics["num_above"] = (mask.bool() & ~kept & (d > 0)).sum().to(d.dtype)
    return Surrogate(loss, kept, metrics)
