"""Direct double-sided importance sampling (SAO eq. 1-3, arXiv 2607.07508)."""

from __future__ import annotations

import torch
from torch import Tensor

from online_agent.algo.ratios import (
    Surrogate,
    is_inside,
    is_strictly_inside,
    log_ratio,
    masked,
    ratio_metrics,
    rounding,
)


def dis(
    logp: Tensor,
    logp_mu: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    logp_prox: Tensor | None = None,
    max_discrepancy: float = 2.0,
) -> Surrogate:
    """loss_t = -sg(f(r_t)) A_t logp_t;  r = exp(logp - logp_mu);  f(r) = r if 1-eps_low < r < 1+eps_high else 0.

    The ratio is taken against the log-probs the engine recorded: no old policy, no second pass. Outside the band
    the gradient is zero whatever the sign of A. A ratio on the edge is outside. Bands of the paper: reasoning
    (0.3, 5.0), coding (0.8, 3.0). Elementwise over any shape; differentiable in ``logp``, f is detached.

    With ``logp_prox`` the band judges r_s = pi/prox, tokens whose r_d = prox/mu leaves [1/c, c] are dropped too
    (c = ``max_discrepancy``, edges inside), and what is kept still weighs sg(pi/mu) = sg(r_d r_s): the correction is
    whole, only the judgement is made around the proximal policy. prox = mu gives the plain formula back.
    """
    d = log_ratio(logp, logp_mu, mask).detach()
    judged = d if logp_prox is None else log_ratio(logp, logp_prox, mask).detach()
    slack = masked(rounding(logp, logp_mu if logp_prox is None else logp_prox), mask)
    kept = mask.bool() & is_strictly_inside(judged, 1.0 - eps_low, 1.0 + eps_high, slack)
    side = judged
    if logp_prox is not None:
        discrepancy = log_ratio(logp_prox.detach(), logp_mu, mask)
        is_near = is_inside(
            discrepancy, 1.0 / max_discrepancy, max_discrepancy, masked(rounding(logp_prox, logp_mu), mask)
        )
        side = torch.where(is_near, judged, discrepancy.to(judged.dtype))
        kept &= is_near
    weight = torch.where(kept, d.exp() * masked(advantages, mask), torch.zeros_like(d))
    loss = -weight * torch.where(kept, logp, torch.zeros_like(logp))
    return Surrogate(loss, kept, ratio_metrics(judged, mask, kept, in_mask=kept, side=side))
