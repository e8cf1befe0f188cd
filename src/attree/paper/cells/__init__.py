"""What the paper's tables are made of: cells, each measured on its own and kept under all that determines it."""

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
