"""What each action token is credited with."""

from online_agent.algo.advantages.gae import plain_gae, policy_lambda, returns, skip_observation_gae
from online_agent.algo.advantages.group import group_normalised
from online_agent.algo.advantages.rewards import terminal_rewards
from online_agent.algo.advantages.running_mean import running_mean_advantages
from online_agent.algo.advantages.step_level import step_level_gae, turn_values
from online_agent.algo.advantages.whitening import Moments, moments, whiten

__all__ = [
    "Moments",
    "group_normalised",
    "moments",
    "plain_gae",
    "policy_lambda",
    "returns",
    "running_mean_advantages",
    "skip_observation_gae",
    "step_level_gae",
    "terminal_rewards",
    "turn_values",
    "whiten",
]
