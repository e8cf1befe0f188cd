"""Cells: the cached measurements that the paper's tables are made from."""

from attree.paper.cells.base import Cell, CellContext, Result, Trained
from attree.paper.cells.explanation import Calculation, Explanation
from attree.paper.cells.faithfulness import FaithfulnessCell, HeadSelection
from attree.paper.cells.proximity import Proximity

__all__ = [
    "Calculation",
    "Cell",
    "CellContext",
    "Explanation",
    "FaithfulnessCell",
    "HeadSelection",
    "Proximity",
    "Result",
    "Trained",
]
