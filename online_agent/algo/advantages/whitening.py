"""Advantages with mean 0 and standard deviation 1 over the action tokens of a whole optimiser step.

An option of arXiv 2607.07508. Elementwise over any shape; the results carry no gradient.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Moments(NamedTuple):
    """Sums that add over micro-batches and ranks: number of action tokens, sum and sum of squares (fp64 scalars)."""

    num_tokens: Tensor
    total: Tensor
    total_squared: Tensor

    def plus(self, other: Moments) -> Moments:
        return Moments(
            self.num_tokens + other.num_tokens, self.total + other.total, self.total_squared + other.total_squared
        )


def moments(x: Tensor, mask: Tensor) -> Moments:
    """The sums of ``x`` over mask = 1."""
    kept = x.detach()[mask.bool()].double()
    return Moments(kept.new_tensor(float(kept.numel())), kept.sum(), kept.square().sum())


def whiten(advantages: Tensor, mask: Tensor, *, over: Moments | None = None, epsilon: float = 1e-8) -> Tensor:
    """(x - mean) / (std + epsilon) where mask = 1, else 0; population std.

    ``over``: moments of the whole step, where this is only a part of it. Without any action token the result is 0.
    """
    step = moments(advantages, mask) if over is None else over
    count = step.num_tokens.clamp(min=1)
    mean = step.total / count
    std = (step.total_squared / count - mean.square()).clamp(min=0).sqrt()
    white = (advantages.detach().double() - mean) / (std + epsilon)
    return white.to(advantages.dtype).masked_fill(~mask.bool(), 0)
