"""Make tables and figures: measure their cells, in parallel if requested, and write the reports."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from time import perf_counter

from rich.console import Console

from attree.errors import AttreeError, MissingDataError
from attree.io.processes import end_worker_with_parent, stop_status, terminate_as_interrupt
from attree.io.terminal import item_bar, plain_console
from attree.paper.cells import Cell, CellContext, Result
from attree.paper.item import ItemInputs, Options, Report
from attree.paper.render import write_report, write_summary
from attree.paper.tables import ITEMS

STAND_IN = Path("ogb", "ogbn_arxiv", "STAND_IN_FEATURES.txt")
"""If this file exists, the data folder has substitute features for Arxiv instead of the real ones."""


def make_items(names: Sequence[str], options: Options) -> int:
    """Make tables and figures, print their paths, and return the exit status: 1 if a cell failed.

    Args:
        names: Names of the items.
        options: The options of the command.
    """
    console = plain_console()
    try:
        with terminate_as_interrupt():
            return _make(names, options, console)
    except KeyboardInterrupt as stop:
        console.print("Stopped. Run the same command again to continue.")
        return stop_status(stop)


def _make(names: Sequence[str], options: Options, console: Console) -> int:
    """Measure the cells of tables and figures, write the reports, and return the exit status: 1 if a cell failed."""
    began = perf_counter()
    context = CellContext(options.root, options.out / "cells")
    items = [ITEMS[name] for name in names]
    usable_cells = {item.name: usable(item.cells(options), options, context) for item in items}
    cells = list(dict.fromkeys(cell for item_cells, _ in usable_cells.values() for cell in item_cells))
    results, failures = _measure(cells, options, context, console)
    reports = []
    for item in items:
        item_cells, notes = usable_cells[item.name]
        report = Report(item.name, item.entry.title, notes=[f"In the paper: {item.entry.place}.", *notes])
        report.notes += [f"Not measured: {cell}: {failures[cell]}" for cell in item_cells if cell in failures]
        if options.epochs is not None and item_cells:
            report.notes.append(f"Epochs of training: {options.epochs}, not the recipe's.")
        report.sections += item.sections(ItemInputs(options, results, context))
        page = write_report(report, options.out)
        reports.append(report)
        for note in report.notes[1:]:
            console.print(f"{item.name}: {note}", soft_wrap=True)
        if not report.sections:
            console.print(f"{item.name}: nothing to show for these options.")
        console.print(f"{item.name}: {page}", soft_wrap=True)
    if len(items) > 1:
        console.print(f"All: {write_summary(reports, options.out)}", soft_wrap=True)
    console.print(f"{(perf_counter() - began) / 60:.1f} minutes")
    return 1 if failures else 0


def _measure(
    cells: Sequence[Cell], options: Options, context: CellContext, console: Console
) -> tuple[dict[Cell, Result], dict[Cell, str]]:
    """Measure cells with a progress bar. Return the results, and the reasons of failed cells."""
    results: dict[Cell, Result] = {}
    failures: dict[Cell, str] = {}
    num_cached = sum(cell.cached(context) is not None for cell in cells)
    if num_cached:
        console.print(f"{num_cached} of {len(cells)} cells already finished, not repeated")
    with item_bar(console, elapsed_when_finished=True) as progress:
        task = progress.add_task("cells", total=len(cells) - num_cached)
        for cell, result in measure_cells(cells, options, context):
            is_new = len(results) + len(failures) >= num_cached
            if isinstance(result, AttreeError):
                failures[cell] = str(result)
            else:
                results[cell] = result
            if is_new:
                progress.advance(task)
                took = "failed" if cell in failures else f"{results[cell]['seconds']:.0f} s"
                console.print(f"{took:>7}  {cell}")
    return results, failures


def usable(cells: Sequence[Cell], options: Options, context: CellContext) -> tuple[list[Cell], list[str]]:
    """Return the cells whose data exists, without repetitions, and notes on missing or substitute data."""
    usable_cells: list[Cell] = []
    notes: dict[tuple[str, bool], str | None] = {}
    for cell in dict.fromkeys(cells):
        need = cell.dataset, cell.reads_features
        if need not in notes:
            notes[need] = _obstacle(*need, options, context)
        if notes[need] is None:
            usable_cells.append(cell)
    lines = [note for note in notes.values() if note is not None]
    if any(cell.dataset == "Arxiv" and cell.reads_features for cell in usable_cells) and _has_stand_in(options):
        lines.append("Arxiv: its features here are a stand-in, so its numbers are not comparable with the paper's.")
    return usable_cells, lines


def _has_stand_in(options: Options) -> bool:
    return Path(options.root, STAND_IN).exists()


def _obstacle(dataset: str, reads_features: bool, options: Options, context: CellContext) -> str | None:
    """Return why a dataset cannot be used, in a sentence; None if it can."""
    is_requested = options.datasets is not None and dataset in options.datasets
    if dataset == "Arxiv" and reads_features and not is_requested and _has_stand_in(options):
        return "Arxiv is left out: its features here are a stand-in (include it with --datasets arxiv)."
    try:
        context.data(dataset, 3, 0).prepare_data()
    except MissingDataError as error:
        return f"{dataset} is left out: {error}"
    return None


def measure_cells(
    cells: Sequence[Cell], options: Options, context: CellContext
) -> Iterator[tuple[Cell, Result | AttreeError]]:
    """Yield each cell with its result, or with its error. Cached results come first.

    A cell that fails does not stop the others.
    """
    waiting = []
    for cell in cells:
        cached = cell.cached(context)
        if cached is None:
            waiting.append(cell)
        else:
            yield cell, cached
    if options.jobs == 1:
        for cell in waiting:
            yield cell, _measure_one(cell, context)
        return
    # Processes are spawned, because a forked one may inherit a lock that a thread of this process holds.
    spawning = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(
        min(options.jobs, max(len(waiting), 1)), mp_context=spawning, initializer=end_worker_with_parent
    )
    try:
        futures: dict[Future[Result | AttreeError], Cell] = {
            executor.submit(_measure_in_process, cell, context.root, context.cache.folder): cell for cell in waiting
        }
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()  # after an interrupt, their results are not needed
        executor.shutdown(wait=True, cancel_futures=True)


def _measure_one(cell: Cell, context: CellContext) -> Result | AttreeError:
    try:
        return cell.result(context)
    except AttreeError as error:
        return error


_CONTEXTS: dict[tuple[str, Path], CellContext] = {}


def _measure_in_process(cell: Cell, root: str, cache: Path) -> Result | AttreeError:
    """Measure one cell in a worker process, which keeps data and networks in memory for its next cell."""
    context = _CONTEXTS.setdefault((root, cache), CellContext(root, cache))
    return _measure_one(cell, context)
