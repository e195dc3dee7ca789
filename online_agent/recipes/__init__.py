"""What an objective is composed of, as data: parts, and the recipes that name a composition. No torch."""

from online_agent.recipes.custom import RecipeTable, choose_recipe
from online_agent.recipes.named import RECIPES, Recipe, find_recipe

__all__ = ["RECIPES", "Recipe", "RecipeTable", "choose_recipe", "find_recipe"]
