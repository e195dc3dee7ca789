"""``online-agent recipes``: what the learner can compute."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from online_agent.cli.output import AsJson, Column, Row, field, show_json, show_rows


def _words(title: str, row: Row) -> str:
    """Spaces instead of underscores, so that a narrow terminal breaks between words."""
    return str(row[title]).replace("_", " ")


_COLUMNS: tuple[Column, ...] = (
    field("name"),
    *((title, partial(_words, title)) for title in ("advantage", "K", "reference", "trust region", "aggregation")),
)


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this one as TOML, with every number.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes and what they are composed of, own ones included."""
    from dataclasses import asdict

    from online_agent.config.environment import settings_of_environment
    from online_agent.recipes import RECIPES, choose_recipe
    from online_agent.recipes.toml import as_toml, composition

    settings = settings_of_environment()
    if name is not None:
        recipe = choose_recipe(name, settings.recipes)
        if as_json:
            show_json(asdict(recipe))
        else:
            typer.echo(as_toml(recipe), nl=False)
        return
    every = [*RECIPES.values(), *(table.composed(own) for own, table in settings.recipes.items())]
    show_rows([composition(recipe) for recipe in every], _COLUMNS, as_json=as_json)
