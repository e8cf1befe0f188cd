"""Explain one prediction: the edges that it depends on, as a sentence, a figure, a table and files."""

from attree.explanation.explain import explain
from attree.explanation.explanation import NodeScore, TargetExplanation
from attree.explanation.sentence import EdgeEffect

__all__ = ["EdgeEffect", "NodeScore", "TargetExplanation", "explain"]
