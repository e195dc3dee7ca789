"""From per-token losses, (B, T) or laid end to end, to one number (0-d), differentiable in them.

The denominator covers the whole optimiser step and is passed in. Token mean as in DAPO (arXiv 2503.14476), mean over
episodes as in GRPO (arXiv 2402.03300).
"""

from __future__ import annotations

import torch
from torch import Tensor

from online_agent.algo.episodes import episode_sums


def global_token_mean(per_token_loss: Tensor, mask: Tensor, denominator: Tensor | float) -> Tensor:
    """sum over mask = 1, divided by ``denominator``: the number N of action tokens in the whole step.

    N counts every action token of all micro-batches and ranks, masked by the trust region or not; so micro-batch
    losses add up to the step's loss however the batch is cut. An empty mask gives a finite 0 with zero gradient.
    """
    total = torch.where(mask.bool(), per_token_loss, torch.zeros_like(per_token_loss)).sum()
    return total / _at_least_one(denominator, total)


def kept_token_mean(per_token_loss: Tensor, kept_mask: Tensor, num_kept: Tensor | float) -> Tensor:
    """The same over the tokens the trust region kept; survivors are scaled up when many are dropped."""
    return global_token_mean(per_token_loss, kept_mask, num_kept)


def per_episode_mean(
    per_token_loss_BT: Tensor, mask_BT: Tensor, num_episodes: Tensor | float, *, episode_BT: Tensor | None = None
) -> Tensor:
    """Mean over the step's ``num_episodes`` episodes of the mean over each one's action tokens.

    The sequence mean of GRPO and GSPO: short and long episodes weigh the same. No episode may be split over
    micro-batches.
    """
    sums_E, counts_E = episode_sums(per_token_loss_BT, mask_BT, episode_BT)
    total = (sums_E / counts_E.clamp(min=1)).sum()
    return total / _at_least_one(num_episodes, total)


def _at_least_one(denominator: Tensor | float, like: Tensor) -> Tensor:
    return torch.as_tensor(denominator, dtype=like.dtype, device=like.device).clamp(min=1)
