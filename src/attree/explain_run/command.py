"""The command `attree explain`: write explanations of a finished run as a dataset, figures, a table and a page."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.text import Text
from torch import Tensor
from torch_geometric.data import Batch

from attree.attribution import DEFAULT_METHODS, make_methods
from attree.errors import expect
from attree.evaluation import EvaluationConfig, Evaluator, TargetLabels
from attree.evaluation.config import Shard, choose_targets, default_methods
from attree.evaluation.evaluate import REDUCING
from attree.explain_run.call import call_fingerprint, process_shard
from attree.explain_run.explained import find_targets
from attree.explain_run.parts import PartFolder, write_parts
from attree.explain_run.rows import strongest_rows
from attree.explain_run.summary import MOST_TARGETS, CallSummary, clear_summary
from attree.explain_run.targets import ExplainedTargets, ExplainRequest
from attree.faithfulness import Reducer, resolve_protocols
from attree.io.processes import stop_status, terminate_as_interrupt
from attree.io.terminal import LateBar, linked, next_command, plain_console
from attree.report.selection import order_targets
from attree.report.style import count
from attree.runs.classes import foreign_classes, search_working_folder
from attree.runs.load_run import FinishedRun, load_run
from attree.subject.diagnose import bypass_of, what_attention_misses

NO_PROTOCOLS = ["none"]
PART_ROWS = 4_000_000
REDUCED_PART_ROWS = 1_000_000
"""Approximate number of rows per file, without and with protocols."""

RowsOf = Callable[[int, int], pa.Table]
"""Returns the rows of the targets from a first position to a last one (exclusive)."""


def explain_run(
    run: Path,
    targets: str,
    methods: Sequence[str] | None,
    protocols: Sequence[str],
    allow: Sequence[str],
    out: Path | None,
    overwrite: bool,
    by_neighbourhood: bool,
    part_rows: int | None,
    figures: int,
    show: int,
    seed: int,
    top: int | None,
) -> int:
    """Explain targets of a finished run, write the explanations, and return the exit status.

    Args:
        run: The run directory, or a checkpoint in it.
        targets: The targets, see `parse_targets`.
        methods: Names of attribution methods; None takes the default methods.
        protocols: Names of reduction protocols; `none` alone means no protocol.
        allow: Import paths of the user's classes that the run's config may use.
        out: Folder to write to; None for `explain` in the run directory.
        overwrite: Replace the files of another call.
        by_neighbourhood: Never run the network on the whole graph.
        part_rows: Approximate number of rows per file.
        figures: Number of targets to draw.
        show: Number of targets whose strongest edges are printed.
        seed: Seed of random targets and scores.
        top: Number of edges to write per target, those with the highest scores of the first method; None for all.
    """
    expect(len(protocols) > 0, "protocols", "names of protocols, or none", "nothing")
    if allow:
        search_working_folder()
    try:
        with terminate_as_interrupt():
            protocols = [] if list(protocols) == NO_PROTOCOLS else protocols
            loaded, explained = open_targets(run, targets, methods, protocols, allow, seed, by_neighbourhood)
            call = _Call(loaded, explained, out or loaded.folder / "explain", by_neighbourhood, seed, top)
            call.write(part_rows, overwrite, figures, show)
            return 0
    except KeyboardInterrupt as stop:
        print("attree: stopped. Run the same command again to continue.", file=sys.stderr)
        return stop_status(stop)


def open_targets(
    path: Path,
    targets: str,
    methods: Sequence[str] | None,
    protocols: Sequence[str],
    allow: Sequence[str],
    seed: int,
    by_neighbourhood: bool = False,
) -> tuple[FinishedRun, ExplainedTargets]:
    """Open a run, and return it with its targets and the methods and protocols to explain them by.

    The arguments are those of `explain_run`, but without protocols `protocols` is empty. The default methods are those
    of a fit: `occlusion` is among them if edges are reduced by exact updates.
    """
    known_methods = make_methods(DEFAULT_METHODS if methods is None else methods, seed=seed)
    run = load_run(path, allow=allow)
    resolved = resolve_protocols(protocols, run.net)
    explained = find_targets(run, ExplainRequest(targets, seed, known_methods, resolved, by_neighbourhood))
    if methods is None and resolved and not by_neighbourhood:
        explained.methods = make_methods(default_methods(Reducer(explained.sample())), seed=seed)
    return run, explained


@dataclass(frozen=True)
class _Call:
    """One call of the command.

    Attributes:
        run: The run.
        explained: The targets.
        out: Folder to write to.
        by_neighbourhood: Whether the network never runs on the whole graph.
        seed: Seed of the targets of the summary, and of random scores.
        top: Number of edges to write per target; None for all.
    """

    run: FinishedRun
    explained: ExplainedTargets
    out: Path
    by_neighbourhood: bool
    seed: int
    top: int | None = None

    def write(self, part_rows: int | None, overwrite: bool, figures: int, show: int) -> None:
        """Write the dataset and, if this process runs alone, the summary."""
        explained, shard = self.explained, process_shard()
        methods, protocols = explained.methods, explained.protocols
        bounds = explained.bounds(part_rows or (REDUCED_PART_ROWS if protocols else PART_ROWS))
        fingerprint = call_fingerprint(
            self.run.module,
            explained.graphs,
            explained.ids,
            methods,
            protocols,
            bounds,
            self.by_neighbourhood,
            self.top,
        )
        parts = PartFolder(self.out / "scores", fingerprint, len(bounds))
        about = {
            "run": str(self.run.folder),
            "targets": explained.ids.numel(),
            "methods": list(methods),
            "protocols": [str(protocol) for protocol in protocols],
        }
        if parts.open(about, overwrite):
            clear_summary(self.out)
        console = plain_console(soft_wrap=True)
        has_summary = shard.world_size == 1 and not self.by_neighbourhood
        sample = _random_sample(explained, self.seed) if has_summary else explained
        try:
            if has_summary:
                summary = evaluate_targets(self.run, sample, self.seed)
                rows: RowsOf = partial(explained.evaluated_table, summary.evaluation)
                if sample is not explained:
                    summary.shown = evaluate_targets(self.run, _most_instructive(explained), self.seed)
                    rows = explained.table
                written = write_parts(parts, bounds, self._kept(rows))
                summary.write(self.out, figures)
                summary.show(console, show)
            else:
                _warn_of_bypass(explained, shard, self.by_neighbourhood)
                written = write_parts(parts, bounds, self._kept(explained.table), shard.rank == 0)
        finally:
            parts.close()
        if sample is not explained:
            console.print(
                f"Metrics are of {sample.ids.numel()} of the {explained.ids.numel():,} targets, drawn at random; the "
                f"page shows the {summary.shown.explained.ids.numel()} most instructive (right, with true edges, "
                "small, confident); the scores are of all."
            )
        _print_files(console, parts, written, self.out, shard, has_summary)
        if has_summary:
            foreign = foreign_classes(self.run.config)
            allow = ["--allow", ",".join(foreign)] if foreign else []
            console.print(next_command("attree", "serve", self.run.folder, *allow))

    def _kept(self, rows: RowsOf) -> RowsOf:
        """Return a function that returns the rows to write: all of `rows`, or each target's strongest edges."""
        top, first = self.top, next(iter(self.explained.methods))
        return rows if top is None else lambda begin, end: strongest_rows(rows(begin, end), first, top)


def _random_sample(explained: ExplainedTargets, seed: int) -> ExplainedTargets:
    """Return the targets to evaluate: all, or a random sample that fits on the page and into one part."""
    number = explained.ids.numel()
    return explained if number <= MOST_TARGETS else _fitting(explained, choose_targets(MOST_TARGETS, number, seed))


def _most_instructive(explained: ExplainedTargets) -> ExplainedTargets:
    """Return the most instructive targets, chosen without scores, to show if there are too many targets.

    Metrics are taken from a random sample instead, because these targets are picked for correct predictions.
    """
    order = order_targets(explained.sizes(), explained.predictions(), explained.labels, explained.has_truth)
    return _fitting(explained, order[:MOST_TARGETS].sort().values)


def _fitting(explained: ExplainedTargets, part: Tensor) -> ExplainedTargets:
    """Return the targets at positions `part`, without the last ones if not all fit into one file."""
    fitting = int((explained.sizes()[part].cumsum(0) <= PART_ROWS).sum())
    return explained.only(part[: max(fitting, 1)])


def evaluate_targets(run: FinishedRun, explained: ExplainedTargets, seed: int) -> CallSummary:
    """Evaluate targets of a run, and return the summary."""
    subject, graphs = explained.subject, list(explained.graphs)
    labels = TargetLabels.of(
        graphs[0] if explained.first_nodes is None else Batch.from_data_list(graphs),
        subject,
        explained.class_names,
        explained.node_types,
        explained.ids,
        explained.name,
    )
    evaluator = Evaluator(
        subject,
        explained.positions,
        EvaluationConfig(explained.methods.values(), explained.protocols, seed=seed),
        None if explained.truth is None else explained.truth.of_targets(explained.ids),
        labels=labels,
    )
    with closing(LateBar(REDUCING)) as bar:
        return CallSummary(run, explained, evaluator.evaluate(bar.update), evaluator)


def _warn_of_bypass(explained: ExplainedTargets, shard: Shard, by_neighbourhood: bool) -> None:
    """Warn once about paths that bypass attention. With `--by_neighbourhood`, each part is checked when it runs."""
    if shard.rank > 0 or by_neighbourhood:
        return
    subject = explained.sample()
    for sentence in what_attention_misses(subject, bypass_of(subject)):
        warnings.warn(sentence, stacklevel=2)


def _print_files(console: Console, parts: PartFolder, written: int, out: Path, shard: Shard, has_summary: bool) -> None:
    """Print which files were written, and which are missing."""
    found, rows = parts.count()
    whole = f"{count(found, 'part')}, {count(rows, 'row')}" if found == parts.num_parts else ""
    own = (
        f"Process {shard.rank + 1} of {shard.world_size} wrote {count(written, 'part')}. "
        if shard.world_size > 1
        else ""
    )
    missing = f"{found} of {parts.num_parts} parts; other processes are still writing the rest"
    console.print(Text.assemble(f"{own}Scores: ", linked(parts.folder), f" ({whole or missing})"))
    if has_summary:
        console.print(Text("Metrics and figures: ") + linked(out))
        console.print(Text("Page: ") + linked(out / "page.html"))
    elif shard.rank == 0:
        console.print(
            "No metrics, figures or page were written: they need a single process and a pass over the whole graph."
        )
