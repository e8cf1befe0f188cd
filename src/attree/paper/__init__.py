"""Reproduction of the paper: recipes, the authors' weights, printed numbers, tables and figures."""
