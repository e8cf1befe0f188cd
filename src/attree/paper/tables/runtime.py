"""The tables and figures of runtime: of all methods, against their accuracy, and of four ways to compute GAtt."""

from __future__ import annotations

import math

import pandas as pd

from attree.paper.cells import Calculation, Cell
from attree.paper.cells.explanation import CALCULATIONS
from attree.paper.item import Item, ItemInputs, Options, Picture, Section, Table
from attree.paper.net import Net
from attree.paper.printed_numbers import add_printed, printed
from attree.paper.tables.explanation import explanation_cells, explanation_rows
from attree.report.looks import LOOKS
from attree.report.method_figures import MethodPoint, accuracy_runtime_figure
from attree.report.style import INK, SMALL_SIZE, new_figure, plain_axes

FEW = {"subtree": 100, "matrix": 100, "batch": 10, "attree": None}
"""Number of targets that the quick version explains by each calculation; None for all."""


def _calculation_cells(options: Options) -> list[Cell]:
    net = Net("Infection", "GAT", 3, weights="authors")
    return [
        Calculation(net, name, FEW[name] if options.quick else None)
        for name in CALCULATIONS
        if options.of_datasets(("Infection",))
    ]


def _calculations(made: ItemInputs) -> list[Section]:
    rows = []
    for cell in _calculation_cells(made.options):
        if isinstance(cell, Calculation) and cell in made.results:
            result = made.results[cell]
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
        some = [f"{name} ({number})" for name, number in zip(scaled["calculation"], scaled["targets"], strict=True)]
        notes += ("Scaled from the time of some targets, the preparation counting once: " + ", ".join(some) + ".",)
    both = pd.concat([table, speedups])
    figure = new_figure(6.4, 3.4, "Seconds for all targets of Infection")
    axes = figure.add_subplot()
    plain_axes(axes, "", "seconds")
    bars = axes.bar(table["calculation"], table["ours"], color=LOOKS["gatt"].color)
    words = [f"{one:.3g} s, x{slowest / one:,.0f}" for one in table["ours"]]
    axes.bar_label(bars, words, fontsize=SMALL_SIZE, color=INK)
    axes.set_yscale("log")
    return [
        Table("runtime_gatt", "GAtt by four calculations", both, ("calculation",), ("quantity",), 3, notes),
        Picture("runtime_gatt", "GAtt by four calculations", figure),
    ]


def _runtime(made: ItemInputs) -> list[Section]:
    rows = explanation_rows(made)
    if len(rows) == 0:
        return []
    rows = _of_the_authors(rows)
    paper = add_printed(rows.assign(ours=rows["runtime"], unit="seconds"), "runtime").assign(difference=math.nan)
    arxiv = printed("runtime")
    notes = (
        "One thread of a CPU here, a graphics card in the paper. Each is the time from a trained network to the scores "
        "of all pairs, measured once; medians of several rounds: docs/runtime.md. GAtt's in the paper: `runtime_gatt`.",
        f"Arxiv ({', '.join(arxiv[arxiv.dataset == 'Arxiv'].paper.iloc[:2])} s for GAtt mat and batch in print) needs "
        "its trained network: see benchmarks/arxiv.py.",
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


def _of_the_authors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the authors' networks; for methods that mask edges, those with masked self-loops."""
    own = rows[(rows["model"] == "GAT") & (rows["weights"] == "authors")]
    return own.sort_values("self_loops", kind="stable").drop_duplicates(["dataset", "method"], keep="last")


def _plot(made: ItemInputs) -> list[Section]:
    rows = explanation_rows(made)
    if len(rows) == 0:
        return []
    rows = _of_the_authors(rows)
    panels = {
        str(dataset): [
            MethodPoint(method, seconds, auroc)
            for method, seconds, auroc in zip(own["method"], own["runtime"], own["ours"], strict=True)
        ]
        for dataset, own in rows.groupby("dataset", sort=False)
    }
    return [Picture("accuracy_runtime", "Explanation accuracy against runtime", accuracy_runtime_figure(panels))]


ITEMS = (
    Item("runtime_gatt", _calculation_cells, _calculations),
    Item("runtime", explanation_cells, _runtime),
    Item("accuracy_runtime", explanation_cells, _plot),
)
