"""A proximal policy between the engine's and the current one, without a second model (A-3PO, arXiv 2512.06547;
analysed in arXiv 2605.12070). Elementwise over any shape; the results carry no gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def linear_prox(logp: Tensor, logp_mu: Tensor, *, weight_on_mu: float) -> Tensor:
    """log(a mu + (1 - a) pi), detached; 0 < a < 1.

    Left attached, r_s = pi/prox would lose the part of its gradient that runs through prox.
    """
    _check_weight(weight_on_mu)
    return torch.logaddexp(logp_mu.detach() + math.log(weight_on_mu), logp.detach() + math.log1p(-weight_on_mu))


def loglinear_prox(logp: Tensor, logp_mu: Tensor, *, weight_on_mu: float) -> Tensor:
    """a log mu + (1 - a) log pi, detached; 0 < a < 1. Then r_s = r^a and r_d = r^(1-a) (proposition 1)."""
    _check_weight(weight_on_mu)
    return weight_on_mu * logp_mu.detach() + (1.0 - weight_on_mu) * logp.detach()


def _check_weight(weight_on_mu: float) -> None:
    if not 0.0 < weight_on_mu < 1.0:
        raise ValueError(f"the weight on mu must lie strictly between 0 and 1, got {weight_on_mu}")
