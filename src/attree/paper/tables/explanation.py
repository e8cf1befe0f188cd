"""The tables and figures of explanation accuracy and runtime, of ten methods and of four ways to compute GAtt."""

from __future__ import annotations

import math

import pandas as pd

from attree.attribution import METHODS, method_label
from attree.paper.cells import CALCULATIONS, Calculation, Cell, Explanation
from attree.paper.networks import SYNTHETIC, Net
from attree.paper.printed_numbers import add_printed, printed
from attree.paper.report_items import NEAR, Item, ItemInputs, Options, Picture, Section, Table, nets_of_seeds
from attree.paper.tables.rows import over_seeds
from attree.report.score_figures import MethodPoint, accuracy_runtime_figure
from attree.report.style import INK, LOOKS, SMALL_SIZE, new_figure, plain_axes

PAPER_METHODS = (
    *("gatt", "avgatt", "saliency", "guided_backprop", "integrated_gradients"),
    *("gnn_explainer", "pg_explainer", "graph_mask", "fastdnx", "random"),
)
ORDER = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform", *PAPER_METHODS[2:])
"""All methods of the table, the paper's and attree's, in order."""

ATTENTION = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform", "random")
GRADIENTS = ("saliency", "guided_backprop", "integrated_gradients")
KNOWN = {
    "graph_mask": "PyG's own GraphMask does not train its gates, so its scores are those of an untrained one",
    "pg_explainer": "seed and learning rate change it by more than this, and it may collapse to one score, 0.5",
    "fastdnx": "it depends on the number of distillation steps, which the paper does not give",
    "gnn_explainer": "its epochs, rate and penalties, which the paper does not give, change it by as much",
}
"""Reasons why methods that learn differ from the paper; see benchmarks/sensitivity.py."""

ONCE = ("pg_explainer",)
"""Methods that take a minute per network. They are measured only on the authors' networks and on one GATv2."""
KEYS = ("dataset", "model", "weights", "self_loops", "layers", "method", "statistic")
MASKED, ZERO = "masked", "0"
"""Self-loops in methods that mask edges: masked like other edges, or left with a score of 0 as in PyG."""

FEW_TARGETS = {"subtree": 100, "matrix": 100, "batch": 10, "attree": None}
"""Number of targets that the quick version explains by each calculation; None for all."""


def _nets(options: Options) -> list[Net]:
    """Return GATs with the authors' weights, networks trained by the recipe, and the same networks untrained."""
    nets = []
    for dataset in options.of_datasets(SYNTHETIC):
        for model in options.of_models(("GAT", "GATv2")):
            nets += nets_of_seeds(options, (dataset,), (model,), layers=(3,))
            nets += [Net(dataset, model, 3, seed, weights="untrained") for seed in range(options.seeds)]
            if model == "GAT":
                nets.append(Net(dataset, model, 3, weights="authors"))
    return nets


def explanation_cells(options: Options) -> list[Cell]:
    """Return a cell for every method on every network that takes reasonable time."""
    cells: list[Cell] = []
    for net in _nets(options):
        first = net.weights == "authors" or (net.model == "GATv2" and net.seed == 0)
        for method in ORDER:
            if net.weights == "untrained" and method not in (*ATTENTION, *GRADIENTS):
                continue
            if method in ONCE and not first:
                continue
            cells.append(Explanation(net, method))
            if "self_loops" in METHODS[method]().settings():
                cells.append(Explanation(net, method, self_loops=True))
    return cells


def explanation_rows(inputs: ItemInputs) -> pd.DataFrame:
    """Return one row per method and network, with its AUROC and seconds."""
    rows = []
    for cell in explanation_cells(inputs.options):
        if isinstance(cell, Explanation) and cell in inputs.results:
            result = inputs.results[cell]
            rows.append(
                {
                    "dataset": cell.net.dataset,
                    "model": cell.net.model,
                    "weights": cell.net.weights,
                    "self_loops": MASKED if cell.self_loops else ZERO,
                    "layers": cell.net.layers,
                    "method": cell.method,
                    "statistic": "truth_auroc",
                    "seed": cell.net.seed,
                    "ours": result["auroc"],
                    "accuracy": result["accuracy"],
                    "targets": result["targets"],
                    "runtime": result["runtime"],
                }
            )
    rows.sort(key=lambda row: ORDER.index(row["method"]))
    return pd.DataFrame(rows)


def _accuracy(inputs: ItemInputs) -> list[Section]:
    """Return the tables of explanation accuracy: AUROC by method beside the paper's, and network by network."""
    rows = explanation_rows(inputs)
    if len(rows) == 0:
        return []
    paper = add_printed(over_seeds(rows, KEYS), "explanation")
    paper = paper.assign(reason=[_why(row, rows) for _, row in paper.iterrows()])
    far = paper[(paper["reason"] != "") & ~paper["reason"].str.startswith("other weights")]
    # If a method has two rows, the one with masked self-loops.
    far = far.drop_duplicates(["dataset", "model", "weights", "method"], keep="last")
    notes = (
        "Self-loops: `0` if they are not masked and score 0, as in PyG; `masked` if a method masks them like other "
        "edges, as on the graphs of the paper, which contain them. Methods that mask nothing have one row.",
        *(
            f"{method_label(row['method'])}, {row['dataset']}, {row['model']}: {row['reason']}."
            for _, row in far.iterrows()
        ),
    )
    title = "AUROC against ground truth, networks of 3 layers"
    index = ("dataset", "model", "weights", "self_loops")
    parts: list[Section] = [Table("explanation", title, paper, index, ("method",), 4, notes)]
    parts.append(Table("explanation_networks", "Network by network", rows, (), (), csv_only=True))
    return parts


def _why(row: pd.Series, rows: pd.DataFrame) -> str:
    """Return why a number differs from the paper's by more than 0.05, if the measured numbers explain it."""
    if not abs(row["difference"]) > NEAR:
        return ""
    method, meant = row["method"], row["paper"]
    if row["weights"] == "untrained" or (row["weights"] == "trained" and row["model"] == "GAT"):
        return "other weights than the paper's"
    if isinstance(row["slip"], str):
        return row["slip"]
    same = rows[(rows["dataset"] == row["dataset"]) & (rows["model"] == row["model"]) & (rows["method"] == method)]
    masked = same[(same["self_loops"] == MASKED) & (same["weights"] == row["weights"])]["ours"]
    if row["self_loops"] == ZERO and (masked - meant).abs().min() <= NEAR:
        return f"with self-loops masked {masked.mean():.4f}, for the paper's {meant:.4f}"
    if method in KNOWN:
        return f"{row['ours']:.4f} for the paper's {meant:.4f}: {KNOWN[method]}"
    text = f"{row['ours']:.4f} for the paper's {meant:.4f}"
    for described, is_among in (
        ("trained alike", same["weights"] != "untrained"),
        ("before training", same["weights"] == "untrained"),
    ):
        low, high = same[is_among]["ours"].min(), same[is_among]["ours"].max()
        if low - NEAR <= meant <= high + NEAR:
            return f"{text}: networks {described} give {low:.4f} to {high:.4f}"
        if math.isfinite(low):
            text += f" ({low:.4f} to {high:.4f} with networks {described})"
    return f"{text}: unexplained"


def _calculation_cells(options: Options) -> list[Cell]:
    net = Net("Infection", "GAT", 3, weights="authors")
    return [
        Calculation(net, name, FEW_TARGETS[name] if options.quick else None)
        for name in CALCULATIONS
        if options.of_datasets(("Infection",))
    ]


def _calculations(inputs: ItemInputs) -> list[Section]:
    """Return the table and the figure of the seconds that four calculations of GAtt take on Infection."""
    rows = []
    for cell in _calculation_cells(inputs.options):
        if isinstance(cell, Calculation) and cell in inputs.results:
            result = inputs.results[cell]
            total = result["preparing"] + result["runtime"] * result["of"] / result["targets"]
            rows.append(
                {"calculation": CALCULATIONS[cell.calculation][0], "quantity": "seconds", "ours": total, **result}
            )
    if not rows:
        return []
    table = pd.DataFrame(rows)
    slowest = table["ours"].iloc[0]
    speedups = table.assign(quantity="times as fast", ours=slowest / table["ours"])
    scaled = table[table["targets"] < table["of"]]
    notes: tuple[str, ...] = (
        f"All {int(table['of'].iloc[0])} targets of Infection, GAT of 3 layers, the authors' weights, one thread; "
        f"largest difference of a score from attree's: {table['largest_gap'].max():.1e}.",
    )
    if len(scaled):
        scaled_names = [
            f"{name} ({number})" for name, number in zip(scaled["calculation"], scaled["targets"], strict=True)
        ]
        notes += (
            "Extrapolated from some targets, with the preparation counted once: " + ", ".join(scaled_names) + ".",
        )
    seconds_and_speedups = pd.concat([table, speedups])
    figure = new_figure(6.4, 3.4, "Seconds for all targets of Infection")
    axes = figure.add_subplot()
    plain_axes(axes, "", "seconds")
    bars = axes.bar(table["calculation"], table["ours"], color=LOOKS["gatt"].color)
    words = [f"{seconds:.3g} s, x{slowest / seconds:,.0f}" for seconds in table["ours"]]
    axes.bar_label(bars, words, fontsize=SMALL_SIZE, color=INK)
    axes.set_yscale("log")
    return [
        Table(
            "runtime_gatt", "GAtt by four calculations", seconds_and_speedups, ("calculation",), ("quantity",), 3, notes
        ),
        Picture("runtime_gatt", "GAtt by four calculations", figure),
    ]


def _runtime(inputs: ItemInputs) -> list[Section]:
    """Return the table of the seconds in which each method explains all targets, beside the paper's."""
    rows = explanation_rows(inputs)
    if len(rows) == 0:
        return []
    rows = _of_authors(rows)
    paper = add_printed(rows.assign(ours=rows["runtime"], unit="seconds"), "runtime").assign(difference=math.nan)
    arxiv = printed("runtime")
    notes = (
        "Ours on one CPU thread, the paper's on a GPU. Each is the time from a trained network to the scores of all "
        "pairs, measured once. docs/runtime.md has medians of several rounds; `runtime_gatt` has the paper's GAtt.",
        f"Arxiv (the paper prints {', '.join(arxiv[arxiv.dataset == 'Arxiv'].paper.iloc[:2])} s for GAtt mat and "
        "batch) needs a trained network: see benchmarks/arxiv.py.",
    )
    return [
        Table(
            "runtime",
            "Seconds to explain all targets (400 and 974), GAT of 3 layers",
            paper,
            ("dataset",),
            ("method",),
            2,
            notes,
        )
    ]


def _of_authors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the authors' networks; for methods that mask edges, those with masked self-loops."""
    of_authors = rows[(rows["model"] == "GAT") & (rows["weights"] == "authors")]
    return of_authors.sort_values("self_loops", kind="stable").drop_duplicates(["dataset", "method"], keep="last")


def _plot(inputs: ItemInputs) -> list[Section]:
    """Return the figure of explanation accuracy against runtime: one panel per dataset, one point per method."""
    rows = explanation_rows(inputs)
    if len(rows) == 0:
        return []
    rows = _of_authors(rows)
    panels = {
        str(dataset): [
            MethodPoint(method, seconds, auroc)
            for method, seconds, auroc in zip(
                dataset_rows["method"], dataset_rows["runtime"], dataset_rows["ours"], strict=True
            )
        ]
        for dataset, dataset_rows in rows.groupby("dataset", sort=False)
    }
    return [Picture("accuracy_runtime", "Explanation accuracy against runtime", accuracy_runtime_figure(panels))]


ITEMS = (
    Item("explanation", explanation_cells, _accuracy),
    Item("runtime_gatt", _calculation_cells, _calculations),
    Item("runtime", explanation_cells, _runtime),
    Item("accuracy_runtime", explanation_cells, _plot),
)
