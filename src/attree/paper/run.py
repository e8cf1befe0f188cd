"""Measure the cells of a report: those known are read, the others measured, several at a time if asked."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from attree.errors import AttreeError, MissingDataError
from attree.io.processes import end_worker_with_parent
from attree.paper.cells import Cell, CellContext, Result
from attree.paper.item import Options

STAND_IN = Path("ogb", "ogbn_arxiv", "STAND_IN_FEATURES.txt")
"""A file that says that Arxiv's features at hand are not the real ones."""


def usable(cells: Sequence[Cell], options: Options, context: CellContext) -> tuple[list[Cell], list[str]]:
    """The cells whose data is at hand, each once, and a sentence for each dataset that is left out or not as it was."""
    kept: list[Cell] = []
    notes: dict[tuple[str, bool], str | None] = {}
    for cell in dict.fromkeys(cells):
        need = cell.dataset, cell.reads_features
        if need not in notes:
            notes[need] = _why_not(*need, options, context)
        if notes[need] is None:
            kept.append(cell)
    said = [note for note in notes.values() if note is not None]
    if any(cell.dataset == "Arxiv" and cell.reads_features for cell in kept) and _stands_in(options):
        said.append("Arxiv: its features at hand are a stand-in, so its numbers are not comparable with the paper's.")
    return kept, said


def _stands_in(options: Options) -> bool:
    return Path(options.root, STAND_IN).exists()


def _why_not(dataset: str, reads_features: bool, options: Options, context: CellContext) -> str | None:
    """Why a dataset cannot be used, in a sentence; None if it can."""
    asked = options.datasets is not None and dataset in options.datasets
    if dataset == "Arxiv" and reads_features and not asked and _stands_in(options):
        return "Arxiv is left out: its features at hand are a stand-in (ask for it with --datasets arxiv)."
    try:
        context.data(dataset, 3, 0).prepare_data()
    except MissingDataError as error:
        return f"{dataset} is left out: {error}"
    return None


def measure_cells(
    cells: Sequence[Cell], options: Options, context: CellContext
) -> Iterator[tuple[Cell, Result | AttreeError]]:
    """Yield each cell with its result as it is known, or with the reason why it has none.

    A cell that cannot be measured stops no other.
    """
    waiting = []
    for cell in cells:
        known = cell.known(context)
        if known is None:
            waiting.append(cell)
        else:
            yield cell, known
    if options.jobs == 1:
        for cell in waiting:
            yield cell, _measure_one(cell, context)
        return
    # Fresh processes: a forked one may inherit a lock that a thread of this one held.
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
            process.terminate()  # after an interrupt nobody waits for what they do
        executor.shutdown(wait=True, cancel_futures=True)


def _measure_one(cell: Cell, context: CellContext) -> Result | AttreeError:
    try:
        return cell.result(context)
    except AttreeError as error:
        return error


_CONTEXTS: dict[tuple[str, Path], CellContext] = {}


def _measure_in_process(cell: Cell, root: str, cache: Path) -> Result | AttreeError:
    """One cell in a process of its own, which keeps its data and networks for the next."""
    context = _CONTEXTS.setdefault((root, cache), CellContext(root, cache))
    return _measure_one(cell, context)
