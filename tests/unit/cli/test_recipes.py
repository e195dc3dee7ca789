"""The recipes there are, and one of them as TOML that loads again."""

from __future__ import annotations

import json

import pytest

from online_agent.config.settings import load_settings
from online_agent.recipes import RECIPES
from online_agent.recipes.toml import as_toml


def test_every_recipe_is_listed_with_its_parts(run):
    shown = json.loads(run("recipes", "--json").output)
    assert [row["name"] for row in shown] == list(RECIPES)
    sat = next(row for row in shown if row["name"] == "sat-grpo")
    assert sat == {
        "name": "sat-grpo",
        "advantage": "group_normalised",
        "K": "-",
        "reference": "engine",
        "trust region": "sat",
        "aggregation": "per_episode_mean",
    }
    assert all(name in run("recipes").output for name in ("sao-ewma", "skip observation"))


def test_no_two_recipes_look_alike(run):
    rows = [tuple(row.values())[1:] for row in json.loads(run("recipes", "--json").output)]
    assert [row for row in rows if rows.count(row) > 1] == []


def test_an_own_recipe_is_listed_too_and_an_unknown_one_is_told(run, tmp_path, monkeypatch):
    path = tmp_path / "own.toml"
    path.write_text('[recipes.mine]\nbase = "grpo"\n')
    monkeypatch.setenv("ONLINE_AGENT_CONFIG", str(path))
    assert "mine" in run("recipes").output
    assert json.loads(run("recipes", "mine", "--json").output)["trust_region"]["eps_high"] == 0.28
    assert "unknown recipe 'soa'" in str(run("recipes", "soa").exception)


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_shown_as_toml_composes_the_same_recipe(tmp_path, name):
    path = tmp_path / "shown.toml"
    path.write_text(as_toml(RECIPES[name]))

    loaded = load_settings(path).recipes[f"my-{name}"].composed(name)

    assert loaded == RECIPES[name]
