"""Which episode a token belongs to, and sums per episode. Rows are episodes unless a batch is packed."""

from __future__ import annotations

import torch
from torch import Tensor


def episode_index(mask_BT: Tensor, episode_BT: Tensor | None) -> Tensor:
    """(B, T) int64 episode number of each token: ``episode_BT`` where the batch is packed, else the row number."""
    if episode_BT is not None:
        return episode_BT.long()
    rows_B1 = torch.arange(mask_BT.shape[0], device=mask_BT.device)[:, None]
    return rows_B1.expand(mask_BT.shape)


def count_episodes(mask_BT: Tensor, episode_BT: Tensor | None) -> int:
    """Rows without packing; with packing the highest episode number on any action token, plus one."""
    if episode_BT is None:
        return mask_BT.shape[0]
    numbers_N = episode_BT[mask_BT.bool()]
    return int(numbers_N.max()) + 1 if numbers_N.numel() else 0


def episode_sums(x_BT: Tensor, mask_BT: Tensor, episode_BT: Tensor | None) -> tuple[Tensor, Tensor]:
    """Per episode: the sum of ``x_BT`` over its action tokens (E,), and their number (E,). Differentiable in x."""
    is_action_BT = mask_BT.bool()
    episode_N = episode_index(mask_BT, episode_BT)[is_action_BT]
    num_episodes = count_episodes(mask_BT, episode_BT)
    x_N = x_BT[is_action_BT]
    sums_E = x_N.new_zeros(num_episodes).index_add(0, episode_N, x_N)
    counts_E = x_N.new_zeros(num_episodes).index_add(0, episode_N, torch.ones_like(x_N))
    return sums_E, counts_E


def episode_means(x_BT: Tensor, mask_BT: Tensor, episode_BT: Tensor | None) -> Tensor:
    """(B, T): each action token gets its episode's mean of ``x_BT`` over action tokens; 0 elsewhere."""
    sums_E, counts_E = episode_sums(x_BT, mask_BT, episode_BT)
    means_E = sums_E / counts_E.clamp(min=1)
    is_action_BT = mask_BT.bool()
    index_BT = episode_index(mask_BT, episode_BT)
    spread_N = means_E[index_BT[is_action_BT]]
    return x_BT.new_zeros(x_BT.shape).masked_scatter(is_action_BT, spread_N)
