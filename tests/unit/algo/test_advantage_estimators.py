"""The critic-free and step-level estimators, and whitening."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_agent.algo.advantages import (
    group_normalised,
    moments,
    running_mean_advantages,
    skip_observation_gae,
    step_level_gae,
    terminal_rewards,
    whiten,
)

STREAM = torch.tensor([1.0, 0, 1, 1, 0, 0])


def test_the_running_mean_excludes_the_current_reward():
    advantages = running_mean_advantages(STREAM, window=3)
    assert advantages.tolist() == pytest.approx([1, -1, 0.5, 0.333333, -0.666667, -0.666667], abs=1e-6)


def test_a_stream_may_be_cut_anywhere_when_its_history_is_handed_on():
    whole = running_mean_advantages(STREAM, window=3)
    for cut in range(7):
        parts = [
            running_mean_advantages(STREAM[:cut], window=3),
            running_mean_advantages(STREAM[cut:], window=3, history=STREAM[:cut]),
        ]
        assert torch.cat(parts).tolist() == pytest.approx(whole.tolist(), abs=1e-6)


def test_each_prompt_has_its_own_running_mean():
    prompts = torch.tensor([0, 1, 0, 1, 0, 1])
    advantages = running_mean_advantages(STREAM, window=8, prompt_E=prompts)
    assert advantages.tolist() == pytest.approx([1, 0, 0, 1, -1, -0.5])
    with pytest.raises(ValueError, match="one stream"):
        running_mean_advantages(STREAM, window=8, prompt_E=prompts, history=STREAM)


def test_grpo_divides_by_the_group_spread_and_dr_grpo_does_not():
    rewards = torch.tensor([1.0, 0, 0, 1, 1, 1, 0.5])
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    # Group 0: mean 0.5, sample variance 4 * 0.25 / 3, std 0.577350.
    grpo = group_normalised(rewards, groups, epsilon=0.0 + 1e-12)
    assert grpo.tolist() == pytest.approx([0.866025, -0.866025, -0.866025, 0.866025, 0, 0, 0], abs=1e-6)
    dr_grpo = group_normalised(rewards, groups, divide_by_std=False)
    assert dr_grpo.tolist() == pytest.approx([0.5, -0.5, -0.5, 0.5, 0, 0, 0], abs=1e-6)


def test_whitening_looks_at_action_tokens_only():
    advantages = torch.tensor([[1.0, 3.0, float("nan")], [5.0, 7.0, 99.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    white = whiten(advantages, mask)
    # Mean 4, population variance 5.
    assert white[:, :2].flatten().tolist() == pytest.approx([-1.341641, -0.447214, 0.447214, 1.341641], abs=1e-6)
    assert white[:, 2].tolist() == [0, 0]
    assert not whiten(advantages, torch.zeros_like(mask)).any()


@given(st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=12), st.integers(1, 11))
@settings(max_examples=40, deadline=None)
def test_whitening_by_parts_equals_whitening_the_step(values, cut):
    step = torch.tensor(values)
    mask = torch.ones_like(step)
    cut = min(cut, len(values) - 1)
    over = moments(step[:cut], mask[:cut]).plus(moments(step[cut:], mask[cut:]))
    parts = torch.cat([whiten(step[:cut], mask[:cut], over=over), whiten(step[cut:], mask[cut:], over=over)])
    assert torch.allclose(parts, whiten(step, mask), atol=1e-5)


MASK = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 0]])
VALUES = torch.tensor([[0.2, 0.4, 9.0, 0.3, 0.6, 0.9, 9.0, 9.0]])


@pytest.mark.parametrize(("value_of", "turn_values"), [("mean", (0.3, 0.6)), ("last", (0.4, 0.9))])
def test_step_level_values_give_one_advantage_a_turn(value_of, turn_values):
    rewards = terminal_rewards(torch.tensor([1.0]), MASK)
    advantages = step_level_gae(VALUES, MASK, rewards, gamma=1.0, lam_B=torch.tensor([0.5]), value_of=value_of)
    first, second = turn_values
    last = 1.0 - second
    expected_first = second - first + 0.5 * last
    assert advantages[0].tolist() == pytest.approx([expected_first] * 2 + [0] + [last] * 3 + [0, 0], abs=1e-6)


def test_turns_without_an_observation_between_them_need_their_numbers():
    mask = torch.ones(1, 4, dtype=torch.int)
    values = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    rewards = terminal_rewards(torch.tensor([1.0]), mask)
    apart = step_level_gae(
        values, mask, rewards, gamma=1.0, lam_B=1.0, value_of="mean", turn_BT=torch.tensor([[0, 0, 1, 1]])
    )
    assert apart[0].tolist() == pytest.approx([0.85, 0.85, 0.65, 0.65])
    merged = step_level_gae(values, mask, rewards, gamma=1.0, lam_B=1.0, value_of="mean")
    assert merged[0].tolist() == pytest.approx([0.75] * 4)


def test_turns_of_one_token_are_token_level_gae():
    mask = torch.tensor([[1, 0, 1, 0, 0, 1]])
    values = torch.tensor([[0.3, 9, 0.1, 9, 9, 0.7]])
    rewards = terminal_rewards(torch.tensor([1.0]), mask)
    step = step_level_gae(values, mask, rewards, gamma=0.9, lam_B=torch.tensor([0.8]), value_of="mean")
    token = skip_observation_gae(values, mask, rewards, gamma=0.9, lam_B=torch.tensor([0.8]))
    assert torch.allclose(step, token)
