"""What the paper's tables are made of: cells, each measured on its own and kept under all that determines it."""

from attree.paper.cells.base import Cell, Result, Trained
from attree.paper.cells.cell_context import CellContext
from attree.paper.cells.explanation import Explanation
from attree.paper.cells.faithfulness import Faithfulness
from attree.paper.cells.heads import HeadSelection
from attree.paper.cells.proximity import Proximity
from attree.paper.cells.speed import Calculation

__all__ = [
    "Calculation",
    "Cell",
    "CellContext",
    "Explanation",
    "Faithfulness",
    "HeadSelection",
    "Proximity",
    "Result",
    "Trained",
]
