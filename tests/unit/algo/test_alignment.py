"""The one shift between network outputs and tokens, and log-probs at the sampling temperature."""

from __future__ import annotations

import pytest
import torch

from online_agent.algo.aggregation import global_token_mean
from online_agent.algo.alignment import token_log_probs, values_before_tokens
from online_agent.algo.values import explained_variance, value_loss


def critic_gradient(outputs, mask, targets):
    outputs = outputs.clone().requires_grad_()
    loss = global_token_mean(value_loss(values_before_tokens(outputs), targets, mask), mask, float(mask.sum()))
    loss.backward()
    return loss.item(), outputs.grad


def test_c03_the_critic_learns_from_exactly_its_two_action_tokens():
    # [p0, p1 | a0, a1, PAD]; the output at a position is the value after its token.
    outputs = torch.tensor([[10.0, 20, 30, 40, 50]])
    mask = torch.tensor([[0, 0, 1, 1, 0]])
    assert values_before_tokens(outputs)[mask.bool()].tolist() == [20, 30]
    targets = torch.tensor([[0.0, 0, 19, 27, 0]])
    loss, gradient = critic_gradient(outputs, mask, targets)
    # Mean of (20-19)^2 and (30-27)^2; gradient 2 (V - R) / 2.
    assert loss == pytest.approx(5.0)
    assert gradient.tolist() == [[0, 1, 3, 0, 0]]


def test_c03_left_padding_changes_no_number():
    outputs = torch.tensor([[10.0, 20, 30, 40, 50]])
    mask = torch.tensor([[0, 0, 1, 1, 0]])
    targets = torch.tensor([[0.0, 0, 19, 27, 0]])

    def pad(x, value):
        return torch.nn.functional.pad(x, (3, 0), value=value)

    loss, gradient = critic_gradient(outputs, mask, targets)
    padded_loss, padded_gradient = critic_gradient(pad(outputs, 77.0), pad(mask, 0), pad(targets, 5.0))
    assert padded_loss == loss
    assert torch.equal(padded_gradient[:, 3:], gradient)
    assert not padded_gradient[:, :3].any()


def test_the_first_token_of_a_turn_takes_its_value_from_the_last_observation_token():
    outputs = torch.tensor([[0.0, 1, 2, 3, 4]])
    action, observation, action_again = [0, 1], [2, 3], [4]
    values = values_before_tokens(outputs)
    assert values[0, action_again].item() == outputs[0, observation[-1]].item()
    assert values[0, action].tolist() == [0, 0]


def test_c07_both_sides_divide_by_the_sampling_temperature():
    logits = torch.tensor([[[2.0, 1, 0], [0, 0, 0]]], dtype=torch.float64)
    tokens = torch.tensor([[1, 0]])
    at_half = token_log_probs(logits, tokens, torch.tensor([0.5]))[0, 1]
    at_one = token_log_probs(logits, tokens, torch.tensor([1.0]))[0, 1]
    assert at_half.item() == pytest.approx(-0.142932, abs=1e-6)
    assert (at_one - at_half).exp().item() == pytest.approx(0.767456, abs=1e-6), "the mixture that must not happen"


def test_c07_a_batch_of_mixed_temperatures_has_ratio_one_before_any_update():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 6, 11, generator=generator)
    tokens = torch.randint(0, 11, (4, 6), generator=generator)
    temperatures = torch.tensor([0.5, 0.7, 1.0, 1.3])
    trainer = token_log_probs(logits, tokens, temperatures)
    for row, temperature in enumerate(temperatures):
        engine = torch.log_softmax(logits[row] / temperature, -1)
        for position in range(1, 6):
            recorded = engine[position - 1, tokens[row, position]]
            assert (trainer[row, position] - recorded).exp().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_c07_greedy_tokens_are_refused_for_training(temperature):
    with pytest.raises(ValueError, match="temperature must be above 0"):
        token_log_probs(torch.zeros(1, 2, 3), torch.zeros(1, 2), torch.tensor([temperature]))


def test_half_precision_logits_give_single_precision_log_probs():
    logits = torch.zeros(1, 2, 4, dtype=torch.bfloat16)
    logp = token_log_probs(logits, torch.tensor([[0, 3]]), torch.tensor([1.0]))
    assert logp.dtype == torch.float32
    assert logp[0].tolist() == pytest.approx([0, -1.386294], abs=1e-6)


def test_the_value_clip_never_lowers_the_loss():
    values, old, targets = torch.tensor([1.0, 0.1]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])
    mask = torch.ones(2)
    assert value_loss(values, targets, mask).tolist() == pytest.approx([0, 0.81])
    clipped = value_loss(values, targets, mask, old_values=old, clip=0.2)
    assert clipped.tolist() == pytest.approx([0.64, 0.81]), "a jump of 1.0 counts as one of 0.2"
    with pytest.raises(ValueError, match="before the update"):
        value_loss(values, targets, mask, clip=0.2)


def test_explained_variance_of_a_perfect_a_constant_and_an_empty_critic():
    targets, mask = torch.tensor([0.0, 1.0, 9.0]), torch.tensor([1, 1, 0])
    assert explained_variance(torch.tensor([0.0, 1.0, 0.0]), targets, mask).item() == 1
    assert explained_variance(torch.tensor([0.5, 0.5, 0.0]), targets, mask).item() == 0
    assert explained_variance(torch.tensor([1.0, 0.0, 0.0]), targets, mask).item() == -3
    assert explained_variance(targets, targets, torch.zeros(3)).isnan()
    assert explained_variance(targets, torch.ones(3), mask).isnan(), "nothing to explain"
    assert explained_variance(targets, torch.tensor([1.0, 1 + 2**-23, 0.0]), mask).isnan(), "only rounding to explain"
