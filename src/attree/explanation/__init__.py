"""One prediction explained: which edges it rests on, in a sentence, a picture, a table and files."""

from attree.explanation.explain import explain
from attree.explanation.explanation import EdgeEffect, TargetExplanation

__all__ = ["EdgeEffect", "TargetExplanation", "explain"]
