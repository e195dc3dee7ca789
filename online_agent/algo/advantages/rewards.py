"""Where a reward sits: on the last token the policy sampled."""

from __future__ import annotations

import torch
from torch import Tensor


def terminal_rewards(reward_B: Tensor, action_mask_BT: Tensor) -> Tensor:
    """(B, T) rewards: ``reward_B`` on the last action token of each row, 0 elsewhere.

    Also when the row goes on with observations or padding. A row without actions gets no reward.
    """
    is_action_BT = action_mask_BT.bool()
    rewards_BT = torch.zeros(is_action_BT.shape, dtype=reward_B.dtype, device=reward_B.device)
    num_after_BT = is_action_BT.flip(1).cumsum(1).flip(1)
    is_last_BT = is_action_BT & (num_after_BT == 1)
    return torch.where(is_last_BT, reward_B[:, None], rewards_BT)
