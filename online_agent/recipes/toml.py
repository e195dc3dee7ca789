"""A recipe as the ``[recipes.NAME]`` table that would compose it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from online_agent.recipes.named import RECIPES, Recipe

_PARTS = ("advantage", "reference", "trust_region", "watched_average")


def as_toml(recipe: Recipe) -> str:
    """Every number of every part, under a name of one's own where the recipe has one that is taken."""
    name = f"my-{recipe.name}" if recipe.name in RECIPES else recipe.name
    base = recipe.name if recipe.name in RECIPES else "sao"
    lines = [f"[recipes.{name}]", f"base = {_value(base)}"]
    lines += [f"{part} = {_value(asdict(getattr(recipe, part)))}" for part in _PARTS]
    lines += [f"aggregation = {_value(recipe.aggregation)}", f"replays_routing = {_value(recipe.replays_routing)}"]
    return "\n".join(lines) + "\n"


def composition(recipe: Recipe) -> dict[str, str]:
    """The kind of each part, for a table of recipes; K is the number of critic updates.

    What tells recipes of the same kinds apart stands with the part: a critic whose attention trains, routing replay.
    """
    critic = recipe.critic
    is_unfrozen = critic is not None and not critic.is_attention_frozen
    return {
        "name": recipe.name,
        "advantage": recipe.advantage.kind + ", unfrozen" * is_unfrozen,
        "K": "-" if critic is None else str(critic.updates),
        "reference": recipe.reference.kind,
        "trust region": recipe.trust_region.kind + ", replayed" * recipe.replays_routing,
        "aggregation": recipe.aggregation,
    }


def _value(value: object) -> str:
    """TOML has no null: numbers left unset are left out."""
    if isinstance(value, Mapping):
        entries = (f"{key} = {_value(each)}" for key, each in value.items() if each is not None)
        return "{" + ", ".join(entries) + "}"
    return json.dumps(value)
