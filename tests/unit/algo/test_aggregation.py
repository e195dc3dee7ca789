"""Denominators: the loss must not depend on how the step is cut."""

from __future__ import annotations

import pytest
import torch

from online_agent.algo.aggregation import global_token_mean, kept_token_mean, per_episode_mean


@pytest.mark.parametrize("cuts", [[(0, 1), (1, 4)], [(0, 2), (2, 4)], [(0, 4)]], ids=["1|3", "2|2", "unsplit"])
def test_c06_accumulated_loss_and_gradient_do_not_depend_on_micro_batches(cuts):
    losses = torch.tensor([4.0, 0, 0, 0], requires_grad=True)
    for start, end in cuts:
        part = losses[start:end]
        global_token_mean(part, torch.ones(end - start), 4).backward(retain_graph=True)
    total = sum(global_token_mean(losses[s:e], torch.ones(e - s), 4).item() for s, e in cuts)
    assert total == 1.0
    assert losses.grad.tolist() == [0.25] * 4


def test_the_denominator_counts_every_action_token_and_kept_is_an_option():
    loss = torch.tensor([[2.0, 0, 4.0, 9.0]])
    mask, kept = torch.tensor([[1, 1, 1, 0]]), torch.tensor([[1, 0, 1, 0]])
    assert global_token_mean(loss, mask, mask.sum()).item() == 2.0
    assert kept_token_mean(loss, kept, kept.sum()).item() == 3.0


def test_episodes_weigh_the_same_whatever_their_length():
    loss = torch.tensor([[3.0, 9.0, 9.0], [1.0, 2.0, 3.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0]])
    assert per_episode_mean(loss, mask, 2).item() == 2.5
    rows = [per_episode_mean(loss[i : i + 1], mask[i : i + 1], 2).item() for i in range(3)]
    assert sum(rows) == 2.5
    packed = per_episode_mean(
        loss.reshape(1, -1), mask.reshape(1, -1), 2, episode_BT=torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2, 2]])
    )
    assert packed.item() == 2.5


@pytest.mark.parametrize("reduce", [global_token_mean, kept_token_mean, per_episode_mean])
@pytest.mark.parametrize("denominator", [0, torch.tensor(0)])
def test_nothing_to_average_is_a_finite_zero_without_gradient(reduce, denominator):
    loss = torch.full((2, 3), float("nan"), requires_grad=True)
    result = reduce(loss, torch.zeros(2, 3), denominator)
    assert result.item() == 0
    result.backward()
    assert loss.grad.tolist() == [[0, 0, 0], [0, 0, 0]]
