"""Importance ratios that stay finite, band edges that survive rounding, and the numbers every trust region reports.

Shapes: everything here is elementwise over any shape; ``mask`` is 1 on action tokens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# exp(20) = 4.9e8: far outside every band, yet finite in fp32 and bf16 and after a product with an advantage.
MAX_LOG_RATIO = 20.0
# A ratio within this many units of rounding of a band edge lies on the edge.
EDGE_ULPS = 4.0

Metrics = dict[str, Tensor]


class Surrogate(NamedTuple):
    """What a trust region makes of a batch.

    per_token_loss: to be minimised, 0 where the mask is 0, differentiable in ``logp`` only.
    kept_mask: bool, action tokens whose gradient the region lets through.
    metrics: 0-d tensors without gradient; ``num_`` and ``sum_`` add over micro-batches, ``max_`` and ``min_`` combine.
    """

    per_token_loss: Tensor
    kept_mask: Tensor
    metrics: Metrics


def log_ratio(logp: Tensor, logp_reference: Tensor, mask: Tensor) -> Tensor:
    """d = logp - reference, clamped to +-MAX_LOG_RATIO; 0 where the mask is 0, whatever stands there (nan included)."""
    is_action = mask.bool()
    ours = torch.where(is_action, logp, torch.zeros_like(logp))
    theirs = torch.where(is_action, logp_reference.detach().to(logp.dtype), torch.zeros_like(logp))
    return (ours - theirs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """``x`` without gradient, 0 where the mask is 0."""
    return torch.where(mask.bool(), x.detach(), torch.zeros_like(x))


def rounding(logp: Tensor, logp_reference: Tensor) -> Tensor:
    """How far d = logp - reference can be off by rounding alone."""
    return EDGE_ULPS * torch.finfo(logp.dtype).eps * (1.0 + logp.detach().abs() + logp_reference.detach().abs())


def is_strictly_inside(d: Tensor, low: float, high: float, slack: Tensor) -> Tensor:
    """low < exp(d) < high, compared in log space; a d within ``slack`` of an edge is outside."""
    return (d > math.log(low) + slack) & (d < math.log(high) - slack)


def is_inside(d: Tensor, low: float, high: float, slack: Tensor) -> Tensor:
    """low <= exp(d) <= high, compared in log space; a d within ``slack`` of an edge is inside."""
    return (d >= math.log(low) - slack) & (d <= math.log(high) + slack)


def is_unclipped(d: Tensor, advantages: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """Where min(r A, clip(r) A) still has a gradient in r: not beyond the edge that A pushes towards."""
    r = d.detach().exp()
    return ~(((advantages > 0) & (r > high)) | ((advantages < 0) & (r < low)))


def clipped_surrogate(d: Tensor, advantages: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """S = min(r A, clip(r, low, high) A) with r = exp(d); differentiable in d."""
    r = d.exp()
    clipped = torch.clamp(
        r, torch.as_tensor(low, dtype=r.dtype, device=r.device), torch.as_tensor(high, dtype=r.dtype, device=r.device)
    )
    return torch.minimum(r * advantages, clipped * advantages)


def ratio_metrics(
    d: Tensor, mask: Tensor, kept: Tensor, *, in_mask: Tensor | None = None, side: Tensor | None = None
) -> Metrics:
    """Counts and sums over action tokens only: kept, |d|, r, r squared (effective sample size), KL(mu || pi).

    ``in_mask`` (None: all): tokens the region does not throw out whatever the sign of their advantage; what it throws
    out is *masked*, and ``side`` (None: d) tells whether for being too low or too high. A token in the mask that
    loses its gradient is *clipped*, on the side of d. KL is the estimator r - 1 - d, never negative.
    """
    is_action, d = mask.bool(), d.detach()
    inside = is_action if in_mask is None else in_mask
    side = d if side is None else side.detach()
    masked_out, clipped = is_action & ~inside, inside & ~kept
    d_N = d[is_action]
    r_N = d_N.exp()
    return {
        "num_actions": mask.sum().to(d.dtype),
        "num_kept": kept.sum().to(d.dtype),
        "num_in_mask": inside.sum().to(d.dtype),
        "num_masked_low": (masked_out & (side < 0)).sum().to(d.dtype),
        "num_masked_high": (masked_out & (side > 0)).sum().to(d.dtype),
        "num_clipped_low": (clipped & (d < 0)).sum().to(d.dtype),
        "num_clipped_high": (clipped & (d > 0)).sum().to(d.dtype),
        "sum_abs_log_ratio": d_N.abs().sum(),
        "max_abs_log_ratio": d_N.abs().max() if d_N.numel() else d_N.new_zeros(()),
        "sum_ratio": r_N.sum(),
        "sum_ratio_squared": r_N.square().sum(),
        "sum_kl": (r_N - 1 - d_N).sum(),
    }


def merge_metrics(parts: list[Metrics]) -> Metrics:
    """The metrics of a step from those of its micro-batches: ``num_``/``sum_`` add, ``max_``/``min_`` combine."""
    merged: Metrics = {}
    for key in parts[0] if parts else ():
        stacked = torch.stack([part[key] for part in parts])
        prefix = key.split("_", 1)[0]
        merged[key] = {"max": stacked.amax, "min": stacked.amin}.get(prefix, stacked.sum)()
    return merged
