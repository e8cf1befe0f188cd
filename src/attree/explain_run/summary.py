"""What people look at of a call with few targets: metrics, figures, a table and the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from attree.attribution import ComputationTree, Random
from attree.callbacks.outcome import warn_only
from attree.errors import expect
from attree.evaluation import Evaluation, Evaluator, MetricName, TargetLabels
from attree.explain_run.explained import ExplainedTargets
from attree.faithfulness import PROTOCOLS, Reducer, delete_edges, resolve_protocol
from attree.io.console import print_whole
from attree.io.files import replacing, write_text
from attree.io.json_files import read_metrics
from attree.report.case_studies import draw_case_studies, draw_score_histograms
from attree.report.computation_tree import computation_tree
from attree.report.curves import read_curves
from attree.report.deletion_curve import deletion_curve
from attree.report.dpc_scatter import dpc_scatter
from attree.report.page.content import MAX_TARGETS, page_content
from attree.report.page.write import page_html
from attree.report.style import significant
from attree.report.table import metrics_table
from attree.report.telling import telling_order
from attree.runs.load_run import FinishedRun

COUNTS = (0, 1, 2, 3, 5, 10, 20, 50)
"""How many edges are dropped at once."""

DRAWS = 3
"""Random draws that the random curve is the mean of."""

MOST_COPIED_EDGES = 30_000_000
"""Edges that all forward passes behind a deletion curve may run on together: about a minute's work."""

MOST_TREE_NODES = 60


def draw_targets(explained: ExplainedTargets, evaluator: Evaluator, positions: Sequence[int]) -> dict[str, Figure]:
    """Case studies and computation trees of some targets, by name; what cannot be drawn is a warning.

    Args:
        explained: What is explained.
        evaluator: What evaluated it.
        positions: Which targets, by their places among all.
    """
    figures: dict[str, Figure] = {}
    part = torch.tensor(positions, dtype=torch.int64)
    with warn_only("Case studies"):
        figures |= draw_case_studies(evaluator, len(positions), evaluator.targets.cpu()[part])
    subject = evaluator.subject
    if subject.level == "node" and subject.graph.types is None:  # a tree's nodes have numbers, not names
        with warn_only("Computation trees"):
            for target in explained.ids.cpu()[part].tolist():
                tree = ComputationTree(subject.attention, target, max_nodes=MOST_TREE_NODES, prune=True)
                figures[f"tree_{target}"] = computation_tree(tree)
    return figures


def draw_together(evaluator: Evaluator, evaluation: Evaluation) -> dict[str, Figure]:
    """The figures of all targets together, by name; one that cannot be drawn is a warning.

    Args:
        evaluator: What evaluated them.
        evaluation: What came of it.
    """
    figures: dict[str, Figure] = {}
    with warn_only("Figures of all targets"):
        figures |= draw_score_histograms(evaluation)
        for protocol, reduction in evaluation.reductions.items():
            names = {method: str(MetricName(method, "pc_pearson", protocol)) for method in evaluation.pair_scores}
            known = {method: evaluation.metrics[name] for method, name in names.items() if name in evaluation.metrics}
            figures[f"dpc_{protocol}"] = dpc_scatter(
                evaluation.pair_scores, reduction.delta_pc, protocol, pearsons=known
            )
    with warn_only("The deletion curve"):
        figures |= _deletion(evaluator, evaluation)
    return figures


def _deletion(evaluator: Evaluator, evaluation: Evaluation) -> dict[str, Figure]:
    """The deletion curve of as many targets as their neighbourhoods allow."""
    pairs, subject = evaluation.pairs, evaluator.subject
    by_name = {one.name: one for one in evaluator.protocols}
    protocol = by_name.get("removal", next(iter(by_name.values()), PROTOCOLS["removal"]))
    drawn = [name for name, method in evaluator.methods.items() if isinstance(method, Random)]
    scores = {name: values for name, values in evaluation.pair_scores.items() if name not in drawn}
    for draw in Random().draws(DRAWS):
        scores[f"random {draw.seed}"] = draw.score_pairs(subject, pairs)
    sizes = pairs.owner[pairs.flow].bincount(minlength=pairs.targets.numel())
    counts = [number for number in COUNTS if number <= int(sizes.max())]
    copied = (sizes * len(counts) * len(scores)).cumsum(0)
    number = int((copied <= MOST_COPIED_EDGES).sum())
    expect(number > 0, "targets", f"neighbourhoods of at most {MOST_COPIED_EDGES:,} edges in all", int(copied[0]))
    few = pairs.of_targets(torch.arange(number, device=pairs.edges.device))
    curves = delete_edges(subject, few, {name: values[: len(few)] for name, values in scores.items()}, counts, protocol)
    chance = torch.stack([curves.pop(name) for name in list(curves) if name.startswith("random ")]).mean(dim=0)
    notes = [] if protocol.name == "removal" else [f"protocol {protocol.name}"]
    if number < pairs.targets.numel():
        notes.append(f"of {pairs.targets.numel()}: the neighbourhoods of more are too large")
    return {"deletion": deletion_curve(counts, curves | {"random": chance}, ", ".join(notes))}


MOST_TARGETS = MAX_TARGETS
"""Targets up to which there is a summary: as many as a page shows."""

FORMATS = (".png", ".svg")
MOST_EDGES = 8
MOST_PATHS = 3
CHANGED = "*: the predicted class changes"
OWN_FILES = ("metrics.json", "methods.json", "evaluation.npz", "page.html", "scores_*.npz")


class CallSummary:
    """Writes and prints the results of a call with few targets.

    Args:
        run: The run.
        explained: What is explained of it.
        evaluation: What the methods say.
        evaluator: What evaluated it.

    Attributes:
        shown: What is drawn, printed edge by edge and shown on the page: itself, or the summary of other targets.
    """

    def __init__(
        self, run: FinishedRun, explained: ExplainedTargets, evaluation: Evaluation, evaluator: Evaluator
    ) -> None:
        self.run = run
        self.explained = explained
        self.evaluation = evaluation
        self.evaluator = evaluator
        self.shown = self

    @property
    def telling(self) -> list[int]:
        """Positions of the targets, the most telling first."""
        return telling_order(self.evaluation, has_truth=self.explained.has_truth).tolist()

    def write(self, out: Path, figures: int) -> None:
        """Write metrics, scores, figures of the most telling targets, and the page."""
        self.evaluation.save(out)
        for name, scores in self.evaluation.scores.items():
            scores.save(out / f"scores_{name}.npz")
        shown = self.shown
        drawn = draw_targets(shown.explained, shown.evaluator, shown.telling[:figures])
        if figures > 0:
            drawn |= draw_together(self.evaluator, self.evaluation)
        for name, figure in drawn.items():
            for suffix in FORMATS:
                with replacing(out / "figures" / f"{name}{suffix}") as path:
                    figure.savefig(path, dpi=150)
        write_text(out / "page.html", page_html(self.page()))

    def show(self, console: Console, count: int) -> None:
        """Print the metrics, and the strongest edges of the most telling targets."""
        if self.evaluation.metrics:
            console.print(self._table(), soft_wrap=False)
            console.print(str(self.evaluation.verdict), markup=False)
        shown = self.shown
        explained, positions = shown.explained, shown.telling[:count]
        tables = top_edges_table(
            shown.evaluation, explained.ids, explained.labels, positions, explained.first_nodes, explained.class_names
        )
        for position, table in zip(positions, tables, strict=True):
            print_whole(console, table)
            console.print(strongest_paths_text(shown.evaluation, position, explained.first_nodes), soft_wrap=True)

    def _table(self) -> Table:
        result = self.evaluation
        return metrics_table(result.metrics, num_targets=result.targets.numel(), intervals=result.intervals)

    def page(self, is_live: bool = False) -> dict[str, Any]:
        """What the page shows.

        Args:
            is_live: Whether the page can ask the model.
        """
        shown = self.shown
        subject, evaluation = shown.explained.subject, shown.evaluation
        recorded = Reducer(subject).record()
        reductions = {
            name: recorded.reduce(evaluation.pairs, resolve_protocol(name, subject.model), with_probability=True)
            for name in evaluation.reductions
        }
        metrics_file = self.run.folder / "metrics.json"
        metrics = read_metrics(metrics_file) if metrics_file.is_file() else {}
        facts = {"run": str(self.run.folder)}
        facts |= {name: f"{value:.4f}" for name, value in metrics.items() if name == "val/acc"}
        if shown is not self:
            facts["shown"] = "the most telling targets; metrics are of others, drawn at random"
        return page_content(
            replace(evaluation, reductions=reductions),
            curves=read_curves(self.run.folder),
            summary=facts,
            is_live=is_live,
            measured=self.evaluation,
        )


def top_edges_table(
    evaluation: Evaluation,
    ids: Tensor,
    labels: Tensor,
    positions: Sequence[int],
    first_nodes: Tensor | None = None,
    class_names: Sequence[str] | None = None,
) -> Iterator[Table]:
    """One table each for some targets: edges by the first method's score, and what reducing each does.

    Nodes are called as on the page: by their names where they have some.

    Args:
        evaluation: The result.
        ids: What the targets are called.
        labels: Their true classes.
        positions: Which targets, by their places among all.
        first_nodes: Where targets are graphs of a batch: the number that the nodes of each count from.
        class_names: What classes are called; by default their numbers.
    """
    pairs, bounds, names = evaluation.pairs, evaluation.pairs.ptr.tolist(), evaluation.about.node_names
    first = next(iter(evaluation.pair_scores))
    for position in positions:
        part = slice(bounds[position], bounds[position + 1])
        strongest = evaluation.pair_scores[first][part].argsort(descending=True)[:MOST_EDGES] + part.start
        true = TargetLabels(class_names=class_names).class_name(int(labels[position]))
        title = Text(f"Target {int(ids[position])}, true class {true}", style="bold")
        table = Table(title=title, caption=CHANGED if evaluation.reductions else None, padding=(0, 1, 0, 0))
        first_node = 0 if first_nodes is None else int(first_nodes[position])
        table.add_column("edge", no_wrap=True)
        for method in evaluation.pair_scores:
            words = evaluation.labels.get(method, method).replace(" ", "\n")
            table.add_column(Text(words), justify="right")
        for protocol in evaluation.reductions:
            table.add_column(Text(f"dPC\n{protocol}"), justify="right")
        for pair in strongest.tolist():
            nodes = pairs.graph.edge_index[:, pairs.edges[pair]].tolist()
            source, destination = (str(node - first_node) if names is None else names[node] for node in nodes)
            cells = [significant(float(scores[pair])) for scores in evaluation.pair_scores.values()]
            for reduction in evaluation.reductions.values():
                effect = significant(float(reduction.delta_pc[pair]), sign=True)
                cells.append(f"{effect}{'*' if bool(reduction.changed[pair]) else ' '}")
            table.add_row(f"{source} -> {destination}", *cells)
        yield table


def strongest_paths_text(evaluation: Evaluation, position: int, first_nodes: Tensor | None = None) -> Text:
    """The strongest walks into a target, as sentences of nodes.

    Args:
        evaluation: The result.
        position: Which of its targets.
        first_nodes: Where targets are graphs of a batch: the number that the nodes of each count from.
    """
    first = 0 if first_nodes is None else int(first_nodes[position])
    lines = []
    for path in evaluation.paths(int(evaluation.targets[position]), MOST_PATHS):
        names = path.names or tuple(str(node - first) for node in path.nodes)
        lines.append(f"  {replace(path, names=names)}")
    return Text("\n".join(["Strongest paths (product of attention):", *lines]))


def clear_summary(out: Path) -> None:
    """Remove what an earlier call wrote to its folder, beside its dataset."""
    for pattern in OWN_FILES:
        for path in out.glob(pattern):
            path.unlink(missing_ok=True)
    for suffix in FORMATS:
        for path in (out / "figures").glob(f"*{suffix}"):
            path.unlink(missing_ok=True)
