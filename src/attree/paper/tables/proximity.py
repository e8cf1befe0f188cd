"""The tables of the proximity effect, and of the methods that take it into account."""

from __future__ import annotations

import pandas as pd
import torch

from attree.attention import Graph
from attree.attention.capture import Attention
from attree.attribution import make_methods
from attree.paper.cells import Cell, Proximity
from attree.paper.item import Item, ItemInputs, Options, Section, Table
from attree.paper.net import GRAPHS, PLANETOID, SYNTHETIC, WEBKB
from attree.paper.printed_numbers import add_printed

ORDER = (*SYNTHETIC, *PLANETOID, "Arxiv", *GRAPHS, *WEBKB)
"""The datasets in the order of the paper's table."""

LARGE = 2000
"""Number of targets on Arxiv, which has too many nodes to take all."""


def _cells(options: Options) -> list[Cell]:
    few = 1000 if options.quick else None
    return [
        Proximity(dataset, layers, few or (LARGE if dataset == "Arxiv" else None))
        for dataset in options.of_datasets(ORDER)
        for layers in (2, 3)
    ]


def _sections(made: ItemInputs) -> list[Section]:
    rows = []
    for cell in _cells(made.options):
        if isinstance(cell, Proximity) and cell in made.results:
            result = made.results[cell]
            for undefined, name in (("left out", "rho"), ("as 0", "rho_with_zeros")):
                rows.append(
                    {
                        "dataset": cell.name,
                        "layers": cell.layers,
                        "undefined": undefined,
                        "statistic": "spearman",
                        "ours": result[name],
                        "targets": result["targets"],
                        "defined": result["defined"],
                    }
                )
    if not rows:
        return []
    note = (
        "The paper does not say how high the trees are, what the distance of an edge is, which edges count, nor what "
        "becomes of targets where rho is undefined. Here: the mean of both ends' hops to the target, over all edges "
        "of the subgraph, self-loops included; targets without rho left out, or counted as 0."
    )
    paper = add_printed(pd.DataFrame(rows), "proximity")
    title = "Spearman's rho between an edge's distance and its occurrences, mean over targets"
    return [Table("proximity", title, paper, ("dataset",), ("layers", "undefined"), 3, (note,))]


def _no_cells(options: Options) -> list[Cell]:
    return []


def _properties(made: ItemInputs) -> list[Section]:
    """Test each method on the path 2 -> 1 -> 0 with target 0. In the tree, 1 -> 0 occurs twice and 2 -> 1 once."""
    graph = Graph(torch.tensor([[1, 2], [0, 1]]), num_nodes=3)
    near, far = 0, 1
    rows = []
    for name, method in make_methods(("gatt", "gatt_sim", "gatt_avg", "avgatt")).items():
        ones, weaker = torch.ones(graph.num_edges), torch.ones(graph.num_edges)
        weaker[near] = 0.1
        plain = method.attribute(Attention.from_weights(graph, [ones, ones]), 0).dense(0)
        behind_weak = method.attribute(Attention.from_weights(graph, [ones, weaker]), 0).dense(0)
        for quality, has in (
            ("P1, proximity effect", plain[near] > plain[far]),
            ("P2, contribution adjustment", behind_weak[far] < plain[far]),
        ):
            rows.append({"property": quality, "method": name, "ours": "yes" if has else "no"})
    notes = (
        "Measured on the path 2, 1, 0 with target 0 and two layers. P1: with all attention 1, the edge 1-0, which "
        "occurs twice in the tree, scores more than 2-1, which occurs once. P2: a smaller weight of 1-0 in the last "
        "layer lowers the score of 2-1, whose only flow goes through it.",
    )
    table = pd.DataFrame(rows)
    return [Table("properties", "What each method takes into account", table, ("property",), ("method",), 0, notes)]


ITEMS = (
    Item("proximity", _cells, _sections),
    Item("properties", _no_cells, _properties),
)
