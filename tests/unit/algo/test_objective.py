"""Recipes are data; the numbers come from the parts they name."""

from __future__ import annotations

import pytest
import torch

from online_agent.algo.objective import aggregate, distances, quantile_of, surrogate
from online_agent.algo.trust_regions import decoupled_ppo, dis, sat_threshold
from online_agent.recipes import RECIPES, find_recipe
from online_agent.recipes.parts import Dis, MaskAndClip, PpoClip, Sat, SatGspo

LOGP_MU = torch.tensor([[-1.0, -2.0, -0.5], [-0.3, -1.5, -2.5]], dtype=torch.float64)
LOGP = LOGP_MU + torch.tensor([[0.1, -0.4, 2.0], [0.0, 0.3, -2.0]], dtype=torch.float64)
ADVANTAGES = torch.tensor([[1.0, -1, 1], [0.5, 2, -1]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [0, 1, 1]])


def test_sao_is_direct_importance_sampling_in_the_coding_band_over_all_action_tokens():
    sao = find_recipe("sao")
    result = surrogate(sao.trust_region, LOGP, LOGP_MU, ADVANTAGES, MASK)
    expected = dis(LOGP, LOGP_MU, ADVANTAGES, MASK, eps_low=0.8, eps_high=3.0)
    assert torch.equal(result.per_token_loss, expected.per_token_loss)
    assert result.kept_mask.tolist() == [[True, True, False], [False, True, False]]
    loss = aggregate(sao.aggregation, result, MASK, 5)
    assert loss.item() == pytest.approx(expected.per_token_loss.sum().item() / 5)


def test_ppo_ewma_masks_and_clips_around_the_average_policy():
    region = find_recipe("ppo-ewma").trust_region
    prox = 0.5 * (LOGP + LOGP_MU)
    result = surrogate(region, LOGP, LOGP_MU, ADVANTAGES, MASK, logp_prox=prox)
    expected = decoupled_ppo(
        LOGP, LOGP_MU, ADVANTAGES, MASK, logp_prox=prox, eps_low=0.2, eps_high=0.2, max_discrepancy=2.0
    )
    assert torch.equal(result.per_token_loss, expected.per_token_loss)


def test_dis_against_an_average_judges_pi_by_it_drops_what_it_left_behind_and_weighs_by_the_whole_ratio():
    """mu .1 everywhere; prox/mu 1, 1, 3, 1.5; pi/prox 3, 5, 1, 2 with the band (.2, 4) and c = 2."""
    mu = torch.full((4,), 0.1, dtype=torch.float64)
    prox = mu * torch.tensor([1.0, 1.0, 3.0, 1.5], dtype=torch.float64)
    logp = (prox * torch.tensor([3.0, 5.0, 1.0, 2.0], dtype=torch.float64)).log().requires_grad_()
    one = torch.ones(4, dtype=torch.float64)

    result = surrogate(Dis(), logp, mu.log(), one, one, logp_prox=prox.log())
    result.per_token_loss.sum().backward()

    assert result.kept_mask.tolist() == [True, False, False, True]
    assert logp.grad.tolist() == pytest.approx([-3.0, 0, 0, -3.0])
    sides = {key: result.metrics[key].item() for key in ("num_masked_low", "num_masked_high")}
    assert sides == {"num_masked_low": 0, "num_masked_high": 2}


def test_dis_against_the_engine_s_own_log_probs_is_plain_dis():
    plain = surrogate(Dis(), LOGP, LOGP_MU, ADVANTAGES, MASK)
    named = surrogate(Dis(), LOGP, LOGP_MU, ADVANTAGES, MASK, logp_prox=LOGP_MU)
    assert torch.equal(named.per_token_loss, plain.per_token_loss)


def test_mask_and_clip_against_the_engine_s_log_probs_is_ppo():
    """The discrepancy is then 1: nothing is masked and every weight is 1."""
    ours = surrogate(MaskAndClip(), LOGP, LOGP_MU, ADVANTAGES, MASK)
    assert torch.equal(ours.per_token_loss, surrogate(PpoClip(), LOGP, LOGP_MU, ADVANTAGES, MASK).per_token_loss)


def test_a_threshold_that_is_not_given_is_that_of_the_tokens_at_hand():
    d = torch.tensor([[0.1, 0.4, 2.0], [0.0, 0.3, 2.0]], dtype=torch.float64)
    assert quantile_of(Sat(quantile=0.5), LOGP, LOGP_MU, MASK).item() == pytest.approx(0.4)
    assert torch.equal(quantile_of(Sat(), LOGP, LOGP_MU, MASK), sat_threshold(d, MASK, quantile=0.9).to(d))
    implicit = surrogate(Sat(quantile=0.5), LOGP, LOGP_MU, ADVANTAGES, MASK)
    explicit = surrogate(Sat(quantile=0.5), LOGP, LOGP_MU, ADVANTAGES, MASK, threshold=torch.tensor(0.4))
    torch.testing.assert_close(implicit.per_token_loss, explicit.per_token_loss, rtol=1e-6, atol=1e-8)


def test_the_distance_of_a_token_on_a_sequence_is_the_mean_of_its_episode():
    d = distances(SatGspo(), LOGP, LOGP_MU, MASK)
    torch.testing.assert_close(d, torch.tensor([[1.7 / 3] * 3, [0, -0.85, -0.85]], dtype=torch.float64))


def test_a_sequence_mean_is_the_mean_over_episodes_of_the_term_their_tokens_share():
    """rho = exp(.05), exp(-.02); A = 1, -1; inside the clip: loss = -(e^.05 - e^-.02) / 2, one term per sequence."""
    mu = torch.full((2, 3), -1.0, dtype=torch.float64)
    logp = mu + torch.tensor([[0.05], [-0.02]], dtype=torch.float64)
    advantages = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand(2, 3)
    region = find_recipe("gspo").trust_region.__class__(eps_low=0.2, eps_high=0.2)
    result = surrogate(region, logp, mu, advantages, torch.tensor([[1, 1, 1], [0, 1, 1]]))

    by_sequence = aggregate("sequence_mean", result, torch.tensor([[1, 1, 1], [0, 1, 1]]), 2)

    assert by_sequence.item() == pytest.approx(-(1.0512710963760241 - 0.9801986733067553) / 2)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_every_named_recipe_gives_a_finite_loss_with_a_gradient(recipe):
    logp = LOGP.clone().requires_grad_()
    result = surrogate(recipe.trust_region, logp, LOGP_MU, ADVANTAGES, MASK, logp_prox=0.5 * (LOGP + LOGP_MU))
    num_kept = int(result.kept_mask.sum())
    denominators = {"global_token_mean": 5, "kept_token_mean": num_kept, "per_episode_mean": 2, "sequence_mean": 2}
    loss = aggregate(recipe.aggregation, result, MASK, denominators[recipe.aggregation])
    loss.backward()
    assert torch.isfinite(loss)
    assert logp.grad[MASK == 0].abs().sum() == 0
    assert (num_kept == 0) == (logp.grad.abs().sum().item() == 0)
