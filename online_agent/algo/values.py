"""The critic's loss and how well it explains the returns. Shapes (B, T), indexed by token."""

from __future__ import annotations

import torch
from torch import Tensor

# Returns that should be equal differ by a few roundings of the sums they come from.
_ROUNDINGS = 4


def value_loss(
    values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    old_values: Tensor | None = None,
    clip: float | None = None,
) -> Tensor:
    """Per-token (V - R)^2 where mask = 1, else 0; aggregate with ``global_token_mean``.

    With ``clip``, V may leave ``old_values`` by at most that much where this would lower the loss (PPO's value clip).
    Differentiable in ``values``.
    """
    is_action = mask.bool()
    values = torch.where(is_action, values, torch.zeros_like(values))
    targets = torch.where(is_action, returns.detach(), torch.zeros_like(values))
    squared = (values - targets).square()
    if clip is not None:
        if old_values is None:
            raise ValueError("a value clip needs the values from before the update")
        anchor = torch.where(is_action, old_values.detach(), torch.zeros_like(values))
        near = anchor + (values - anchor).clamp(-clip, clip)
        squared = torch.maximum(squared, (near - targets).square())
    return squared


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """0-d 1 - Var(R - V) / Var(R) over action tokens, in fp64: 1 for a perfect critic, 0 for a constant.

    nan where the returns vary by no more than the rounding of float32: there is nothing to explain.
    """
    is_action = mask.bool()
    targets = returns.detach()[is_action].double()
    if targets.numel() == 0:
        return targets.new_tensor(float("nan"))
    variance = targets.var(unbiased=False)
    residual = (targets - values.detach()[is_action].double()).var(unbiased=False)
    rounding = _ROUNDINGS * torch.finfo(torch.float32).eps * targets.abs().max()
    return torch.where(variance > rounding.square(), 1.0 - residual / variance, float("nan"))
