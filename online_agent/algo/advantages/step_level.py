"""One value and one advantage per turn instead of per token: the step-level ablation of SAO (arXiv 2607.07508)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from online_agent.algo.advantages.gae import skip_observation_gae

StepValue = Literal["mean", "last"]


def turn_index(action_mask_BT: Tensor) -> Tensor:
    """(B, T) int64 number of the run of action tokens a token lies in, from 0; only read where the mask is 1."""
    is_action_BT = action_mask_BT.bool()
    before_BT = torch.nn.functional.pad(is_action_BT[:, :-1], (1, 0))
    return (is_action_BT & ~before_BT).cumsum(1) - 1


def step_level_gae(
    values_BT: Tensor,
    action_mask_BT: Tensor,
    rewards_BT: Tensor,
    *,
    gamma: float,
    lam_B: Tensor | float,
    value_of: StepValue,
    turn_BT: Tensor | None = None,
    bootstrap_B: Tensor | None = None,
) -> Tensor:
    """(B, T) advantages, equal for all tokens of a turn, 0 where the mask is 0; no gradient.

    V_i is the mean of the values of turn i's tokens, or the value at its last token; its reward is the sum over its
    tokens; GAE then runs over turns, with one discount per turn. ``turn_BT`` tells turns apart that no observation
    separates; by default a turn is a run of action tokens. ``bootstrap_B`` as in ``skip_observation_gae``.
    """
    is_action_BT = action_mask_BT.bool()
    turn_BT = _turns(is_action_BT, turn_BT)
    tokens_BS, values_BS = _values_of_turns(values_BT, is_action_BT, turn_BT, value_of)
    rewards_BS = torch.zeros_like(values_BS).scatter_add(1, turn_BT, rewards_BT.to(values_BS) * is_action_BT)
    steps_BS = skip_observation_gae(
        values_BS, tokens_BS > 0, rewards_BS, gamma=gamma, lam_B=lam_B, bootstrap_B=bootstrap_B
    )
    return steps_BS.gather(1, turn_BT).masked_fill(~is_action_BT, 0)


def turn_values(
    values_BT: Tensor, action_mask_BT: Tensor, *, value_of: StepValue, turn_BT: Tensor | None = None
) -> Tensor:
    """(B, T) at each action token the value of its turn, 0 elsewhere: what a step-level critic target adds to A."""
    is_action_BT = action_mask_BT.bool()
    turn_BT = _turns(is_action_BT, turn_BT)
    _, values_BS = _values_of_turns(values_BT, is_action_BT, turn_BT, value_of)
    return values_BS.gather(1, turn_BT).masked_fill(~is_action_BT, 0)


def _turns(is_action_BT: Tensor, turn_BT: Tensor | None) -> Tensor:
    turn_BT = turn_index(is_action_BT) if turn_BT is None else turn_BT.long()
    return turn_BT.masked_fill(~is_action_BT, 0)


def _values_of_turns(
    values_BT: Tensor, is_action_BT: Tensor, turn_BT: Tensor, value_of: StepValue
) -> tuple[Tensor, Tensor]:
    """(B, S) number of tokens of each turn, and its value."""
    shape = (values_BT.shape[0], int(turn_BT.max()) + 1 if turn_BT.numel() else 0)
    values_BT = values_BT.detach().masked_fill(~is_action_BT, 0)
    tokens_BS = values_BT.new_zeros(shape).scatter_add(1, turn_BT, is_action_BT.to(values_BT))
    if value_of == "last":
        values_BT = values_BT * _is_last_of_turn(turn_BT, is_action_BT)
    values_BS = values_BT.new_zeros(shape).scatter_add(1, turn_BT, values_BT)
    return tokens_BS, values_BS / tokens_BS.clamp(min=1) if value_of == "mean" else values_BS


def _is_last_of_turn(turn_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    goes_on_BT = torch.zeros_like(is_action_BT)
    goes_on_BT[:, :-1] = is_action_BT[:, 1:] & (turn_BT[:, 1:] == turn_BT[:, :-1])
    return is_action_BT & ~goes_on_BT
