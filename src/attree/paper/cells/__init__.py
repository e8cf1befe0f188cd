"""Cells: the cached measurements that the paper's tables are made from."""

from attree.paper.cells.base import Cell, CellContext, Result, Trained
from attree.paper.cells.explanation import CALCULATIONS, Calculation, Explanation
from attree.paper.cells.faithfulness import FaithfulnessCell, HeadSelection, Proximity, paper_targets

__all__ = [
    "CALCULATIONS",
    "Calculation",
    "Cell",
    "CellContext",
    "Explanation",
    "FaithfulnessCell",
    "HeadSelection",
    "Proximity",
    "Result",
    "Trained",
    "paper_targets",
]
