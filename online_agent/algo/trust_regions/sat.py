"""Staleness-adaptive trust region (SAT, arXiv 2607.18722), on tokens and on sequences."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from online_agent.algo.episodes import episode_means
from online_agent.algo.ratios import (
    Surrogate,
    clipped_surrogate,
    is_unclipped,
    log_ratio,
    masked,
    ratio_metrics,
)

# Absorbs the rounding of quantile * n, so that 0.55 * 100 asks for the 55th value and not the 56th.
_RANK_SLACK = 1e-9


def sat_threshold(d: Tensor, mask: Tensor, *, quantile: float = 0.90) -> Tensor:
    """0-d q: the inverted-CDF quantile of |d| over action tokens, an order statistic and not an interpolation.

    q is the smallest |d| such that a share of at least ``quantile`` is not above it; 0 without action tokens.
    To be taken over the whole optimiser step, so that micro-batches change nothing.
    """
    magnitudes_N = d.detach()[mask.bool()].abs()
    if magnitudes_N.numel() == 0:
        return d.new_zeros(())
    rank = max(1, math.ceil(quantile * magnitudes_N.numel() - _RANK_SLACK))
    return magnitudes_N.kthvalue(rank).values


def sat(
    logp: Tensor,
    logp_mu: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    threshold: Tensor,
) -> Surrogate:
    """loss = -min(r A, clip(r, 1 - eps_low c-, 1 + eps_high c+) A): the band narrows for tokens far from mu.

        u+ = max(d, 0), u- = max(-d, 0);  psi(u) = 1 / (1 + (u/q)^2)
        q > 0 and |d| > q:  c+ = psi(u+), c- = psi(u-);  else 1

    ``threshold`` is q from ``sat_threshold`` over the step. The endpoint that narrows follows the sign of d, not of
    A; tokens are clipped, not masked. Elementwise; differentiable in ``logp``.
    """
    return _narrowed(log_ratio(logp, logp_mu, mask), advantages, mask, eps_low, eps_high, threshold)


def sat_gspo(
    logp_BT: Tensor,
    logp_mu_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    threshold: Tensor,
    episode_BT: Tensor | None = None,
) -> Surrogate:
    """SAT with the sequence ratio rho = exp(mean_t d) in place of r, the same for every token of an episode.

    ``threshold`` is ``sat_threshold`` of ``sequence_log_ratio``. Aggregate with ``per_episode_mean``.
    """
    d_BT = sequence_log_ratio(logp_BT, logp_mu_BT, mask_BT, episode_BT=episode_BT)
    return _narrowed(d_BT, advantages_BT, mask_BT, eps_low, eps_high, threshold)


def sequence_log_ratio(
    logp_BT: Tensor, logp_mu_BT: Tensor, mask_BT: Tensor, *, episode_BT: Tensor | None = None
) -> Tensor:
    """(B, T) mean over the episode's action tokens of logp - logp_mu, on each of them; 0 elsewhere (GSPO)."""
    return episode_means(log_ratio(logp_BT, logp_mu_BT, mask_BT), mask_BT, episode_BT)


def _narrowed(
    d: Tensor, advantages: Tensor, mask: Tensor, eps_low: float, eps_high: float, threshold: Tensor
) -> Surrogate:
    advantages = masked(advantages, mask)
    distance = d.detach()
    q = threshold.to(distance)
    is_gated = mask.bool() & (q > 0) & (distance.abs() > q)
    # Where q is 0 nothing is gated; dividing by 1 there keeps the unused branch finite.
    psi = 1.0 / (1.0 + (distance / torch.where(q > 0, q, torch.ones_like(q))).square())
    one = torch.ones_like(psi)
    c_low = torch.where(is_gated & (distance < 0), psi, one)
    c_high = torch.where(is_gated & (distance > 0), psi, one)
    low, high = 1.0 - eps_low * c_low, 1.0 + eps_high * c_high
    kept = mask.bool() & is_unclipped(d, advantages, low, high)
    metrics = ratio_metrics(d, mask, kept)
    metrics["num_gated"] = is_gated.sum().to(d.dtype)
    metrics["sum_eps_low"] = masked(1.0 - low, mask).sum()
    metrics["sum_eps_high"] = masked(high - 1.0, mask).sum()
    metrics["min_c"] = torch.minimum(c_low, c_high).min() if d.numel() else d.new_ones(())
    return Surrogate(-clipped_surrogate(d, advantages, low, high), kept, metrics)
