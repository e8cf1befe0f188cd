"""Numbers printed in the paper's tables, their known misprints, and the recipes of its networks.

All recipes use Adam, one attention head, no dropout, no weight decay, and the weights of the last epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import pandas as pd

from attree.errors import expect

TABLES = (
    "faithfulness",
    "explanation",
    "ablation",
    "multihead",
    "head_selection",
    "graph_level",
    "proximity",
    "runtime",
    "datasets",
)
"""Names of the paper's tables in the package's data files."""


@cache
def _read(name: str) -> pd.DataFrame:
    path = resources.files("attree.paper") / "printed" / f"{name}.csv"
    with path.open("r", encoding="utf-8") as stream:
        return pd.read_csv(stream)


def printed(table: str) -> pd.DataFrame:
    """Return the numbers of one of the paper's tables: one number per row, with the columns that identify it.

    >>> rows = printed("ablation")
    >>> float(rows[(rows.dataset == "CiteSeer") & (rows.layers == 2) & (rows.method == "gatt_avg")].paper.iloc[0])
    0.4761
    """
    expect(table in TABLES, "table", f"one of {', '.join(TABLES)}", table)
    return _read(table).copy()


def slips(table: str) -> pd.DataFrame:
    """Return the known misprints of a table: the printed number, the number that was meant (if known), and why."""
    expect(table in TABLES, "table", f"one of {', '.join(TABLES)}", table)
    rows = _read("slips")
    return rows[rows["table"] == table].drop(columns="table").reset_index(drop=True)


def add_printed(rows: pd.DataFrame, table: str) -> pd.DataFrame:
    """Add the paper's numbers to ours.

    Args:
        rows: Our numbers, one per row, in the column `ours`, with the columns that identify a printed number.
        table: The printed table.

    Returns:
        The rows with four more columns: `paper`, the printed number; `meant`, the printed number, or the correct number
        of a known misprint; `difference`, ours minus `meant`; `slip`, the description of a misprint. They are NaN if
        the paper has no number.
    """
    numbers, wrong = printed(table), slips(table)
    keys = [name for name in numbers.columns if name != "paper" and name in rows.columns]
    merged = rows.merge(numbers, on=keys, how="left")
    merged["paper"] = pd.to_numeric(merged["paper"], errors="coerce")
    wrong_keys = [name for name in keys if name in wrong.columns]
    wrong = wrong.dropna(subset=wrong_keys).astype({name: numbers[name].dtype for name in wrong_keys})
    merged = merged.merge(wrong[[*wrong_keys, "meant", "what"]], on=wrong_keys, how="left")
    meant = pd.to_numeric(merged["meant"], errors="coerce")
    merged["meant"] = meant.where(meant.notna(), merged["paper"])
    merged["difference"] = merged["ours"] - merged["meant"]
    return merged.rename(columns={"what": "slip"})


@dataclass(frozen=True)
class Recipe:
    """The training settings of a network on a dataset.

    Attributes:
        epochs: Number of epochs.
        hidden_channels: Width of the hidden layers.
        lr: Learning rate.
        accuracy: Test accuracy that the paper prints. If it prints none, this is None and the settings are our choice.
    """

    epochs: int
    hidden_channels: int
    lr: float
    accuracy: float | None


Key = tuple[str, str, int]
"""Name of the dataset, name of the network, number of layers."""

_COLUMNS = ("BA-Shapes", "Infection", "Cora", "CiteSeer", "PubMed", "Arxiv", "Cornell", "Texas", "Wisconsin")

_EPOCHS = {
    "GAT": (1000, 500, 60, 100, 100, 3000, 65, 32, 50),
    "GATv2": (1000, 1000, 60, 60, 60, 3000, 100, 32, 50),
}
_HIDDEN = {
    "GAT": (16, 8, 64, 64, 64, 64, 64, 64, 64),
    "GATv2": (16, 16, 64, 64, 64, 64, 64, 64, 64),
}
_LR = {
    "GAT": (0.01, 0.005, 0.001, 0.001, 0.001, 0.005, 0.005, 0.001, 0.0001),
    "GATv2": (0.01, 0.01, 0.001, 0.001, 0.001, 0.005, 0.001, 0.001, 0.0001),
}
_ACCURACY = {
    ("GAT", 2): (0.9500, 0.8680, 0.8202, 0.7312, 0.7294, 0.5375, 0.5135, 0.5676, 0.5098),
    ("GAT", 3): (0.9571, 0.9272, 0.8362, 0.7272, 0.7885, 0.5188, 0.5135, 0.6216, 0.5098),
    ("GATv2", 2): (0.9357, 0.9476, 0.8292, 0.7275, 0.7157, 0.5290, 0.4865, 0.4054, 0.4314),
    ("GATv2", 3): (0.9714, 0.9992, 0.7644, 0.7286, 0.7197, 0.5243, 0.4054, 0.4865, 0.4902),
}

RECIPES: dict[Key, Recipe] = {
    (dataset, model, num_layers): Recipe(
        _EPOCHS[model][column], _HIDDEN[model][column], _LR[model][column], accuracies[column]
    )
    for (model, num_layers), accuracies in _ACCURACY.items()
    for column, dataset in enumerate(_COLUMNS)
} | {
    # The paper says of its graph-level networks only that they have three layers and a sum readout.
    ("MUTAG", "GAT", 3): Recipe(150, 16, 0.01, None),
    ("HIN", "GAT", 3): Recipe(50, 16, 0.01, None),
    # The paper says of SuperGAT only that test accuracies exceed 0.76 on Cora. The rate is from PyG's example.
    **{
        (dataset, "SuperGAT", num_layers): Recipe(epochs, hidden, 0.005, None)
        for dataset, epochs, hidden in (("Cora", 200, 64), ("BA-Shapes", 1000, 16), ("Infection", 500, 16))
        for num_layers in (2, 3)
    },
}
"""Every recipe. The paper uses the same epochs, widths and rates for two and three layers."""


def recipe(dataset: str, model: str, num_layers: int) -> Recipe:
    """Return the recipe of a network.

    >>> recipe("Cora", "GAT", 2)
    Recipe(epochs=60, hidden_channels=64, lr=0.001, accuracy=0.8202)
    """
    key = (dataset, model, num_layers)
    datasets = sorted({name for name, *_ in RECIPES})
    expect(key in RECIPES, "dataset, model, num_layers", f"among those of {', '.join(datasets)}", key)
    return RECIPES[key]
