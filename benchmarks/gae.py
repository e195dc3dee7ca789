"""Skip-observation GAE: the vectorised function against the loop over token positions it replaces.

64 episodes of 2,048 tokens, turns of 24 action and 40 observation tokens. Both must agree before anything is timed.
Seconds are CPU seconds of one thread: a run takes milliseconds, and whatever else the machine does would show in them.
``time_at_2x_tokens_over_1x`` is 2 where time is linear in tokens.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.report import Report, describe_machine, interleaved_seconds, medians
from online_agent.algo.advantages import policy_lambda, skip_observation_gae, terminal_rewards

NUM_EPISODES, NUM_TOKENS = 64, 2048
ACTION_TOKENS, OBSERVATION_TOKENS = 24, 40
NUM_RUNS = 7
GAMMA = 1.0
_AGREEMENT = 1e-4


def loop_over_positions(values_BT: Tensor, mask_BT: Tensor, rewards_BT: Tensor, gamma: float, lam_B: Tensor) -> Tensor:
    """The recursion backwards over positions, all episodes at once; observations carry the state past them."""
    advantages_BT = torch.zeros_like(values_BT)
    after_B = torch.zeros_like(lam_B)
    advantage_B = torch.zeros_like(lam_B)
    for t in range(values_BT.shape[1] - 1, -1, -1):
        is_action_B = mask_BT[:, t]
        delta_B = rewards_BT[:, t] + gamma * after_B - values_BT[:, t]
        advantage_B = torch.where(is_action_B, delta_B + gamma * lam_B * advantage_B, advantage_B)
        after_B = torch.where(is_action_B, values_BT[:, t], after_B)
        advantages_BT[:, t] = torch.where(is_action_B, advantage_B, advantages_BT[:, t])
    return advantages_BT


@dataclass(frozen=True, slots=True)
class Rows:
    """B episodes of T tokens with a reward on the last action token."""

    values_BT: Tensor
    mask_BT: Tensor
    rewards_BT: Tensor
    lam_B: Tensor

    def vectorised(self) -> Tensor:
        return skip_observation_gae(self.values_BT, self.mask_BT, self.rewards_BT, gamma=GAMMA, lam_B=self.lam_B)

    def loop(self) -> Tensor:
        return loop_over_positions(self.values_BT, self.mask_BT, self.rewards_BT, GAMMA, self.lam_B)


def make_rows(num_episodes: int, num_tokens: int) -> Rows:
    generator = torch.Generator().manual_seed(0)
    position_T = torch.arange(num_tokens)
    mask_BT = (position_T % (ACTION_TOKENS + OBSERVATION_TOKENS) < ACTION_TOKENS).expand(num_episodes, -1).contiguous()
    rewards_B = torch.randint(0, 2, (num_episodes,), generator=generator).float()
    return Rows(
        values_BT=torch.rand(num_episodes, num_tokens, generator=generator),
        mask_BT=mask_BT,
        rewards_BT=terminal_rewards(rewards_B, mask_BT),
        lam_B=policy_lambda(mask_BT.sum(1), alpha=1.5).float(),
    )


def measure(num_runs: int = NUM_RUNS) -> Report:
    """The report. Raises RuntimeError when the two implementations differ."""
    torch.set_num_threads(1)
    rows, twice = make_rows(NUM_EPISODES, NUM_TOKENS), make_rows(NUM_EPISODES, 2 * NUM_TOKENS)
    gap = float((rows.vectorised() - rows.loop()).abs().max())
    if gap > _AGREEMENT:
        raise RuntimeError(f"the two implementations differ by {gap}")
    runs = interleaved_seconds(
        {"vectorised_s": rows.vectorised, "vectorised_2x_tokens_s": twice.vectorised, "loop_s": rows.loop},
        num_runs,
        clock=time.process_time,
    )
    figures = medians(runs)
    return Report(
        bench="gae",
        ratios={"vs_token_loop": figures["loop_s"] / figures["vectorised_s"]},
        figures={
            **figures,
            "time_at_2x_tokens_over_1x": figures["vectorised_2x_tokens_s"] / figures["vectorised_s"],
            "max_difference": gap,
            "num_action_tokens": float(rows.mask_BT.sum()),
        },
        runs=runs,
        machine=describe_machine(torch=torch.__version__, num_threads="1"),
    )
