"""The command `attree explain`: write explanations of a finished run as a dataset, figures, a table and a page."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from attree.errors import ArgumentError, expect
from attree.evaluation import EvaluationConfig, Evaluator
from attree.evaluation.config import Shard
from attree.evaluation.evaluate import REDUCING
from attree.explain_run.on_disk import ExplainedDiskNodes
from attree.explain_run.parts import process_share
from attree.explain_run.ray_engine import RayOptions, expect_ray, write_with_ray
from attree.explain_run.summary import MOST_TARGETS, CallSummary, clear_summary
from attree.explain_run.targets import ExplainedTargets
from attree.explain_run.write_part import PART_ROWS, ExplainCall, OpenCall, WrittenPart
from attree.io.processes import stop_status, terminate_as_interrupt
from attree.io.terminal import LateBar, linked, next_command, plain_console, progress_bar
from attree.report.drawn_targets import order_targets
from attree.report.style import count
from attree.runs.classes import foreign_classes
from attree.runs.load_run import FinishedRun
from attree.source import choose_targets
from attree.subject.missed_by_attention import bypass_of, what_attention_misses

NO_PROTOCOLS = ["none"]


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
    share: str | None,
    engine: str,
    address: str | None,
    workers: int | None,
    cpus: int | None,
    gpus: float | None,
    graph: Path | None,
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
        share: The share of the parts to write, such as `3/16`; None for that of the launcher, or all.
        engine: Who writes the parts: `process`, this process; `ray`, workers of Ray.
        address: Address of the Ray cluster.
        workers: Number of Ray's workers.
        cpus: CPUs of each of Ray's workers.
        gpus: GPUs of each of Ray's workers.
        graph: Folder of a graph on disk to explain nodes of, instead of the run's data.
    """
    expect(len(protocols) > 0, "protocols", "names of protocols, or none", "nothing")
    try:
        with terminate_as_interrupt():
            options = _ray_options(engine, address, workers, cpus, gpus)
            part = process_share(share)
            if options is not None and part.world_size > 1:
                raise ArgumentError(
                    "Expected one process with --engine ray, as Ray starts the others, but got process "
                    f"{part.rank + 1} of {part.world_size}."
                )
            protocols = [] if list(protocols) == NO_PROTOCOLS else protocols
            call = ExplainCall(
                run, targets, methods, protocols, allow, out, by_neighbourhood, part_rows, top, seed, graph
            )
            opened = OpenCall(call)
            if opened.open(overwrite):
                clear_summary(opened.out)
            # Processes of a launcher share a terminal, where the first one shows a bar. A typed share has its own.
            _write(opened, part, options, figures, show, has_bar=part.rank == 0 or share is not None)
            return 0
    except KeyboardInterrupt as stop:
        print("attree: stopped. Run the same command again to continue.", file=sys.stderr)
        return stop_status(stop)


def _ray_options(
    engine: str, address: str | None, workers: int | None, cpus: int | None, gpus: float | None
) -> RayOptions | None:
    """Return the options of Ray; None if this process writes the parts itself. Raise if Ray cannot be reached."""
    if engine == "ray":
        options = RayOptions(address, workers, cpus or 1, gpus or 0.0)
        expect_ray(options)
        return options
    for name, value in (("address", address), ("workers", workers), ("cpus", cpus), ("gpus", gpus)):
        expect(value is None, name, "used only with --engine ray", value)
    return None


def _write(opened: OpenCall, share: Shard, options: RayOptions | None, figures: int, show: int, has_bar: bool) -> None:
    """Write the dataset, or this process's share of it, and, if all parts are this command's, the summary."""
    explained, console = opened.explained, plain_console(soft_wrap=True)
    has_summary = share.world_size == 1 and not opened.call.by_neighbourhood
    sample = _random_sample(explained, opened.call.seed) if has_summary else explained
    if not has_summary:
        _warn_of_bypass(explained, share, opened.call.by_neighbourhood)
    summary = evaluate_targets(opened.run, sample, opened.call.seed) if has_summary and options is None else None
    written = _write_parts(opened, share, options, summary, has_bar)
    if has_summary:
        summary = summary or evaluate_targets(opened.run, sample, opened.call.seed)
        if sample is not explained and explained.predicts_all:
            summary.of_page = evaluate_targets(opened.run, _most_instructive(explained), opened.call.seed)
        summary.write(opened.out, figures)
        summary.show(console, show)
        if sample is not explained:
            page_targets = "them"
            if summary.of_page is not summary:
                number = summary.of_page.explained.ids.numel()
                page_targets = f"the {number} most instructive (right, with true edges, small, confident)"
            console.print(
                f"Metrics are of {sample.ids.numel()} of the {explained.ids.numel():,} targets, drawn at random; the "
                f"page shows {page_targets}; the scores are of all."
            )
    _print_files(console, opened, written, share, has_summary)
    if has_summary:
        foreign = foreign_classes(opened.run.config)
        allow = ["--allow", ",".join(foreign)] if foreign else []
        console.print(next_command("attree", "serve", opened.run.folder, *allow))


def _write_parts(
    opened: OpenCall, share: Shard, options: RayOptions | None, summary: CallSummary | None, has_bar: bool
) -> list[WrittenPart]:
    """Write the missing parts of a share, and return what was written.

    Args:
        opened: The call.
        share: The share.
        options: Options of Ray; None to write in this process.
        summary: An evaluation of all targets, or of a sample, if there is one.
        has_bar: Whether this process shows the progress bar.
    """
    parts, bounds = opened.parts, opened.bounds
    missing = parts.missing(range(share.rank, len(bounds), share.world_size))
    total = sum(end - begin for begin, end in (bounds[number] for number in missing))
    # With one part, its rows are those that were evaluated; with several, other batches could round otherwise.
    is_evaluated = summary is not None and summary.explained is opened.explained and len(bounds) == 1
    rows = partial(opened.explained.evaluated_table, summary.evaluation) if summary and is_evaluated else None
    try:
        with progress_bar("Explaining", total) if has_bar else nullcontext(_ignore) as advance:
            if options is not None:
                return write_with_ray(opened.call, missing, options, advance, parts)
            return opened.write_all(missing, advance, rows)
    finally:
        parts.tidy()


def _ignore(done: int) -> None:
    """Show no progress: another process of the same terminal does."""


def _random_sample(explained: ExplainedTargets, seed: int) -> ExplainedTargets:
    """Return the targets to evaluate: all, or a random sample that fits on the page and into one part."""
    number = explained.ids.numel()
    if number <= MOST_TARGETS and not isinstance(explained, ExplainedDiskNodes):
        return explained
    return explained.fitting(choose_targets(MOST_TARGETS, number, seed), PART_ROWS)


def _most_instructive(explained: ExplainedTargets) -> ExplainedTargets:
    """Return the most instructive targets, chosen without scores, to show if there are too many targets.

    Metrics are taken from a random sample instead, because these targets are picked for correct predictions.
    """
    order = order_targets(explained.sizes(), explained.predictions(), explained.labels, explained.has_truth)
    return explained.fitting(order[:MOST_TARGETS].sort().values, PART_ROWS)


def evaluate_targets(run: FinishedRun, explained: ExplainedTargets, seed: int) -> CallSummary:
    """Evaluate targets of a run, and return the summary."""
    evaluator = Evaluator(
        explained.subject,
        explained.positions,
        EvaluationConfig(explained.methods.values(), explained.protocols, seed=seed),
        explained.subject_truth,
        labels=explained.target_labels(),
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


def _print_files(
    console: Console, opened: OpenCall, written: Sequence[WrittenPart], share: Shard, has_summary: bool
) -> None:
    """Print which files were written, by whom, and which are missing."""
    parts = opened.parts
    existing, rows = parts.count()
    hosts = {part.host for part in written}
    if share.world_size > 1:
        console.print(f"Share {share.rank + 1} of {share.world_size}: {count(len(written), 'part')} written.")
    elif len(hosts) > 1:
        console.print(f"{count(len(hosts), 'machine')} wrote {count(len(written), 'part')}.")
    whole = f"{count(existing, 'part')}, {count(rows, 'row')}" if existing == parts.num_parts else ""
    missing = f"{existing} of {parts.num_parts} parts; the others are those of other shares"
    console.print(Text.assemble("Scores: ", linked(parts.folder), f" ({whole or missing})"))
    if has_summary:
        console.print(Text("Metrics and figures: ") + linked(opened.out))
        console.print(Text("Page: ") + linked(opened.out / "page.html"))
    elif opened.call.by_neighbourhood:
        console.print("No metrics, figures or page were written: they need a pass over the whole graph.")
    elif share.rank == 0:
        console.print(
            "No metrics, figures or page were written: when all shares are done, run the command without a share."
        )
