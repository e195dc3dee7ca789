"""Advantages over action tokens: worked examples, then what must never matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_agent.algo.advantages import plain_gae, policy_lambda, returns, skip_observation_gae, terminal_rewards

MASK = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 0, 1, 1]])
VALUES = torch.tensor([[0.2, 0.3, 0.4, 0.9, 0.8, 0.5, 0.6, -0.7, 0.55, 0.7]], dtype=torch.float64)
ACTIONS = [0, 1, 2, 5, 6, 8, 9]
OBSERVATIONS = [3, 4, 7]


def rewards_at(positions: dict[int, float], length: int = 10) -> torch.Tensor:
    rewards = torch.zeros(1, length, dtype=torch.float64)
    for position, reward in positions.items():
        rewards[0, position] = reward
    return rewards


TERMINAL = rewards_at({9: 1.0})

WORKED = [
    ("lambda 0.9", TERMINAL, 1.0, 0.9, None, [0.559101, 0.510112, 0.45568, 0.3952, 0.328, 0.42, 0.3]),
    (
        "lambda of seven actions",
        TERMINAL,
        1.0,
        1 - 1 / (1.5 * 7),
        None,
        [0.568397, 0.517702, 0.46167, 0.399741, 0.331293, 0.421429, 0.3],
    ),
    ("lambda 1", TERMINAL, 1.0, 1.0, None, [0.8, 0.7, 0.6, 0.5, 0.4, 0.45, 0.3]),
    ("discounted", TERMINAL, 0.99, 0.95, None, [0.618945, 0.554966, 0.488002, 0.417865, 0.344354, 0.42515, 0.3]),
    (
        "truncated with bootstrap",
        rewards_at({}),
        1.0,
        0.9,
        0.65,
        [0.373096, 0.303441, 0.226045, 0.14005, 0.0445, 0.105, -0.05],
    ),
    (
        "terminal without reward",
        rewards_at({}),
        1.0,
        0.9,
        None,
        [0.02766, -0.080378, -0.20042, -0.3338, -0.482, -0.48, -0.7],
    ),
    (
        "turn rewards",
        rewards_at({2: 0.1, 6: -0.2, 9: 1.0}),
        1.0,
        0.9,
        None,
        [0.508881, 0.454312, 0.39368, 0.2152, 0.128, 0.42, 0.3],
    ),
]


@pytest.mark.parametrize(
    ("rewards", "gamma", "lam", "bootstrap", "expected"), [w[1:] for w in WORKED], ids=[w[0] for w in WORKED]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_skip_observation_gae_gives_the_worked_advantages(rewards, gamma, lam, bootstrap, expected, dtype):
    advantages = skip_observation_gae(
        VALUES.to(dtype),
        MASK,
        rewards.to(dtype),
        gamma=gamma,
        lam_B=torch.tensor([lam], dtype=dtype),
        bootstrap_B=None if bootstrap is None else torch.tensor([bootstrap], dtype=dtype),
    )
    assert advantages.dtype == dtype
    assert advantages[0, ACTIONS].tolist() == pytest.approx(expected, abs=1e-6)
    assert advantages[0, OBSERVATIONS].tolist() == [0, 0, 0]


def test_the_lambda_rule_counts_action_tokens():
    assert policy_lambda(torch.tensor([7]), 1.5).item() == pytest.approx(1 - 1 / 10.5)
    assert policy_lambda(torch.tensor([7]), 0.05).item() == 0.0, "1 - 1/0.35 is below 0 and is clamped"
    assert policy_lambda(torch.tensor([0]), 1.5).item() == 0.0
    by_rule = skip_observation_gae(VALUES, MASK, TERMINAL, gamma=1.0, lam_B=policy_lambda(MASK.sum(1), 1.5))
    assert by_rule[0, 0].item() == pytest.approx(0.568397, abs=1e-6)


def test_critic_targets_at_lambda_one_are_the_return():
    advantages = skip_observation_gae(VALUES, MASK, TERMINAL, gamma=1.0, lam_B=1.0)
    targets = returns(advantages, VALUES, MASK)
    assert targets[0, ACTIONS].tolist() == pytest.approx([1.0] * 7, abs=1e-12)
    assert targets[0, OBSERVATIONS].tolist() == [0, 0, 0]


def test_plain_gae_through_observations_differs_everywhere_before_the_last_observation():
    plain = plain_gae(VALUES, torch.ones_like(MASK), MASK, TERMINAL, gamma=1.0, lam_B=0.9)[0, ACTIONS]
    assert plain.tolist() == pytest.approx([0.472113, 0.413459, 0.348288, 0.24868, 0.1652, 0.42, 0.3], abs=1e-6)
    skipping = skip_observation_gae(VALUES, MASK, TERMINAL, gamma=1.0, lam_B=0.9)[0, ACTIONS]
    assert (plain[:5] - skipping[:5]).abs().min() > 0.05


@pytest.mark.parametrize(("gamma", "expected"), [(1.0, [0.375, 0.35, 0.5]), (0.9, [0.28375, 0.275, 0.5])])
def test_c01_observations_take_no_part_and_the_reward_sits_on_the_last_action(gamma, expected):
    mask = torch.tensor([[1, 1, 0, 0, 0, 1, 0]])
    values = torch.tensor([[0.2, 0.4, 9, 9, 9, 0.5, 9]], dtype=torch.float64)
    rewards = terminal_rewards(torch.tensor([1.0], dtype=torch.float64), mask)
    assert rewards.tolist() == [[0, 0, 0, 0, 0, 1, 0]]
    advantages = skip_observation_gae(values, mask, rewards, gamma=gamma, lam_B=torch.tensor([0.5]))
    assert advantages[0, [0, 1, 5]].tolist() == pytest.approx(expected, abs=1e-9)
    other = values.masked_fill(mask == 0, float("nan"))
    assert torch.equal(advantages, skip_observation_gae(other, mask, rewards, gamma=gamma, lam_B=torch.tensor([0.5])))
    if gamma == 1.0:
        targets = returns(skip_observation_gae(values, mask, rewards, gamma=1.0, lam_B=1.0), values, mask)
        assert targets[0, [0, 1, 5]].tolist() == pytest.approx([1, 1, 1], abs=1e-9)


def test_c01_the_faulty_walk_through_observations_is_what_plain_gae_computes():
    mask = torch.tensor([[1, 1, 0, 0, 0, 1, 0]])
    values = torch.tensor([[0.2, 0.4, 9, 9, 9, 0.5, 9]], dtype=torch.float64)
    faulty = plain_gae(values, torch.ones_like(mask), mask, rewards_at({6: 1.0}, 7), gamma=1.0, lam_B=0.5)
    assert faulty[0, 0].item() == pytest.approx(4.109375, abs=1e-6)


def test_c02_the_score_is_not_lost_on_padding():
    values = torch.tensor([[0.1, 0.2, 0.3, 7.0, 7.0]])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    padded = skip_observation_gae(
        values, mask, terminal_rewards(torch.tensor([1.0]), mask), gamma=1.0, lam_B=torch.tensor([1.0])
    )
    bare = skip_observation_gae(
        values[:, :3],
        mask[:, :3],
        terminal_rewards(torch.tensor([1.0]), mask[:, :3]),
        gamma=1.0,
        lam_B=torch.tensor([1.0]),
    )
    assert padded[0].tolist() == pytest.approx([0.9, 0.8, 0.7, 0, 0], abs=1e-6)
    assert torch.equal(padded[:, :3], bare)


def test_a_reward_on_an_observation_is_refused_instead_of_lost():
    with pytest.raises(ValueError, match="did not sample"):
        skip_observation_gae(VALUES, MASK, rewards_at({7: 1.0}), gamma=1.0, lam_B=1.0)


def test_rows_without_actions_get_zero():
    values = torch.full((2, 3), float("nan"))
    mask = torch.zeros(2, 3, dtype=torch.bool)
    assert torch.equal(
        skip_observation_gae(values, mask, torch.zeros(2, 3), gamma=1.0, lam_B=torch.ones(2)), torch.zeros(2, 3)
    )


def test_advantages_carry_no_gradient():
    values = VALUES.clone().requires_grad_()
    assert not skip_observation_gae(values, MASK, TERMINAL, gamma=1.0, lam_B=0.9).requires_grad
    assert not returns(TERMINAL, values, MASK).requires_grad


def test_lambda_one_stays_accurate_over_a_hundred_thousand_tokens():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(1, 100_000, generator=generator)
    mask = torch.ones(1, 100_000, dtype=torch.bool)
    rewards = terminal_rewards(torch.tensor([1.0]), mask)
    advantages = skip_observation_gae(values, mask, rewards, gamma=1.0, lam_B=1.0)
    assert (advantages - (1.0 - values)).abs().max() < 2e-7


def test_half_decayed_credit_is_as_exact_as_its_format():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(4, 2048, generator=generator)
    mask = torch.rand(4, 2048, generator=generator) < 0.5
    rewards = terminal_rewards(torch.ones(4), mask)
    lam = policy_lambda(mask.sum(1), 1.5)
    single = skip_observation_gae(values, mask, rewards, gamma=1.0, lam_B=lam)
    double = skip_observation_gae(values.double(), mask, rewards.double(), gamma=1.0, lam_B=lam)
    assert (single - double).abs().max() < 2e-7


def test_the_memory_layout_of_the_inputs_does_not_matter():
    other = [x.t().contiguous().t() for x in (VALUES.repeat(2, 1), MASK.repeat(2, 1), TERMINAL.repeat(2, 1))]
    assert not other[0].is_contiguous()
    advantages = skip_observation_gae(*other, gamma=1.0, lam_B=torch.tensor([0.9, 1.0]))
    assert advantages[0, ACTIONS].tolist() == pytest.approx(WORKED[0][5], abs=1e-6)
    assert advantages[1, ACTIONS].tolist() == pytest.approx(WORKED[2][5], abs=1e-6)


def by_the_recursion(values, rewards, gamma, lam, bootstrap):
    """GAE of one list of action tokens, backwards, one at a time."""
    advantage, after, result = 0.0, bootstrap, []
    for value, reward in zip(reversed(values), reversed(rewards), strict=True):
        advantage = reward + gamma * after - value + gamma * lam * advantage
        after = value
        result.append(advantage)
    return result[::-1]


unit = st.floats(-2, 2, allow_nan=False, width=32)


@st.composite
def batches(draw):
    rows = draw(st.integers(1, 4))
    length = draw(st.integers(1, 14))
    mask = torch.tensor(
        draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=rows, max_size=rows))
    )
    grids = st.lists(st.lists(unit, min_size=length, max_size=length), min_size=rows, max_size=rows)
    values = torch.tensor(draw(grids), dtype=torch.float64)
    rewards = torch.tensor(draw(grids), dtype=torch.float64) * mask
    lam = torch.tensor(draw(st.lists(st.floats(0, 1), min_size=rows, max_size=rows)), dtype=torch.float64)
    bootstrap = torch.tensor(draw(st.lists(unit, min_size=rows, max_size=rows)), dtype=torch.float64)
    gamma = draw(st.floats(0.5, 1.0))
    return values, mask, rewards, gamma, lam, bootstrap


@given(batches())
@settings(max_examples=60, deadline=None)
def test_it_equals_deleting_observations_and_running_token_gae(batch):
    values, mask, rewards, gamma, lam, bootstrap = batch
    ours = skip_observation_gae(values, mask, rewards, gamma=gamma, lam_B=lam, bootstrap_B=bootstrap)
    for row in range(len(values)):
        kept = mask[row]
        expected = by_the_recursion(
            values[row][kept].tolist(), rewards[row][kept].tolist(), gamma, lam[row].item(), bootstrap[row].item()
        )
        assert ours[row][kept].tolist() == pytest.approx(expected, abs=1e-9)
        assert not ours[row][~kept].any()


@given(batches(), st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.0, 7.0, float("nan"), float("inf")]))
@settings(max_examples=60, deadline=None)
def test_padding_on_either_side_and_values_at_masked_positions_never_matter(batch, left, right, filler):
    values, mask, rewards, gamma, lam, bootstrap = batch
    plain = skip_observation_gae(values, mask, rewards, gamma=gamma, lam_B=lam, bootstrap_B=bootstrap)

    def pad(x, value):
        return torch.nn.functional.pad(x, (left, right), value=value)

    padded = skip_observation_gae(
        pad(values.masked_fill(~mask, filler), filler),
        pad(mask.int(), 0),
        pad(rewards, 0.0),
        gamma=gamma,
        lam_B=lam,
        bootstrap_B=bootstrap,
    )
    assert torch.equal(padded[:, left : left + values.shape[1]], plain)


@given(batches())
@settings(max_examples=60, deadline=None)
def test_packing_all_episodes_into_one_row_never_changes_a_number(batch):
    values, mask, rewards, gamma, lam, bootstrap = batch
    rows = skip_observation_gae(values, mask, rewards, gamma=gamma, lam_B=lam, bootstrap_B=bootstrap)
    episode = torch.arange(len(values))[:, None].expand(values.shape)
    packed = skip_observation_gae(
        values.reshape(1, -1),
        mask.reshape(1, -1),
        rewards.reshape(1, -1),
        gamma=gamma,
        lam_B=lam,
        bootstrap_B=bootstrap,
        episode_BT=episode.reshape(1, -1),
    )
    assert torch.equal(packed, rows.reshape(1, -1))
