import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from online_agent.algo.advantages import policy_lambda, skip_observation_gae
from online_agent.learner.batching import MIN_SHARED_TOKENS, collate, num_fed_tokens, plan, unfit_reason
from tests.fakes.training_episodes import episode, random_episodes

CPU = torch.device("cpu")


def advantages(batch, values_N, gamma, lam):
    values_BP = batch.to_rows(torch.tensor(values_N))
    out = skip_observation_gae(values_BP, batch.action_mask_BP, batch.rewards_BP, gamma=gamma, lam_B=lam)
    return out[batch.action_mask_BP].tolist()


def test_the_last_action_token_is_a_target_and_nothing_after_it_is_fed():
    batch = collate([episode([7, 8, 9, 10, 11, 12], [0, 0, 1, 1, 0, 0])], (0,), CPU)

    assert batch.token_ids_BT.tolist() == [[7, 8, 9]]
    assert batch.targets_N.tolist() == [9, 10]
    assert batch.positions_N.tolist() == [1, 2]


def test_values_are_read_before_the_token_and_shifted_once():
    """C03: raw outputs 10..50 per position, response mask [1, 1, 0] after a prompt of two: values are 20 and 30."""
    batch = collate([episode([1, 2, 3, 4, 5], [0, 0, 1, 1, 0])], (0,), CPU)
    raw = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0], requires_grad=True)

    values_N = raw[: batch.token_ids_BT.numel()][batch.positions_N]
    values_N.sum().backward()

    assert values_N.tolist() == [20.0, 30.0]
    assert raw.grad.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]


def test_a_final_reward_reaches_the_last_action_though_the_episode_ends_with_an_observation():
    """C01 with gamma 1 and 0.9, lambda 0.5."""
    batch = collate([episode([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 1, 0, 0, 0, 1, 0])], (0,), CPU)

    assert advantages(batch, [0.2, 0.4, 0.5], 1.0, 0.5) == pytest.approx([0.375, 0.35, 0.5], abs=1e-6)
    assert advantages(batch, [0.2, 0.4, 0.5], 0.9, 0.5) == pytest.approx([0.28375, 0.275, 0.5], abs=1e-6)


def test_padding_neither_takes_the_reward_nor_moves_it():
    """C02: three actions, alone and beside a longer row."""
    short = episode([9, 1, 2, 3], [0, 1, 1, 1])
    longer = episode([9] + [1] * 7, [0] + [1] * 7, reward=0.0)
    alone = collate([short], (0,), CPU)
    padded = collate([longer, short], (0, 1), CPU)

    assert advantages(alone, [0.1, 0.2, 0.3], 1.0, 1.0) == pytest.approx([0.9, 0.8, 0.7])
    assert advantages(padded, [0.0] * 7 + [0.1, 0.2, 0.3], 1.0, 1.0)[7:] == pytest.approx([0.9, 0.8, 0.7])


def test_the_lambda_rule_counts_action_tokens_only():
    batch = collate([episode([0] * 9, [0, 1, 1, 0, 0, 0, 1, 0, 0])], (0,), CPU)

    assert policy_lambda(batch.num_actions_B, 1.5).tolist() == pytest.approx([1 - 1 / 4.5])


def test_each_token_carries_the_temperature_of_its_own_episode():
    hot = episode([0, 1, 2], [0, 1, 1], temperature=1.3)
    cold = episode([0, 1, 2, 3], [0, 0, 0, 1], temperature=0.5)

    assert collate([hot, cold], (1, 0), CPU).temperature_N.tolist() == pytest.approx([0.5, 1.3, 1.3])


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.integers(1, 200),
    st.integers(1, 4),
)
def test_every_episode_lies_in_exactly_one_micro_batch_within_the_budget(lengths, max_tokens, world_size):
    episodes = [episode([0] * (n + 1), [0] * n + [1]) for n in lengths]

    plans = [plan(episodes, max_tokens=max_tokens, rank=r, world_size=world_size) for r in range(world_size)]

    assert sorted(i for batches in plans for rows in batches for i in rows) == list(range(len(lengths)))
    assert len({len(batches) for batches in plans}) == 1
    for rows in (rows for batches in plans for rows in batches if rows):
        assert len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= max_tokens


def test_a_filler_has_a_token_and_no_action():
    batch = collate([episode([0, 1], [0, 1])], (), CPU)

    assert batch.token_ids_BT.tolist() == [[0]]
    assert batch.positions_N.numel() == batch.targets_N.numel() == 0


def test_a_common_beginning_is_found_up_to_the_state_before_the_first_action():
    same = list(range(100, 120))
    early = episode([*same, 1, 2], [0] * 15 + [1] + [0] * 5 + [1])
    late = episode([*same, 3, 4], [0] * 20 + [1, 1])

    assert collate([early, late], (0, 1), CPU).num_shared == 14
    assert collate([late, late], (0, 1), CPU).num_shared == 19
    assert collate([late], (0,), CPU).num_shared == 0


def test_a_short_common_beginning_is_not_worth_a_pass():
    rows = [episode([*range(MIN_SHARED_TOKENS - 1), 50 + i, 1, 2], [0] * (MIN_SHARED_TOKENS + 1) + [1]) for i in (0, 1)]

    assert collate(rows, (0, 1), CPU).num_shared == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reward": float("nan")}, "episode e1: reward is nan"),
        ({"reward": float("inf")}, "episode e1: reward is inf"),
        ({"temperature": 0.0}, "episode e1: temperature 0.0"),
        ({"token_ids": np.array([1, 2, 500], np.int32)}, "episode e1: a token id is outside the vocabulary of 500"),
        ({"token_ids": np.array([1, -2, 5], np.int32)}, "episode e1: a token id is outside the vocabulary of 500"),
        ({"logprobs": np.array([0, np.nan, -1], np.float32)}, "episode e1: a rollout log-prob is not finite"),
        ({"action_mask": np.array([True, True, False])}, "episode e1: its first token is an action"),
    ],
)
def test_a_batch_that_cannot_be_trained_on_names_the_episode_and_the_value(change, words):
    good = episode([1, 2, 3], [0, 1, 1], id="e0")
    bad = dataclasses.replace(episode([1, 2, 3], [0, 1, 1], id="e1"), **change)

    assert unfit_reason([good, bad], 500).startswith(words)
    assert unfit_reason([good], 500) is None


def test_a_batch_without_any_action_is_empty():
    assert unfit_reason([episode([1, 2], [0, 0])], 500) == "empty batch: no action token"
    assert unfit_reason([], 500) == "empty batch: no action token"


def test_random_episodes_are_fed_up_to_their_last_action():
    for made in random_episodes(20, 50):
        assert made.action_mask[num_fed_tokens(made)]
        assert not made.action_mask[num_fed_tokens(made) + 1 :].any()
