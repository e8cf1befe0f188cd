"""The command `attree explain`: explanations of a finished run, as a dataset, figures, a table and a page."""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from torch_geometric.data import Batch

from attree.attribution import DEFAULT_METHODS, METHODS, make_methods, method_label
from attree.errors import expect
from attree.evaluation import Evaluation, Evaluator, TargetLabels
from attree.evaluation.shard import Shard
from attree.evaluation.targets import choose_targets
from attree.explain.call_fingerprint import call_fingerprint
from attree.explain.explained import Explained, explained_of
from attree.explain.load_run import FinishedRun, load_run
from attree.explain.parts import PartFolder
from attree.explain.share import process_share
from attree.explain.stream import write_parts
from attree.explain.summary import MOST_TARGETS, Summary, clear_summary
from attree.faithfulness import DEFAULT_PROTOCOLS, protocol_names, resolve_protocols
from attree.processes import terminate_as_interrupt
from attree.report.style import count
from attree.subject.diagnose import bypass_of, what_attention_misses

NO_PROTOCOLS = ["none"]
PART_ROWS = 4_000_000
JUDGED_PART_ROWS = 1_000_000

DESCRIPTION = f"""Explain targets of a finished run: what each method says of the edges around them, and what reducing
each edge's attention does to the prediction.

Writes the folder OUT/scores, Parquet files that pandas.read_parquet, Polars and DuckDB read as one table: target,
source, destination, a column of scores for each method and, for each protocol, dpc_, dne_ and changed_: how far the
predicted class's probability drops, how the negative entropy changes and whether the class changes when the edge's
attention is reduced. With protocols, a target's rows are all edges of its neighbourhood, with `--protocols none` those
that carry a flow to it. Any number of targets takes bounded memory; a call that was stopped goes on where it was when
it is given again. Under torchrun or SLURM every process writes its share of the files.

In one process the targets are also summed up, or {MOST_TARGETS} of them, drawn at random, if there are more:
scores_<method>.npz, metrics.json, evaluation.npz, figures and page.html, which opens in any browser; the strongest
edges are printed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `attree explain` with the arguments that follow it, and return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        with terminate_as_interrupt():
            return _explain(arguments)
    except KeyboardInterrupt:
        print("attree: stopped; the same command goes on where it was.", file=sys.stderr)
        return 128 + signal.SIGINT


def _explain(arguments: argparse.Namespace) -> int:
    expect(arguments.part_rows is None or arguments.part_rows >= 1, "part_rows", "an integer >= 1", arguments.part_rows)
    for argument in ("figures", "show"):
        expect(getattr(arguments, argument) >= 0, argument, "an integer >= 0", getattr(arguments, argument))
    expect(len(arguments.protocols) > 0, "protocols", "names of protocols, or none", "nothing")
    share = process_share()
    methods = make_methods(arguments.methods, seed=arguments.seed)
    run = load_run(arguments.run, allow=arguments.allow)
    named = [] if arguments.protocols == NO_PROTOCOLS else arguments.protocols
    protocols = resolve_protocols(named, run.net)
    explained = explained_of(
        run, arguments.targets, arguments.seed, methods, protocols, by_neighbourhood=arguments.by_neighbourhood
    )
    bounds = explained.bounds(arguments.part_rows or (JUDGED_PART_ROWS if protocols else PART_ROWS))
    fingerprint = call_fingerprint(
        run.module, explained.graphs, explained.ids, methods, protocols, bounds, arguments.by_neighbourhood
    )
    out = arguments.out or run.folder / "explain"
    parts = PartFolder(out / "scores", fingerprint, len(bounds), share)
    about = {
        "run": str(run.folder),
        "targets": explained.ids.numel(),
        "methods": list(methods),
        "protocols": [str(protocol) for protocol in protocols],
    }
    if parts.open(about, arguments.overwrite):
        clear_summary(out)
    console = Console(soft_wrap=True, highlight=False)
    try:
        summed_up = share.world_size == 1 and not arguments.by_neighbourhood
        if summed_up:
            few = _few(explained, arguments.seed)
            summary = _evaluate(run, few, arguments.seed)
            rows = explained.table if few is not explained else _reader(explained, summary.evaluation)
            written = write_parts(parts, bounds, rows)
            summary.write(out, arguments.figures)
            summary.show(console, arguments.show)
        else:
            _warn(explained, share, arguments.by_neighbourhood)
            written = write_parts(parts, bounds, explained.table)
    finally:
        parts.close()
    if summed_up and few is not explained:
        console.print(
            f"Metrics, figures and page are of {few.ids.numel()} of the {explained.ids.numel():,} targets, drawn at "
            "random; the scores are of all."
        )
    _say(console, parts, written, out, summed_up)
    return 0


def _few(explained: Explained, seed: int) -> Explained:
    """The targets that are summed up: all, or as many as a page shows and a part holds, drawn at random."""
    number = explained.ids.numel()
    if number <= MOST_TARGETS:
        return explained
    drawn = choose_targets(MOST_TARGETS, number, seed)
    fitting = int((explained.sizes()[drawn].cumsum(0) <= PART_ROWS).sum())
    return explained.only(drawn[: max(fitting, 1)])


def _evaluate(run: FinishedRun, explained: Explained, seed: int) -> Summary:
    subject, graphs = explained.subject, list(explained.graphs)
    labels = TargetLabels.of(
        graphs[0] if explained.first_nodes is None else Batch.from_data_list(graphs),
        subject,
        explained.class_names,
        explained.node_types,
        explained.ids,
        run.data.name,
    )
    evaluator = Evaluator(
        subject,
        explained.positions,
        explained.methods.values(),
        explained.protocols,
        None if explained.truth is None else explained.truth.of_targets(explained.ids),
        labels=labels,
        seed=seed,
    )
    return Summary(run, explained, evaluator.evaluate(), evaluator)


def _reader(explained: Explained, evaluation: Evaluation) -> Callable[[int, int], pa.Table]:
    return lambda begin, end: explained.evaluated_table(evaluation, begin, end)


def _warn(explained: Explained, share: Shard, by_neighbourhood: bool) -> None:
    """Say once what attention does not see; parts of a graph are checked where they are run on."""
    if share.rank > 0 or by_neighbourhood:
        return
    subject = explained.sample()
    for sentence in what_attention_misses(subject, bypass_of(subject)):
        warnings.warn(sentence, stacklevel=2)


def _say(console: Console, parts: PartFolder, written: int, out: Path, summed_up: bool) -> None:
    """Say what is where, and what is not there."""
    share = parts.share
    found, rows = parts.count()
    whole = f"{count(found, 'part')}, {count(rows, 'row')}" if found == parts.num_parts else ""
    own = (
        f"Process {share.rank + 1} of {share.world_size} wrote {count(written, 'part')}. "
        if share.world_size > 1
        else ""
    )
    missing = f"{found} of {parts.num_parts} parts: other processes have theirs to write yet"
    console.print(f"{own}Scores: {parts.folder} ({whole or missing})")
    if summed_up:
        console.print(f"Metrics and figures: {out}\nPage: {out / 'page.html'}")
    elif share.rank == 0:
        console.print("Metrics, figures and page are left out: they are for one process and one pass over the graph.")


def _parser() -> argparse.ArgumentParser:
    def words(text: str) -> list[str]:
        return [part.strip() for part in text.split(",") if part.strip()]

    parser = argparse.ArgumentParser(
        prog="attree explain", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run's folder (logs/infection/version_0) or its checkpoint")
    parser.add_argument(
        "--targets",
        default="random:20",
        help="ids and ranges (2,44,100-110), random:20, errors (misclassified; errors:20 draws some), truth, or all "
        "(default: random:20)",
    )
    methods = ", ".join(f"{name} ({method_label(name)})" for name in METHODS)
    parser.add_argument("--methods", type=words, default=list(DEFAULT_METHODS), help=f"of {methods}")
    parser.add_argument(
        "--protocols",
        type=words,
        default=list(DEFAULT_PROTOCOLS),
        help=f"of {', '.join(protocol_names())}, or none for scores alone (default: {','.join(DEFAULT_PROTOCOLS)})",
    )
    parser.add_argument(
        "--allow",
        type=words,
        action="extend",
        default=[],
        metavar="CLASS,...",
        help="classes beside attree's own that the run's config may use, by import path: their code is run",
    )
    parser.add_argument("--out", type=Path, default=None, help="folder to write to (default: RUN/explain)")
    parser.add_argument("--overwrite", action="store_true", help="replace what another call has left in the folder")
    parser.add_argument(
        "--by_neighbourhood",
        action="store_true",
        help="run the network on neighbourhoods of targets: for graphs that fit no single forward pass; scores alone",
    )
    parser.add_argument(
        "--part_rows",
        type=int,
        default=None,
        help=f"about how many rows a file has (default: {PART_ROWS:,}, or {JUDGED_PART_ROWS:,} with protocols)",
    )
    parser.add_argument("--figures", type=int, default=5, help="targets drawn as case studies (default: 5)")
    parser.add_argument("--show", type=int, default=3, help="targets whose edges are printed (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of random targets and scores (default: 0)")
    return parser
