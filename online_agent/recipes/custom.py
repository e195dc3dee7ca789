"""Recipes of one's own: a named one with some of its parts replaced, as ``[recipes.NAME]`` in TOML."""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, field_validator

from online_agent.errors import UnknownName
from online_agent.recipes.named import RECIPES, Recipe, find_recipe
from online_agent.recipes.parts import Advantage, Aggregation, Ewma, Reference, TrustRegion


class RecipeTable(BaseModel):
    """``base`` names the recipe to start from; every part given replaces that of the base as a whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: str
    advantage: Advantage | None = None
    reference: Reference | None = None
    trust_region: TrustRegion | None = None
    aggregation: Aggregation | None = None
    replays_routing: bool | None = None
    watched_average: Ewma | None = None

    @field_validator("base")
    @classmethod
    def _is_known(cls, base: str) -> str:
        if base not in RECIPES:
            raise ValueError(f"unknown recipe; known: {', '.join(sorted(RECIPES))}")
        return base

    def composed(self, name: str) -> Recipe:
        """The recipe this table describes, under ``name``."""
        given = {key: getattr(self, key) for key in type(self).model_fields if key != "base"}
        return replace(
            find_recipe(self.base), name=name, **{key: part for key, part in given.items() if part is not None}
        )


def choose_recipe(name: str, tables: dict[str, RecipeTable]) -> Recipe:
    """The recipe of that name, one's own or a named one. Raises UnknownName listing both kinds."""
    if name in tables:
        return tables[name].composed(name)
    if name in RECIPES:
        return RECIPES[name]
    raise UnknownName(
        f"unknown recipe {name!r}; known: {', '.join(sorted({*RECIPES, *tables}))}", param="learner.recipe"
    )
