"""Generalised advantage estimation over action tokens only, and the plain kind it is compared with.

Axes: B rows, T token positions, N action tokens of the batch laid end to end, E episodes (rows unless packed).
``values_BT[b, t]`` is the critic's value of the state *before* token t (see ``alignment.values_before_tokens``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from online_agent.algo.advantages.scan import discounted_suffix_sums
from online_agent.algo.episodes import episode_index


def policy_lambda(num_actions_B: Tensor, alpha: float) -> Tensor:
    """(B,) lambda = 1 - 1/(alpha * l), clamped to [0, 1]; l is the episode's number of action tokens.

    Source: SAO (arXiv 2607.07508) with alpha = 1.5, after VAPO (arXiv 2504.05118, alpha = 0.05).
    An empty episode gets 0.
    """
    num_actions_B = num_actions_B if num_actions_B.is_floating_point() else num_actions_B.to(torch.float64)
    return (1.0 - 1.0 / (alpha * num_actions_B)).clamp(0.0, 1.0)


def skip_observation_gae(
    values_BT: Tensor,
    action_mask_BT: Tensor,
    rewards_BT: Tensor,
    *,
    gamma: float,
    lam_B: Tensor | float,
    bootstrap_B: Tensor | None = None,
    episode_BT: Tensor | None = None,
) -> Tensor:
    """(B, T) advantages without gradient, 0 where the mask is 0 (SAO eq. 4-5, arXiv 2607.07508).

    With p_1 < ... < p_n the action positions of an episode:

        delta_k = rewards[p_k] + gamma * values[p_{k+1}] - values[p_k]
        A[p_k]  = delta_k + gamma * lambda * A[p_{k+1}]

    the value after p_n is ``bootstrap_B`` (0 without it) and the advantage after p_n is 0: the same as deleting
    every token the policy did not sample and running token GAE on the rest. One discount per action token.

    values_BT, rewards_BT (B, T) floating; action_mask_BT (B, T) bool or 0/1; lam_B (E,) or one number;
    bootstrap_B (E,). ``episode_BT`` (B, T) numbers the episodes of a packed batch; then E is their count and tokens
    of one episode are contiguous. Values where the mask is 0 are never read.
    Raises ValueError for a reward on a token that is not an action: it would be lost.
    """
    is_action_BT = action_mask_BT.bool()
    if int(torch.count_nonzero(rewards_BT.masked_fill(is_action_BT, 0))):
        raise ValueError("a reward lies on a token the policy did not sample; put it on the last action token before")
    return _gae_over(values_BT, is_action_BT, rewards_BT, gamma, lam_B, bootstrap_B, episode_BT)


def plain_gae(
    values_BT: Tensor,
    token_mask_BT: Tensor,
    action_mask_BT: Tensor,
    rewards_BT: Tensor,
    *,
    gamma: float,
    lam_B: Tensor | float,
    bootstrap_B: Tensor | None = None,
    episode_BT: Tensor | None = None,
) -> Tensor:
    """(B, T) advantages of token GAE that walks through observations too; 0 where ``action_mask_BT`` is 0.

        A_t = delta_t + gamma lambda A_{t+1};  delta_t = rew_t + gamma V_{t+1} - V_t    (arXiv 1506.02438)

    A baseline SAO compares with. ``token_mask_BT`` marks every token of the response, actions and
    observations; rewards may lie on any of them. Same recursion as ``skip_observation_gae`` over that mask.
    """
    through_BT = _gae_over(values_BT, token_mask_BT.bool(), rewards_BT, gamma, lam_B, bootstrap_B, episode_BT)
    return through_BT.masked_fill(~action_mask_BT.bool(), 0)


def returns(advantages_BT: Tensor, values_BT: Tensor, action_mask_BT: Tensor) -> Tensor:
    """(B, T) critic targets R = A + V at action tokens, 0 elsewhere. Pass advantages made with the critic's lambda."""
    return (advantages_BT + values_BT.detach()).masked_fill(~action_mask_BT.bool(), 0)


def _gae_over(
    values_BT: Tensor,
    walked_BT: Tensor,
    rewards_BT: Tensor,
    gamma: float,
    lam_B: Tensor | float,
    bootstrap_B: Tensor | None,
    episode_BT: Tensor | None,
) -> Tensor:
    """The recursion over the tokens marked in ``walked_BT``, laid end to end; in fp64, rounded once at the end."""
    index_N = walked_BT.flatten().nonzero().squeeze(1)
    advantages_BT = values_BT.new_zeros(values_BT.shape)
    if index_N.numel() == 0:
        return advantages_BT
    values_N = _take(values_BT, index_N)
    episode_N = episode_index(walked_BT, episode_BT).reshape(-1)[index_N]
    is_last_N = torch.ones_like(episode_N, dtype=torch.bool)
    is_last_N[:-1] = episode_N[1:] != episode_N[:-1]

    after_N = values_N.roll(-1)
    after_N[is_last_N] = 0 if bootstrap_B is None else bootstrap_B.detach().to(values_N)[episode_N[is_last_N]]
    delta_N = _take(rewards_BT, index_N) + gamma * after_N - values_N

    lam_N = lam_B.to(values_N)[episode_N] if isinstance(lam_B, Tensor) else torch.full_like(values_N, lam_B)
    decay_N = (gamma * lam_N).masked_fill(is_last_N, 0)
    sums_N = discounted_suffix_sums(delta_N, decay_N, _longest_run(is_last_N))
    advantages_BT.view(-1)[index_N] = sums_N.to(advantages_BT.dtype)
    return advantages_BT


def _take(x_BT: Tensor, index_N: Tensor) -> Tensor:
    return x_BT.detach().reshape(-1)[index_N].double()


def _longest_run(is_last_N: Tensor) -> int:
    ends = torch.nonzero(is_last_N).flatten()
    starts = torch.cat([ends.new_full((1,), -1), ends[:-1]])
    return int((ends - starts).max())
