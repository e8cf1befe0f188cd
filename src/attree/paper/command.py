"""The command `attree paper`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attree.data.base import data_folder
from attree.errors import ArgumentError, AttreeError
from attree.paper.cells import Cell, Result, Workshop
from attree.paper.item import Item, Made
from attree.paper.net import DATASETS, MODELS
from attree.paper.options import Options, resolve_name
from attree.paper.render import write_report
from attree.paper.run import measure, usable
from attree.paper.sections import Report
from attree.paper.summary import write_summary
from attree.paper.tables import ITEMS
from attree.processes import terminate_as_interrupt

DESCRIPTION = """Make the paper's tables and figures, beside the numbers that it prints.

NAME is one of those that `attree paper list` shows, or `all`. Networks are trained by the paper's recipes, and what is
finished is kept under all that determines it: the same command goes on where it was stopped, and does again only what
code, data or libraries have changed for."""

EPILOG = """Start with:  attree paper list
             attree paper faithfulness --datasets cora,citeseer --seeds 1
             attree paper all --profile quick"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `attree paper` with the arguments that follow it, and return its exit status.

    Args:
        argv: Arguments; those of the process if None.
    """
    arguments = _parser().parse_args(argv)
    console = Console()
    if arguments.name == "list":
        _list(console)
        return 0
    try:
        options = _options(arguments)
        items = _items(arguments.name)
    except AttreeError as error:
        print(f"attree: error: {error}", file=sys.stderr)
        return 2
    try:
        with terminate_as_interrupt():
            return _make(items, options, console)
    except KeyboardInterrupt:
        console.print("Stopped. The same command goes on with the cells that are not finished.")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attree paper",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def names(text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())

    parser.add_argument("name", metavar="NAME", help="a table or figure, `all`, or `list` to see their names")
    parser.add_argument(
        "--profile", choices=("quick", "full"), default="full", help="quick: one seed, smaller versions"
    )
    parser.add_argument("--datasets", type=names, help="names of datasets, separated by commas (default: all it has)")
    parser.add_argument("--models", type=names, help="names of networks, separated by commas (default: all it has)")
    parser.add_argument("--seeds", type=int, help="networks that numbers are averaged over (default: 3, quick: 1)")
    parser.add_argument(
        "--protocols",
        type=names,
        default=("authors", "coefficient", "weight", "removal"),
        help="reduction protocols, separated by commas (default: authors,coefficient,weight,removal)",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells at a time (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("logs/paper"), help="where all goes (default: logs/paper)")
    parser.add_argument("--root", default=str(data_folder()), help="data folder (default: $ATTREE_DATA, or data)")
    parser.add_argument("--targets", type=int, default=100, help="nodes explained for faithfulness (default: 100)")
    parser.add_argument("--epochs", type=int, help="train as many epochs, not the recipe's: for trying things out")
    return parser


def _options(arguments: argparse.Namespace) -> Options:
    quick = arguments.profile == "quick"

    def resolved(given: tuple[str, ...] | None, known: tuple[str, ...]) -> tuple[str, ...] | None:
        return None if given is None else tuple(resolve_name(name, known) for name in given)

    return Options(
        datasets=resolved(arguments.datasets, DATASETS),
        models=resolved(arguments.models, MODELS),
        seeds=arguments.seeds if arguments.seeds is not None else 1 if quick else 3,
        protocols=arguments.protocols,
        quick=quick,
        epochs=arguments.epochs,
        targets=arguments.targets,
        root=arguments.root,
        out=arguments.out,
        jobs=arguments.jobs,
    )


def _items(name: str) -> list[Item]:
    if name == "all":
        return list(ITEMS.values())
    if name not in ITEMS:
        raise ArgumentError(f"Expected argument `NAME` to be list, all or one of {', '.join(ITEMS)}, but got {name!r}.")
    return [ITEMS[name]]


def _list(console: Console) -> None:
    for item in ITEMS.values():
        quick, full = (f"{minutes:g}" for minutes in item.minutes)
        console.print(f"[bold]{item.name}[/bold]  {escape(item.title)}", soft_wrap=True, highlight=False)
        where = f"    {item.place}; data: {item.data}; about {quick} min quick, {full} min full on two cores"
        console.print(escape(where), style="dim", soft_wrap=True, highlight=False)


def _make(items: Sequence[Item], options: Options, console: Console) -> int:
    began = perf_counter()
    shop = Workshop(options.root, options.out / "cells")
    wanted = {item.name: usable(item.cells(options), options, shop) for item in items}
    cells = list(dict.fromkeys(cell for own, _ in wanted.values() for cell in own))
    results, failures = _measure(cells, options, shop, console)
    reports = []
    for item in items:
        own, notes = wanted[item.name]
        report = Report(item.name, item.title, notes=[f"In the paper: {item.place}.", *notes])
        report.notes += [f"Not measured: {cell}: {failures[cell]}" for cell in own if cell in failures]
        if options.epochs is not None and own:
            report.notes.append(f"Epochs of training: {options.epochs} instead of the recipe's.")
        report.sections += item.sections(Made(options, results, shop))
        page = write_report(report, options.out)
        reports.append(report)
        for note in report.notes[1:]:
            console.print(f"{item.name}: {escape(note)}", highlight=False, soft_wrap=True)
        if not report.sections:
            console.print(f"{item.name}: nothing to show for what was asked.", highlight=False)
        console.print(f"{item.name}: {page}", highlight=False, soft_wrap=True)
    if len(items) > 1:
        console.print(f"All: {write_summary(reports, options.out)}", highlight=False, soft_wrap=True)
    console.print(f"{(perf_counter() - began) / 60:.1f} minutes", highlight=False)
    return 1 if failures else 0


def _measure(
    cells: Sequence[Cell], options: Options, shop: Workshop, console: Console
) -> tuple[dict[Cell, Result], dict[Cell, str]]:
    """Results of the cells, and why some have none."""
    results: dict[Cell, Result] = {}
    failures: dict[Cell, str] = {}
    progress = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
    )
    known = sum(cell.known(shop) is not None for cell in cells)
    if known:
        console.print(f"{known} of {len(cells)} cells finished before, not done again", highlight=False)
    with progress:
        task = progress.add_task("cells", total=len(cells) - known)
        for cell, result in measure(cells, options, shop):
            fresh = len(results) + len(failures) >= known
            if isinstance(result, AttreeError):
                failures[cell] = str(result)
            else:
                results[cell] = result
            if fresh:
                progress.advance(task)
                took = "failed" if cell in failures else f"{results[cell]['seconds']:.0f} s"
                console.print(f"{took:>7}  {escape(str(cell))}", highlight=False)
    return results, failures
