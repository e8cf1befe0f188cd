"""The paper's own settings, weights and printed numbers."""

from attree.paper.authors import load_authors_gat
from attree.paper.recipes import RECIPES, Recipe, recipe

__all__ = ["RECIPES", "Recipe", "load_authors_gat", "recipe"]
