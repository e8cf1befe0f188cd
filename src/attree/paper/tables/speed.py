"""The calculations of GAtt, timed."""

from __future__ import annotations

import pandas as pd

from attree.paper.cells import Calculation, Cell
from attree.paper.cells.speed import CALCULATIONS
from attree.paper.item import Item, ItemInputs, Picture, Section, Table
from attree.paper.net import Net
from attree.paper.options import Options
from attree.report.style import INK, LOOKS, SMALL_SIZE, new_figure, plain_axes

FEW = {"subtree": 100, "matrix": 100, "batch": 10, "attree": None}
"""Targets that the quick version explains by each calculation."""


def _cells(options: Options) -> list[Cell]:
    net = Net("Infection", "GAT", 3, weights="authors")
    return [
        Calculation(net, name, FEW[name] if options.quick else None)
        for name in CALCULATIONS
        if options.of_datasets(("Infection",))
    ]


def _sections(made: ItemInputs) -> list[Section]:
    rows = []
    for cell in _cells(made.options):
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


ITEMS = (
    Item(
        "runtime_gatt",
        "GAtt by the rooted subtree, in matrix form, in batches, and by attree",
        "appendix, figure on calculations of GAtt",
        "the authors' Infection, with their weights",
        (0.5, 10),
        _cells,
        _sections,
    ),
)
