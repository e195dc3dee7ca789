"""What each action token is credited with: the advantage estimator of the recipe, over micro-batches.

Axes: B rows and P token positions of a micro-batch, N its action tokens, W the tokens the critic is asked about,
E the episodes of the step. Estimators with a critic work row by row; those without see the rewards of all episodes,
which every rank holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from online_agent.algo.advantages import (
    group_normalised,
    moments,
    plain_gae,
    policy_lambda,
    returns,
    skip_observation_gae,
    step_level_gae,
    turn_values,
    whiten,
)
from online_agent.learner.batching import MicroBatch
from online_agent.learner.ranks import Ranks
from online_agent.learner.running_rewards import RunningRewards
from online_agent.recipes.parts import Advantage, Gae, GroupNormalised, PlainGae, RunningMean, StepLevelGae
from online_agent.types import TrainingEpisode


@dataclass(frozen=True, slots=True)
class States:
    """The states of a micro-batch whose values the estimator needs: those before each token of ``walked_BP``.

    positions_W index the fed positions; is_action_W says which of the states precede an action token.
    """

    walked_BP: Tensor
    positions_W: Tensor
    is_action_W: Tensor


def states_of(advantage: Advantage, batch: MicroBatch) -> States:
    """Before every action token; for plain GAE also before the observations between two of them."""
    mask_BP = batch.action_mask_BP
    if not isinstance(advantage, PlainGae):
        return States(mask_BP, batch.positions_N, torch.ones_like(batch.positions_N, dtype=torch.bool))
    begun_BP = mask_BP.cumsum(1) > 0
    goes_on_BP = mask_BP.flip(1).cumsum(1).flip(1) > 0
    walked_BP = begun_BP & goes_on_BP
    at_row_W, at_token_W = walked_BP.nonzero(as_tuple=True)
    num_fed = batch.token_ids_BT.shape[1]
    return States(walked_BP, at_row_W * num_fed + at_token_W - 1, mask_BP[walked_BP])


def gae_credit(
    advantage: Gae, batch: MicroBatch, states: States, values_W: Tensor, bootstrap_B: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Advantages and critic targets (N,) from the values of ``states``; no gradient.

    Lambda is 1 - 1/(alpha l), l the number of action tokens, for all three estimators; the critic's is its own.
    """
    mask_BP = batch.action_mask_BP
    values_BP = values_W.new_zeros(mask_BP.shape)
    values_BP[states.walked_BP] = values_W.detach()
    lam_B = policy_lambda(batch.num_actions_B, advantage.alpha)
    ours_BP = _gae(advantage, values_BP, states, batch, lam_B, bootstrap_B)
    critics_BP = _gae(advantage, values_BP, states, batch, advantage.critic.lam, bootstrap_B)
    own_BP = values_BP
    if isinstance(advantage, StepLevelGae):
        own_BP = turn_values(values_BP, mask_BP, value_of=advantage.value)
    return ours_BP[mask_BP], returns(critics_BP, own_BP, mask_BP)[mask_BP]


def _gae(
    advantage: Gae,
    values_BP: Tensor,
    states: States,
    batch: MicroBatch,
    lam_B: Tensor | float,
    bootstrap_B: Tensor | None,
) -> Tensor:
    mask_BP, rewards_BP, gamma = batch.action_mask_BP, batch.rewards_BP, advantage.gamma
    if isinstance(advantage, PlainGae):
        return plain_gae(
            values_BP, states.walked_BP, mask_BP, rewards_BP, gamma=gamma, lam_B=lam_B, bootstrap_B=bootstrap_B
        )
    if isinstance(advantage, StepLevelGae):
        return step_level_gae(
            values_BP,
            mask_BP,
            rewards_BP,
            gamma=gamma,
            lam_B=lam_B,
            value_of=advantage.value,
            bootstrap_B=bootstrap_B,
        )
    return skip_observation_gae(values_BP, mask_BP, rewards_BP, gamma=gamma, lam_B=lam_B, bootstrap_B=bootstrap_B)


def with_state_after_it(episode: TrainingEpisode) -> TrainingEpisode:
    """The episode with one more token whose only action it is: the state before it is the one the episode ended in."""
    num = len(episode.token_ids)
    mask = np.zeros(num + 1, np.bool_)
    mask[num] = True
    return replace(
        episode,
        token_ids=np.append(episode.token_ids, np.int32(0)),
        action_mask=mask,
        logprobs=np.zeros(num + 1, np.float32),
        versions=np.zeros(num + 1, np.int32),
        routed_experts=None,
        old_logprobs=None,
    )


def reward_credit(
    advantage: RunningMean | GroupNormalised, episodes: Sequence[TrainingEpisode], running: RunningRewards
) -> Tensor:
    """(E,) fp64 one advantage per episode, without a critic."""
    rewards_E = torch.tensor([episode.reward for episode in episodes], dtype=torch.float64)
    if isinstance(advantage, RunningMean):
        return running.advantages(episodes)
    return group_normalised(rewards_E, _group_numbers(episodes), divide_by_std=advantage.is_divided_by_std)


def _group_numbers(episodes: Sequence[TrainingEpisode]) -> Tensor:
    """(E,) equal for rollouts that were sampled together; an episode without a group is one of its own."""
    numbers: dict[object, int] = {}
    keys = [i if episode.group_id is None else episode.group_id for i, episode in enumerate(episodes)]
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys], dtype=torch.int64)


def spread(advantages_E: Tensor, batch: MicroBatch) -> Tensor:
    """(N,) each action token gets the advantage of its episode."""
    rows_B = advantages_E[list(batch.episode_B)].to(batch.logp_mu_N.device)
    num_actions_B = batch.num_actions_B[: len(batch.episode_B)]
    return rows_B.repeat_interleave(num_actions_B)


def whitened(advantages: Sequence[Tensor], ranks: Ranks) -> list[Tensor]:
    """Mean 0 and deviation 1 over the action tokens of the whole step, all ranks together."""
    every_N = ranks.gather_tokens(torch.cat(list(advantages))[None])[0]
    over = moments(every_N, torch.ones_like(every_N))
    return [whiten(a_N, torch.ones_like(a_N), over=over) for a_N in advantages]
