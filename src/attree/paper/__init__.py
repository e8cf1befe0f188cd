"""The paper's own settings and printed numbers."""

from attree.paper.recipes import RECIPES, Recipe, recipe

__all__ = ["RECIPES", "Recipe", "recipe"]
