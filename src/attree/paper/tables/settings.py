"""The tables of datasets and of training details."""

from __future__ import annotations

import pandas as pd

from attree.data import NodeDataModule
from attree.errors import MissingDataError
from attree.paper.cells import Cell, Trained
from attree.paper.item import Item, ItemInputs, Options, Section, Table
from attree.paper.net import REAL, SYNTHETIC, Net
from attree.paper.printed_numbers import printed
from attree.paper.recipes import recipe
from attree.paper.tables.rows import over_seeds

WHY_EDGES = (
    "BA-Shapes: the paper counts both directions of an edge as one. Cornell, Texas, Wisconsin: it leaves out the "
    "files' self-loops and repeated edges."
)


def _no_cells(options: Options) -> list[Cell]:
    return []


def _datasets(made: ItemInputs) -> list[Section]:
    rows = []
    for numbers in printed("datasets").to_dict("records"):
        name, _, depth = str(numbers["dataset"]).partition("-")
        dataset, layers = (name, int(depth)) if name == "Infection" else (str(numbers["dataset"]), 3)
        if dataset not in made.options.of_datasets((*REAL, *SYNTHETIC)):
            continue
        try:
            data = made.context.node_data(dataset, layers, 0)
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
    return [
        Trained(Net(dataset, model, layers, seed, epochs=options.epochs))
        for dataset in options.of_datasets((*SYNTHETIC, *REAL))
        for model in options.of_models(("GAT", "GATv2"))
        for layers in (2, 3)
        for seed in range(options.seeds)
    ]


def _training(made: ItemInputs) -> list[Section]:
    rows = [
        {
            "dataset": cell.net.dataset,
            "model": cell.net.model,
            "layers": cell.net.layers,
            "seed": cell.net.seed,
            "ours": made.results[cell]["accuracy"],
        }
        for cell in _training_cells(made.options)
        if isinstance(cell, Trained) and cell in made.results
    ]
    if not rows:
        return []
    means = over_seeds(pd.DataFrame(rows), ("dataset", "model", "layers"))
    nets = zip(means["dataset"], means["model"], means["layers"], strict=True)
    recipes = [recipe(str(dataset), str(model), int(layers)) for dataset, model, layers in nets]
    means = means.assign(
        paper=[one.accuracy or float("nan") for one in recipes],
        epochs=[one.epochs for one in recipes],
        hidden=[one.hidden_channels for one in recipes],
        lr=[one.lr for one in recipes],
    )
    means["difference"] = means["ours"] - means["paper"]
    notes = (
        "Test accuracy after the last epoch, over seeds of weights and of the split. BA-Shapes and WebKB have one "
        "split: the authors' and Geom-GCN's first.",
    )
    index = ("dataset", "epochs", "hidden", "lr")
    return [Table("training", "Training settings and test accuracy", means, index, ("model", "layers"), 3, notes)]


ITEMS = (
    Item("datasets", _no_cells, _datasets),
    Item("training", _training_cells, _training),
)
