"""Advantages as the trainer asks for them: the worked values of every estimator, on a micro-batch of an episode."""

import dataclasses

import pytest
import torch

from online_agent.learner.batching import collate
from online_agent.learner.credit import gae_credit, reward_credit, spread, states_of, with_state_after_it
from online_agent.learner.running_rewards import RunningRewards
from online_agent.recipes.parts import Critic, GroupNormalised, PlainGae, RunningMean, SkipObservationGae, StepLevelGae
from tests.fakes.training_episodes import episode

CPU = torch.device("cpu")
MASK = [1, 1, 1, 0, 0, 1, 1, 0, 1, 1]
VALUES = [0.2, 0.3, 0.4, 0.9, 0.8, 0.5, 0.6, -0.7, 0.55, 0.7]
NUM_ACTIONS = 7


def alpha_for(lam):
    """The alpha at which 1 - 1/(alpha l) is ``lam`` for seven actions."""
    return 1 / (NUM_ACTIONS * (1 - lam))


def credited(advantage, *, reward=1.0, bootstrap=None):
    """Vector A behind one prompt token: advantages and targets at the seven actions."""
    batch = collate([episode(range(11), [0, *MASK], reward=reward)], (0,), CPU)
    states = states_of(advantage, batch)
    values_W = torch.tensor([0.0, *VALUES], dtype=torch.float64)[states.walked_BP[0].nonzero()[:, 0]]
    bootstrap_B = None if bootstrap is None else torch.tensor([bootstrap])
    advantages_N, targets_N = gae_credit(advantage, batch, states, values_W, bootstrap_B)
    return advantages_N.tolist(), targets_N.tolist()


@pytest.mark.parametrize(
    ("numbers", "episode_of", "expected"),
    [
        ({"alpha": 1.5}, {}, [0.568397, 0.517702, 0.46167, 0.399741, 0.331293, 0.421429, 0.3]),
        ({"alpha": alpha_for(0.9)}, {}, [0.559101, 0.510112, 0.45568, 0.3952, 0.328, 0.42, 0.3]),
        (
            {"alpha": alpha_for(0.95), "gamma": 0.99},
            {},
            [0.618945, 0.554966, 0.488002, 0.417865, 0.344354, 0.42515, 0.3],
        ),
        (
            {"alpha": alpha_for(0.9)},
            {"reward": 0.0, "bootstrap": 0.65},
            [0.373096, 0.303441, 0.226045, 0.14005, 0.0445, 0.105, -0.05],
        ),
        (
            {"alpha": alpha_for(0.9)},
            {"reward": 0.0},
            [0.02766, -0.080378, -0.20042, -0.3338, -0.482, -0.48, -0.7],
        ),
    ],
    ids=["lambda-rule", "lambda-0.9", "gamma-0.99", "truncated-with-bootstrap", "terminal-without-reward"],
)
def test_skip_observation_gae_gives_vector_a(numbers, episode_of, expected):
    advantages, targets = credited(SkipObservationGae(**numbers), **episode_of)
    assert advantages == pytest.approx(expected, abs=1e-6)
    if numbers == {"alpha": 1.5}:
        assert targets == pytest.approx([1.0] * 7), "the critic's lambda is 1: targets are the return"


def test_plain_gae_reads_the_values_of_observations_too():
    batch = collate([episode(range(11), [0, *MASK])], (0,), CPU)
    states = states_of(PlainGae(), batch)
    assert states.positions_W.tolist() == list(range(10))
    assert states.is_action_W.tolist() == [bool(m) for m in MASK]

    advantages, targets = credited(PlainGae(alpha=alpha_for(0.9)))

    assert advantages == pytest.approx([0.472113, 0.413459, 0.348288, 0.24868, 0.1652, 0.42, 0.3], abs=1e-6)
    assert targets == pytest.approx([1.0] * 7)


@pytest.mark.parametrize(
    ("value", "turns"),
    [
        # V = .3, .55, .625: A3 = .375, A2 = .075 + .9 A3, A1 = .25 + .9 A2
        ("mean", [0.62125, 0.4125, 0.375]),
        # V = .4, .6, .7: A3 = .3, A2 = .1 + .9 A3, A1 = .2 + .9 A2
        ("last", [0.533, 0.37, 0.3]),
    ],
)
def test_step_level_gae_credits_whole_turns(value, turns):
    advantages, targets = credited(StepLevelGae(value=value, alpha=alpha_for(0.9)))
    expected = [a for a, length in zip(turns, (3, 2, 2), strict=True) for _ in range(length)]
    assert advantages == pytest.approx(expected, abs=1e-6)
    assert targets == pytest.approx([1.0] * 7, abs=1e-6)


def test_step_level_gae_bootstraps_a_truncated_episode():
    """V of the last turn .625, no reward, .65 behind it: A3 = .025."""
    advantages, _ = credited(StepLevelGae(alpha=alpha_for(0.9)), reward=0.0, bootstrap=0.65)
    assert advantages[-2:] == pytest.approx([0.025, 0.025])


def test_the_critic_s_lambda_is_its_own():
    _, targets = credited(SkipObservationGae(critic=Critic(lam=0.0)))
    assert targets == pytest.approx([0.3, 0.4, 0.5, 0.6, 0.55, 0.7, 1.0]), "lambda 0: reward plus the next value"


def test_the_state_a_truncated_episode_ended_in_lies_behind_its_last_observation():
    cut = with_state_after_it(episode([5, 6, 7, 8], [0, 1, 0, 0]))
    batch = collate([cut], (0,), CPU)
    assert batch.token_ids_BT.tolist() == [[5, 6, 7, 8]]
    assert batch.positions_N.tolist() == [3]


def rewards_of(*rewards, tasks=None, groups=None):
    made = []
    for i, reward in enumerate(rewards):
        made.append(
            dataclasses.replace(
                episode([0, 1], [0, 1], reward=reward),
                task_id="" if tasks is None else tasks[i],
                group_id=None if groups is None else groups[i],
            )
        )
    return made


def test_the_running_mean_is_that_of_vector_f_however_the_stream_is_cut():
    expected = [1, -1, 0.5, 1 / 3, -2 / 3, -2 / 3]
    rewards = (1.0, 0.0, 1.0, 1.0, 0.0, 0.0)
    for cut in range(7):
        running, seen = RunningRewards(RunningMean(window=3)), []
        for part in (rewards_of(*rewards[:cut]), rewards_of(*rewards[cut:])):
            seen += running.advantages(part).tolist()
            running.observe(part)
        assert seen == pytest.approx(expected)


def test_looking_at_a_batch_is_not_remembering_it():
    running = RunningRewards(RunningMean())
    batch = rewards_of(1.0, 0.0)
    assert running.advantages(batch).tolist() == running.advantages(batch).tolist() == [1.0, -1.0]


def test_each_task_has_rewards_of_its_own():
    running = RunningRewards(RunningMean(over="task"))
    batch = rewards_of(1.0, 0.0, 1.0, 0.0, tasks=["a", "b", "a", "b"])
    assert running.advantages(batch).tolist() == [1.0, 0.0, 0.0, 0.0]
    running.observe(batch)
    assert running.advantages(rewards_of(0.0, tasks=["a"])).tolist() == [-1.0]
    assert running.advantages(rewards_of(1.0, tasks=["c"])).tolist() == [1.0]


def test_the_window_is_128_of_the_stream_and_8_of_a_task():
    for part, length in ((RunningMean(), 128), (RunningMean(over="task"), 8)):
        running = RunningRewards(part)
        running.observe(rewards_of(*[1.0] * length, tasks=["t"] * length))
        assert running.advantages(rewards_of(0.0, tasks=["t"])).item() == -1
        running.observe(rewards_of(0.0, tasks=["t"]))
        assert running.advantages(rewards_of(0.0, tasks=["t"])).item() == pytest.approx(-(length - 1) / length)


def test_groups_are_told_by_their_id_and_may_miss_members():
    episodes = rewards_of(1.0, 0.0, 1.0, 1.0, 0.0, groups=["g", "h", "h", None, None])
    given = reward_credit(GroupNormalised(is_divided_by_std=False), episodes, RunningRewards(RunningMean()))
    assert given.tolist() == [0.0, -0.5, 0.5, 0.0, 0.0], "alone in its group, or in none: nothing to compare with"


def test_every_token_gets_the_advantage_of_its_episode():
    short, longer = episode([0, 1, 2], [0, 1, 0]), episode([0, 1, 2, 3], [0, 1, 0, 1])
    batch = collate([short, longer], (1, 0), CPU)
    assert spread(torch.tensor([0.25, -1.0]), batch).tolist() == [-1.0, -1.0, 0.25]
    assert spread(torch.tensor([0.25, -1.0]), collate([short], (), CPU)).tolist() == []
