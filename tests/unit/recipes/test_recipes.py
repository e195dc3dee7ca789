"""Named compositions, own ones from TOML, and how a bad one is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pydantic import ValidationError

from online_agent.config.settings import load_settings
from online_agent.errors import ConfigError, UnknownName
from online_agent.recipes import RECIPES, find_recipe
from online_agent.recipes.parts import (
    Critic,
    Dis,
    Ewma,
    GroupNormalised,
    IcePop,
    MaskAndClip,
    PlainGae,
    PpoClip,
    SkipObservationGae,
)


def loaded(tmp_path: Path, text: str):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return load_settings(path)


def test_these_are_the_recipes_there_are():
    assert set(RECIPES) == {
        "sao", "sao-ewma", "grpo", "grpo-dis", "vapo", "gspo", "dppo", "ppo-bypass", "decoupled-exact",
        "decoupled-async", "ppo-ewma", "linear-prox", "loglinear-prox", "sat-grpo", "sat-gspo", "sat-gspo-r3",
        "running-mean", "sao-k1", "sao-unfrozen", "sao-plain-gae", "sao-step-mean",
    }  # fmt: skip


def test_sao_is_two_critic_updates_and_the_coding_band_against_the_engine():
    sao = find_recipe("sao")
    assert sao.advantage == SkipObservationGae(alpha=1.5, gamma=1.0, critic=Critic(updates=2))
    assert sao.trust_region == Dis(eps_low=0.8, eps_high=3.0)
    assert sao.aggregation == "global_token_mean"


def test_sao_ewma_keeps_the_band_and_ppo_ewma_clips():
    assert find_recipe("sao-ewma").trust_region == Dis()
    assert find_recipe("ppo-ewma").trust_region == MaskAndClip()
    assert find_recipe("sao-ewma").average is find_recipe("sao-ewma").reference


def test_critic_free_recipes_say_so():
    assert {name for name, recipe in RECIPES.items() if recipe.critic is None} == {
        "running-mean", "grpo", "grpo-dis", "gspo", "sat-grpo", "sat-gspo", "sat-gspo-r3",
    }  # fmt: skip


def test_only_group_recipes_have_a_group_size():
    sized = {name for name, recipe in RECIPES.items() if recipe.group_size}
    assert sized == {name for name, recipe in RECIPES.items() if isinstance(recipe.advantage, GroupNormalised)}


def test_an_unknown_recipe_names_the_known_ones():
    with pytest.raises(UnknownName, match="'soa'; known: decoupled-async"):
        find_recipe("soa")


def test_recipes_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        find_recipe("sao").name = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        find_recipe("sao").trust_region.eps_low = 0.1


@pytest.mark.parametrize(
    "make",
    [lambda: Dis(eps_low=1.0), lambda: Critic(updates=0), lambda: IcePop(low=2.0), lambda: Ewma(tau=1.0)],
)
def test_a_number_out_of_bounds_is_refused_where_it_is_written(make):
    with pytest.raises(ValidationError):
        make()


def test_an_own_recipe_replaces_whole_parts_of_its_base(tmp_path):
    settings = loaded(
        tmp_path,
        """
        learner.recipe = "mine"
        [recipes.mine]
        base = "grpo"
        advantage = {kind = "plain_gae", alpha = 0.05, critic = {updates = 3}}
        aggregation = "kept_token_mean"
        """,
    )
    mine = settings.recipe
    assert mine.name == "mine"
    assert mine.advantage == PlainGae(alpha=0.05, critic=Critic(updates=3))
    assert mine.trust_region == PpoClip(eps_high=0.28), "the base's"
    assert mine.aggregation == "kept_token_mean"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('learner.recipe = "soa"', r"^learner\.recipe: unknown recipe 'soa'; known: decoupled-async"),
        ('[recipes.sao]\nbase = "sao"', r"^recipes\.sao: the name belongs to a recipe that exists"),
        ('[recipes.mine]\nbase = "soa"', r"^recipes\.mine\.base: unknown recipe; .*\(got 'soa', in .*\)$"),
        ('[recipes.mine]\naggregation = "kept_token_mean"', r"^recipes\.mine\.base: Field required"),
        ('[recipes.mine]\nbase = "sao"\ntrust_region = {kind = "dsi"}', r"^recipes\.mine\.trust_region: .*'dsi'"),
        ('[recipes.mine]\nbase = "sao"\ntrust_region = {kind = "dis", eps = 3}', r"\.dis\.eps: .*\(got 3, in .*\)$"),
        ('[recipes.mine]\nbase = "sao"\ntrust_region = {kind = "dis", eps_low = 3}', r"\.eps_low: .*\(got 3, in .*\)$"),
        (
            '[recipes.mine]\nbase = "sao"\ntrust_region = {kind = "dis", eps_high = inf}',
            r"finite number \(got inf, in .*\)$",
        ),
        (
            '[recipes.mine]\nbase = "sao"\nadvantage = {kind = "plain_gae", alpha = nan}',
            r"finite number \(got nan, in .*\)$",
        ),
        ('[recipes.mine]\nbase = "sao"\ntrust = "dis"', r"^recipes\.mine\.trust: Extra inputs.*\(got 'dis', in .*\)$"),
    ],
)
def test_a_bad_recipe_is_told_in_one_line_that_names_the_value(tmp_path, text, complaint):
    with pytest.raises(ConfigError, match=complaint) as caught:
        loaded(tmp_path, text)
    assert "\n" not in caught.value.message
