"""The command `attree paper`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from attree.data.base import data_folder
from attree.errors import ArgumentError, AttreeError
from attree.io.console import plain_console
from attree.io.processes import terminate_as_interrupt
from attree.paper.cells import Cell, CellContext, Result
from attree.paper.item import Item, ItemInputs, Options, Report, resolve_name
from attree.paper.net import DATASETS, MODELS
from attree.paper.render import write_report, write_summary
from attree.paper.run import measure_cells, usable
from attree.paper.tables import ITEMS


def paper(
    name: str,
    profile: str,
    datasets: Sequence[str] | None,
    models: Sequence[str] | None,
    seeds: int | None,
    protocols: Sequence[str],
    jobs: int,
    out: Path,
    root: str | None,
    targets: int,
    epochs: int | None,
) -> int:
    """Make tables and figures of the paper, and return the exit status.

    Args:
        name: Which one; `all`, or `list` to print their names.
        profile: `quick` or `full`.
        datasets: Names of datasets; None for all.
        models: Names of networks; None for all.
        seeds: Networks that numbers are averaged over; None for as many as the profile says.
        protocols: Names of reduction protocols.
        jobs: Cells at a time.
        out: Folder of what is made.
        root: Data folder; None for the default one.
        targets: Nodes that are explained for faithfulness.
        epochs: Epochs of training; None for those of the recipes.
    """
    console = plain_console()
    if name == "list":
        _list(console)
        return 0
    quick = profile == "quick"
    options = Options(
        datasets=None if datasets is None else tuple(resolve_name(one, DATASETS) for one in datasets),
        models=None if models is None else tuple(resolve_name(one, MODELS) for one in models),
        seeds=seeds if seeds is not None else 1 if quick else 3,
        protocols=tuple(protocols),
        quick=quick,
        epochs=epochs,
        targets=targets,
        root=str(data_folder()) if root is None else root,
        out=out,
        jobs=jobs,
    )
    items = _items(name)
    try:
        with terminate_as_interrupt():
            return _make(items, options, console)
    except KeyboardInterrupt:
        console.print("Stopped. The same command goes on with the cells that are not finished.")
        return 130


def _items(name: str) -> list[Item]:
    if name == "all":
        return list(ITEMS.values())
    if name not in ITEMS:
        raise ArgumentError(f"Expected argument `NAME` to be list, all or one of {', '.join(ITEMS)}, but got {name!r}.")
    return [ITEMS[name]]


def _list(console: Console) -> None:
    for item in ITEMS.values():
        quick, full = (f"{minutes:g}" for minutes in item.minutes)
        console.print(Text.assemble((item.name, "bold"), f"  {item.title}"), soft_wrap=True)
        where = f"    {item.place}; data: {item.data}; about {quick} min quick, {full} min full on two cores"
        console.print(where, style="dim", soft_wrap=True)


def _make(items: Sequence[Item], options: Options, console: Console) -> int:
    began = perf_counter()
    context = CellContext(options.root, options.out / "cells")
    wanted = {item.name: usable(item.cells(options), options, context) for item in items}
    cells = list(dict.fromkeys(cell for own, _ in wanted.values() for cell in own))
    results, failures = _measure(cells, options, context, console)
    reports = []
    for item in items:
        own, notes = wanted[item.name]
        report = Report(item.name, item.title, notes=[f"In the paper: {item.place}.", *notes])
        report.notes += [f"Not measured: {cell}: {failures[cell]}" for cell in own if cell in failures]
        if options.epochs is not None and own:
            report.notes.append(f"Epochs of training: {options.epochs} instead of the recipe's.")
        report.sections += item.sections(ItemInputs(options, results, context))
        page = write_report(report, options.out)
        reports.append(report)
        for note in report.notes[1:]:
            console.print(f"{item.name}: {note}", soft_wrap=True)
        if not report.sections:
            console.print(f"{item.name}: nothing to show for what was asked.")
        console.print(f"{item.name}: {page}", soft_wrap=True)
    if len(items) > 1:
        console.print(f"All: {write_summary(reports, options.out)}", soft_wrap=True)
    console.print(f"{(perf_counter() - began) / 60:.1f} minutes")
    return 1 if failures else 0


def _measure(
    cells: Sequence[Cell], options: Options, context: CellContext, console: Console
) -> tuple[dict[Cell, Result], dict[Cell, str]]:
    """Results of the cells, and why some have none."""
    results: dict[Cell, Result] = {}
    failures: dict[Cell, str] = {}
    progress = Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
    )
    known = sum(cell.known(context) is not None for cell in cells)
    if known:
        console.print(f"{known} of {len(cells)} cells finished before, not done again")
    with progress:
        task = progress.add_task("cells", total=len(cells) - known)
        for cell, result in measure_cells(cells, options, context):
            fresh = len(results) + len(failures) >= known
            if isinstance(result, AttreeError):
                failures[cell] = str(result)
            else:
                results[cell] = result
            if fresh:
                progress.advance(task)
                took = "failed" if cell in failures else f"{results[cell]['seconds']:.0f} s"
                console.print(f"{took:>7}  {cell}")
    return results, failures
