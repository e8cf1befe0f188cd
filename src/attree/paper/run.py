"""Make tables and figures of the paper: measure their cells, in parallel if requested, and write the reports."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from html import escape
from pathlib import Path
from time import perf_counter

import pandas as pd
from rich.console import Console

from attree.attribution import method_label
from attree.errors import AttreeError, MissingDataError
from attree.io.files import replacing, write_text
from attree.io.processes import end_worker_with_parent, stop_status, terminate_as_interrupt
from attree.io.terminal import item_bar, plain_console
from attree.paper.cells import Cell, CellContext, Result
from attree.paper.report_items import (
    CLOSE,
    FAR,
    FEW_CHANGED,
    NEAR,
    ItemInputs,
    Options,
    Picture,
    Report,
    Section,
    Table,
)
from attree.paper.tables import ITEMS
from attree.report.plain_page import PagePart, inline, plain_page, plain_table

SLIP = "†"
STATISTICS = {
    "pc_pearson": "dPC Pearson",
    "pc_kendall": "dPC Kendall",
    "pc_spearman": "dPC Spearman",
    "ne_pearson": "dNE Pearson",
    "ne_kendall": "dNE Kendall",
    "ne_spearman": "dNE Spearman",
    "p_auroc": "dP AUROC",
    "faithfulness": "mean of seven",
    "truth_auroc": "AUROC",
}
LEGEND = (
    "Each cell: our number (mean over seeds, ± standard deviation), then in brackets the paper's number and the "
    f"difference. {SLIP}: a known misprint; the difference is from the number that was meant. n: number of changed "
    f"predictions per network, if fewer than {FEW_CHANGED}."
)
BOUNDS = ((CLOSE, "close"), (NEAR, "near"), (FAR, "far"), (math.inf, "beyond"))
"""Largest difference for each of the page's colours."""


def write_report(report: Report, folder: Path) -> Path:
    """Write a report's files to `folder/<name>`, and return the path of its HTML page."""
    report_folder = folder / report.name
    for section in report.sections:
        if isinstance(section, Table):
            write_text(report_folder / f"{section.name}.csv", section.rows.to_csv(index=False, float_format="%.6g"))
        else:
            with replacing(report_folder / f"{section.name}.png") as temporary:
                section.figure.savefig(temporary, format="png")
    write_text(report_folder / "report.md", markdown(report))
    return write_text(report_folder / "index.html", _page(report))


def markdown(report: Report) -> str:
    """Return a report as Markdown."""
    parts = [f"# {report.title}", *(f"{note}" for note in report.notes)]
    for section in report.sections:
        parts.append(f"## {section.title}")
        if isinstance(section, Picture):
            parts.append(f"![{section.title}]({section.name}.png)")
        elif section.csv_only:
            parts.append(f"{len(section.rows):,} rows in [{section.name}.csv]({section.name}.csv).")
        else:
            parts.append(_markdown_table(section))
        parts += list(section.notes)
    if any(_compares(section) for section in report.sections):
        parts.append(LEGEND)
    return "\n\n".join(parts) + "\n"


def _compares(section: Section) -> bool:
    return isinstance(section, Table) and "paper" in section.rows and bool(section.rows["paper"].notna().any())


def label(column: str, value: object) -> str:
    """Return the heading for a value of a column."""
    if column == "method":
        return method_label(str(value))
    if column == "statistic":
        return STATISTICS.get(str(value), str(value))
    units = {"layers": "layers", "heads": "heads" if value != 1 else "head"}
    return f"{value} {units[column]}" if column in units else str(value)


def text(row: pd.Series, digits: int) -> str:
    """Return the text of a cell."""
    ours = row["ours"]
    if isinstance(ours, str):
        return ours
    parts = ["undefined" if not _finite(ours) else f"{ours:.{digits}f}"]
    if _finite(row.get("spread")):
        parts.append(f"± {row['spread']:.{digits}f}")
    if _finite(row.get("paper")):
        mark = SLIP if isinstance(row.get("slip"), str) else ""
        difference = f", {row['difference']:+.{digits}f}" if _finite(row.get("difference")) else ""
        parts.append(f"({row['paper']:.{digits}f}{mark}{difference})")
    if row.get("statistic") == "p_auroc" and _finite(row.get("changed")) and row["changed"] < FEW_CHANGED:
        parts.append(f"n={row['changed']:.0f}")
    return " ".join(parts)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _grid(
    table: Table,
) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]], dict[tuple[object, ...], pd.Series]]:
    """Return the row headings and column headings, in order of appearance, and the row of numbers of each cell."""
    index, columns = list(table.index), list(table.columns)
    heads: dict[tuple[object, ...], None] = {}
    sides: dict[tuple[object, ...], None] = {}
    cells: dict[tuple[object, ...], pd.Series] = {}
    for _, row in table.rows.iterrows():
        side, head = tuple(row[name] for name in index), tuple(row[name] for name in columns)
        sides[side], heads[head] = None, None
        cells[(*side, *head)] = row
    return list(sides), list(heads), cells


def _markdown_table(table: Table) -> str:
    """Return a table of a report as a Markdown table."""
    sides, heads, cells = _grid(table)
    headings = [" ".join(label(name, value) for name, value in zip(table.columns, head, strict=True)) for head in heads]
    lines = [
        "| " + " | ".join([*table.index, *headings]) + " |",
        "|" + "---|" * (len(table.index) + len(heads)),
    ]
    for side in sides:
        names = [label(name, value) for name, value in zip(table.index, side, strict=True)]
        values = [text(cells[(*side, *head)], table.digits) if (*side, *head) in cells else "" for head in heads]
        lines.append("| " + " | ".join([*names, *values]) + " |")
    return "\n".join(lines)


def _page(report: Report) -> str:
    """Return the HTML page of a report: its notes, the key of the colours, and all tables and figures."""
    intro = [f"<p>{inline(note)}</p>" for note in report.notes]
    if any(_compares(section) for section in report.sections):
        words = [f"within {CLOSE:g}", f"within {NEAR:g}", f"within {FAR:g}", "beyond"]
        spans = [f'<span class="{kind}">{word}</span>' for word, (_, kind) in zip(words, BOUNDS, strict=True)]
        intro.append(f'<p class="key">Difference from the paper: {"".join(spans)}</p>')
        intro.append(f'<p class="note">{inline(LEGEND)}</p>')
    parts = []
    for section in report.sections:
        if isinstance(section, Picture):
            body = [f'<figure><img src="{section.name}.png" alt="{escape(section.title)}"></figure>']
        else:
            body = _html_table(section)
        body += [f'<p class="note">{inline(note)}</p>' for note in section.notes]
        parts.append(PagePart(section.title, "\n".join(body)))
    return plain_page(report.title, "\n".join(intro), parts)


def _html_table(table: Table) -> list[str]:
    """Return the HTML of a table: the table, remarks on single cells, and a link to its CSV file."""
    parts, remarks = [], []
    if not table.csv_only:
        sides, heads, cells = _grid(table)
        headings = [
            " ".join(label(name, value) for name, value in zip(table.columns, head, strict=True)) for head in heads
        ]
        lines = []
        for side in sides:
            names = [label(name, value) for name, value in zip(table.index, side, strict=True)]
            line = "".join(f'<th scope="row">{escape(name)}</th>' for name in names)
            for heading, head in zip(headings, heads, strict=True):
                row = cells.get((*side, *head))
                line += "<td></td>" if row is None else _html_cell(row, table.digits)
                if row is not None and (remark := _remark(row)):
                    remarks.append(f"<li>{escape(', '.join([*names, heading]))}: {escape(remark)}</li>")
            lines.append(f"<tr>{line}</tr>")
        parts.append(plain_table([*table.index, *headings], lines, table.title))
    if remarks:
        summary = "1 cell is explained" if len(remarks) == 1 else f"{len(remarks)} cells are explained"
        parts.append(f'<details class="note"><summary>{summary}</summary><ul>{"".join(remarks)}</ul></details>')
    parts.append(f'<p class="note"><a href="{table.name}.csv">{table.name}.csv</a></p>')
    return parts


def _html_cell(row: pd.Series, digits: int) -> str:
    """Return a cell of an HTML table, coloured by the difference from the paper's number, with a remark as tooltip."""
    difference = row.get("difference")
    kind = ""
    if _finite(difference):
        assert difference is not None
        kind = f' class="{next(kind for bound, kind in BOUNDS if abs(difference) <= bound)}"'
    remark = _remark(row)
    title = f' title="{escape(remark)}"' if remark else ""
    return f"<td{kind}{title}>{escape(text(row, digits))}</td>"


def _remark(row: pd.Series) -> str:
    """Return the remark on a cell: a misprint, or why our number differs from the paper's."""
    return "; ".join(str(row[name]) for name in ("slip", "reason") if isinstance(row.get(name), str) and row[name])


def write_summary(reports: Sequence[Report], folder: Path) -> Path:
    """Write `index.html` with a line for each report, and return its path."""
    lines = []
    for report in reports:
        notes = " ".join(note for section in report.sections for note in section.notes[:1])
        described = " ".join([notes, *report.notes[1:]]).strip()
        link = f'<a href="{report.name}/index.html">{inline(report.title)}</a>'
        lines.append(f'<li>{link}<br><span class="note">{inline(described)}</span></li>')
    return write_text(
        folder / "index.html", plain_page("The paper's tables and figures", f"<ul>{''.join(lines)}</ul>", [])
    )


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
