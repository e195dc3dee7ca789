"""Rewards against the other rollouts of the same prompt: GRPO (arXiv 2402.03300) and Dr. GRPO (arXiv 2503.20783)."""

from __future__ import annotations

import torch
from torch import Tensor


def group_normalised(
    rewards_E: Tensor, group_E: Tensor, *, divide_by_std: bool = True, epsilon: float = 1e-6
) -> Tensor:
    """(E,) A_i = (R_i - mean of its group) / (std of its group + epsilon); without the division for Dr. GRPO.

    ``group_E`` (E,) int64 numbers the groups. std is the sample standard deviation (n - 1). A group of one, or one
    whose rewards are all equal, gets 0.
    """
    num_groups = int(group_E.max()) + 1 if group_E.numel() else 0
    counts_G = rewards_E.new_zeros(num_groups).index_add(0, group_E, torch.ones_like(rewards_E))
    means_G = rewards_E.new_zeros(num_groups).index_add(0, group_E, rewards_E) / counts_G.clamp(min=1)
    centred_E = rewards_E - means_G[group_E]
    if not divide_by_std:
        return centred_E
    squares_G = rewards_E.new_zeros(num_groups).index_add(0, group_E, centred_E.square())
    std_G = (squares_G / (counts_G - 1).clamp(min=1)).sqrt()
    return centred_E / (std_G[group_E] + epsilon)
