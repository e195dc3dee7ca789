"""Recipes are data; the numbers come from the parts they name."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from online_agent.algo import recipes
from online_agent.algo.recipes import RECIPES, aggregate, find_recipe, surrogate
from online_agent.algo.trust_regions import decoupled_ppo, dis
from online_agent.errors import UnknownName

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
    assert sao.advantage == recipes.SkipObservationGae(alpha=1.5, gamma=1.0, critic_lambda=1.0)
    assert sao.has_critic


def test_sao_ewma_masks_and_clips_around_the_average_policy():
    region = find_recipe("sao-ewma").trust_region
    prox = 0.5 * (LOGP + LOGP_MU)
    result = surrogate(region, LOGP, LOGP_MU, ADVANTAGES, MASK, logp_prox=prox)
    expected = decoupled_ppo(LOGP, LOGP_MU, ADVANTAGES, MASK, logp_prox=prox, eps=0.2, max_discrepancy=2.0)
    assert torch.equal(result.per_token_loss, expected.per_token_loss)
    with pytest.raises(ValueError, match="proximal"):
        surrogate(region, LOGP, LOGP_MU, ADVANTAGES, MASK)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_every_named_recipe_gives_a_finite_loss_with_a_gradient(recipe):
    logp = LOGP.clone().requires_grad_()
    result = surrogate(recipe.trust_region, logp, LOGP_MU, ADVANTAGES, MASK, logp_prox=0.5 * (LOGP + LOGP_MU))
    num_kept = int(result.kept_mask.sum())
    denominator = {"global_token_mean": 5, "kept_token_mean": num_kept, "per_episode_mean": 2}[recipe.aggregation]
    loss = aggregate(recipe.aggregation, result, MASK, denominator)
    loss.backward()
    assert torch.isfinite(loss)
    assert logp.grad[MASK == 0].abs().sum() == 0
    assert (num_kept == 0) == (logp.grad.abs().sum().item() == 0)


def test_critic_free_recipes_say_so():
    assert {name for name, recipe in RECIPES.items() if not recipe.has_critic} == {
        "running-mean-dis",
        "grpo",
        "grpo-dis",
        "gspo",
        "cispo",
    }


def test_an_unknown_recipe_names_the_known_ones():
    with pytest.raises(UnknownName, match="'soa'; known: cispo"):
        find_recipe("soa")


def test_recipes_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        find_recipe("sao").name = "other"
