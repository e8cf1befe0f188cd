"""The tables of datasets, training details, the proximity effect, and the properties of methods."""

from __future__ import annotations

import pandas as pd
import torch

from attree.attention import Graph
from attree.attention.capture import Attention
from attree.attribution import make_methods
from attree.data import NodeDataModule
from attree.errors import MissingDataError
from attree.paper.cells import Cell, Proximity, Trained
from attree.paper.networks import GRAPHS, PLANETOID, REAL, SYNTHETIC, WEBKB, Net
from attree.paper.printed_numbers import add_printed, printed, recipe
from attree.paper.report_items import Item, ItemInputs, Options, Section, Table, nets_of_seeds
from attree.paper.tables.rows import over_seeds

WHY_EDGES = (
    "BA-Shapes: the paper counts both directions of an edge as one. Cornell, Texas, Wisconsin: the paper does not "
    "count self-loops and repeated edges of the files."
)

ORDER = (*SYNTHETIC, *PLANETOID, "Arxiv", *GRAPHS, *WEBKB)
"""The datasets in the order of the paper's table."""

LARGE = 2000
"""Number of targets on Arxiv, which has too many nodes to use all."""


def _no_cells(options: Options) -> list[Cell]:
    return []


def _datasets(inputs: ItemInputs) -> list[Section]:
    """Return the table of the datasets' nodes, edges, features, classes and targets, beside the paper's counts."""
    rows = []
    for numbers in printed("datasets").to_dict("records"):
        name, _, depth = str(numbers["dataset"]).partition("-")
        dataset, layers = (name, int(depth)) if name == "Infection" else (str(numbers["dataset"]), 3)
        if dataset not in inputs.options.of_datasets((*REAL, *SYNTHETIC)):
            continue
        try:
            data = inputs.context.node_data(Net(dataset, layers=layers))
            counted = _counts(data)
        except MissingDataError:
            continue
        for quantity, ours in counted.items():
            paper = float(numbers[quantity])
            if ours is not None:
                row = {
                    "dataset": str(numbers["dataset"]),
                    "quantity": quantity,
                    "ours": float(ours),
                    "paper": paper,
                }
                rows.append(row)
    table = pd.DataFrame(rows)
    return [Table("datasets", "Counts (in brackets the paper's)", table, ("dataset",), ("quantity",), 0, (WHY_EDGES,))]


def _counts(data: NodeDataModule) -> dict[str, int | None]:
    return {
        "nodes": data.graph.num_nodes,
        "edges": data.graph.num_edges,
        "features": data.num_features,
        "classes": data.num_classes,
        "targets": None if data.truth is None else data.truth.num_targets,
    }


def _training_cells(options: Options) -> list[Cell]:
    nets = nets_of_seeds(options, options.of_datasets((*SYNTHETIC, *REAL)), options.of_models(("GAT", "GATv2")))
    return [Trained(net) for net in nets]


def _training(inputs: ItemInputs) -> list[Section]:
    """Return the table of training settings and test accuracy of all networks, beside the paper's accuracy."""
    rows = [
        {
            "dataset": cell.net.dataset,
            "model": cell.net.model,
            "layers": cell.net.layers,
            "seed": cell.net.seed,
            "ours": inputs.results[cell]["accuracy"],
        }
        for cell in _training_cells(inputs.options)
        if isinstance(cell, Trained) and cell in inputs.results
    ]
    if not rows:
        return []
    means = over_seeds(pd.DataFrame(rows), ("dataset", "model", "layers"))
    nets = zip(means["dataset"], means["model"], means["layers"], strict=True)
    recipes = [recipe(str(dataset), str(model), int(layers)) for dataset, model, layers in nets]
    means = means.assign(
        paper=[settings.accuracy or float("nan") for settings in recipes],
        epochs=[settings.epochs for settings in recipes],
        hidden=[settings.hidden_channels for settings in recipes],
        lr=[settings.lr for settings in recipes],
    )
    means["difference"] = means["ours"] - means["paper"]
    notes = (
        "Test accuracy after the last epoch, over seeds of the weights and the split. BA-Shapes and WebKB have one "
        "split: that of the authors, and the first of Geom-GCN.",
    )
    index = ("dataset", "epochs", "hidden", "lr")
    return [Table("training", "Training settings and test accuracy", means, index, ("model", "layers"), 3, notes)]


def _proximity_cells(options: Options) -> list[Cell]:
    num_targets = 1000 if options.quick else None
    return [
        Proximity(dataset, layers, num_targets or (LARGE if dataset == "Arxiv" else None))
        for dataset in options.of_datasets(ORDER)
        for layers in (2, 3)
    ]


def _proximity(inputs: ItemInputs) -> list[Section]:
    """Return the table on the proximity effect: Spearman's rho by dataset and number of layers, beside the paper's."""
    rows = []
    for cell in _proximity_cells(inputs.options):
        if isinstance(cell, Proximity) and cell in inputs.results:
            result = inputs.results[cell]
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
        "The paper does not define the height of the trees, the distance of an edge, the set of edges, or the "
        "treatment of targets with undefined rho. Here the distance is the mean number of hops from both ends to the "
        "target. rho is computed over all edges of the subgraph, including self-loops. Targets with undefined rho are "
        "left out, or counted as 0."
    )
    paper = add_printed(pd.DataFrame(rows), "proximity")
    title = "Spearman's rho between an edge's distance and its occurrences, mean over targets"
    return [Table("proximity", title, paper, ("dataset",), ("layers", "undefined"), 3, (note,))]


def _properties(inputs: ItemInputs) -> list[Section]:
    """Test each method on the path 2 -> 1 -> 0 with target 0. In its tree, 1 -> 0 occurs twice and 2 -> 1 once."""
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
        "Measured on the path 2, 1, 0 with target 0 and two layers. P1: if all attention weights are 1, edge 1-0, "
        "which occurs twice in the tree, has a higher score than edge 2-1, which occurs once. P2: a smaller weight of "
        "1-0 in the last layer lowers the score of 2-1, because the only flow of 2-1 goes through 1-0.",
    )
    table = pd.DataFrame(rows)
    return [Table("properties", "Properties of the methods", table, ("property",), ("method",), 0, notes)]


ITEMS = (
    Item("datasets", _no_cells, _datasets),
    Item("training", _training_cells, _training),
    Item("proximity", _proximity_cells, _proximity),
    Item("properties", _no_cells, _properties),
)
