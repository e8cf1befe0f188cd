"""The summary of a call of `attree explain`: metrics, figures, tables of edges, and the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from attree.attribution import ComputationTree, Random
from attree.callbacks.reporting import warn_only
from attree.errors import expect
from attree.evaluation import Evaluation, Evaluator, MetricName
from attree.evaluation.metric_names import truth_note
from attree.evaluation.tables import target_noun
from attree.explain_run.targets import ExplainedTargets
from attree.explanation.explain import explain_evaluated
from attree.faithfulness import PROTOCOLS, Reducer, delete_edges, resolve_protocol
from attree.io.files import read_metrics, replacing, write_text
from attree.io.terminal import print_whole
from attree.report.case_study import draw_case_studies, draw_score_histograms
from attree.report.drawn_targets import instructive_order, strongest_first
from attree.report.graph_drawing import computation_tree
from attree.report.logged_metrics import print_results, read_curves
from attree.report.page.content import MAX_TARGETS, page_content
from attree.report.page.write import page_html
from attree.report.score_figures import deletion_curve, dpc_scatter
from attree.report.style import sign_color, significant
from attree.runs.load_run import FinishedRun
from attree.source import edge_name

COUNTS = (0, 1, 2, 3, 5, 10, 20, 50)
"""Numbers of edges that the deletion curve removes."""

DRAWS = 3
"""Number of random draws that the random curve is averaged over."""

MOST_COPIED_EDGES = 30_000_000
"""Maximum number of edges in all forward passes of a deletion curve together: about a minute of work."""

MOST_TREE_NODES = 60
"""Maximum number of nodes of a drawn computation tree."""


def draw_targets(explained: ExplainedTargets, evaluator: Evaluator, positions: Sequence[int]) -> dict[str, Figure]:
    """Draw case studies and computation trees of some targets. Warn about figures that cannot be drawn.

    Args:
        explained: All targets.
        evaluator: The evaluator of all targets.
        positions: Positions of the targets to draw.

    Returns:
        The figures by name.
    """
    figures: dict[str, Figure] = {}
    part = torch.tensor(positions, dtype=torch.int64)
    with warn_only("Case studies"):
        figures |= draw_case_studies(evaluator, len(positions), evaluator.targets.cpu()[part])
    subject = evaluator.subject
    if subject.level == "node" and subject.graph.types is None:  # a tree's nodes have numbers, not names
        with warn_only("Computation trees"):
            for position in positions:
                target = int(explained.positions[position])
                tree = ComputationTree(subject.attention, target, max_nodes=MOST_TREE_NODES, prune=True)
                figures[f"tree_{int(explained.ids[position])}"] = computation_tree(tree)
    return figures


def draw_together(evaluator: Evaluator, evaluation: Evaluation) -> dict[str, Figure]:
    """Draw the figures of all targets together. Warn about figures that cannot be drawn.

    Args:
        evaluator: The evaluator of the targets.
        evaluation: The result of the evaluator.

    Returns:
        The figures by name.
    """
    figures: dict[str, Figure] = {}
    with warn_only("Figures of all targets"):
        figures |= draw_score_histograms(evaluation)
        for protocol, reduction in evaluation.reductions.items():
            names = {method: str(MetricName(method, "pc_pearson", protocol)) for method in evaluation.pair_scores}
            pearsons = {
                method: evaluation.metrics[name] for method, name in names.items() if name in evaluation.metrics
            }
            figures[f"dpc_{protocol}"] = dpc_scatter(
                evaluation.pair_scores, reduction.delta_pc, protocol, pearsons=pearsons
            )
    with warn_only("The deletion curve"):
        figures |= _deletion(evaluator, evaluation)
    return figures


def _deletion(evaluator: Evaluator, evaluation: Evaluation) -> dict[str, Figure]:
    """Draw the deletion curve of the first targets, as many as `MOST_COPIED_EDGES` allows."""
    pairs, subject = evaluation.pairs, evaluator.subject
    by_name = {protocol.name: protocol for protocol in evaluator.protocols}
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
        notes.append(f"of {pairs.targets.numel()}: the other neighbourhoods are too large")
    return {"deletion": deletion_curve(counts, curves | {"random": chance}, ", ".join(notes))}


MOST_TARGETS = MAX_TARGETS
"""Maximum number of targets in a summary, which is the number that the page can show."""

FORMATS = (".png", ".svg")
MOST_EDGES = 8
MOST_PATHS = 3
CHANGED = "*: the predicted class changes; +: the edge speaks for the prediction, -: against it"
NODE_ROWS = "nodes.parquet"
OWN_FILES = ("metrics.json", "methods.json", "evaluation.npz", "nodes.npz", NODE_ROWS, "page.html", "scores_*.npz")


class CallSummary:
    """Writes and prints the evaluation of a call's targets.

    Args:
        run: The run.
        explained: The targets.
        evaluation: The evaluation of the targets.
        evaluator: The evaluator of the targets.

    Attributes:
        of_page: The summary whose targets are drawn, printed and shown on the page. It is this summary, or one of more
            instructive targets.
    """

    def __init__(
        self, run: FinishedRun, explained: ExplainedTargets, evaluation: Evaluation, evaluator: Evaluator
    ) -> None:
        self.run = run
        self.explained = explained
        self.evaluation = evaluation
        self.evaluator = evaluator
        self.of_page = self

    @property
    def instructive(self) -> list[int]:
        """Positions of the targets, most instructive first."""
        return instructive_order(self.evaluation, has_truth=self.explained.has_truth).tolist()

    def write(self, out: Path, figures: int) -> None:
        """Write metrics, scores, figures of the most instructive targets, and the page."""
        self.evaluation.save(out)
        for name, scores in self.evaluation.scores.items():
            scores.save(out / f"scores_{name}.npz")
        if (nodes := self.node_rows()) is not None:
            with replacing(out / NODE_ROWS) as path:
                pq.write_table(nodes, path)
        of_page = self.of_page
        drawn = draw_targets(of_page.explained, of_page.evaluator, of_page.instructive[:figures])
        if figures > 0:
            drawn |= draw_together(self.evaluator, self.evaluation)
        for name, figure in drawn.items():
            for suffix in FORMATS:
                with replacing(out / "figures" / f"{name}{suffix}") as path:
                    figure.savefig(path, dpi=150)
        write_text(out / "page.html", page_html(self.page()))

    def node_rows(self) -> pa.Table | None:
        """Return the node scores of the targets as rows (target, node, score); None if no method has some.

        Ids of targets are those of the parts; the nodes of a graph in a batch are numbered from 0.
        """
        nodes, about = self.evaluation.nodes, self.evaluation.target_labels
        if nodes is None:
            return None
        table, sizes = nodes.to_pandas(), nodes.ptr.diff()
        if about.ids is not None:
            table["target"] = about.ids.cpu().repeat_interleave(sizes.cpu()).numpy()
        if about.first_nodes is not None and self.evaluation.pairs.num_layers is None:
            table["node"] -= about.first_nodes.cpu().repeat_interleave(sizes.cpu()).numpy()
        return pa.Table.from_pandas(table, preserve_index=False)

    def show(self, console: Console, count: int) -> None:
        """Print the metrics, and the strongest edges of the most instructive targets."""
        if self.evaluation.metrics:
            print_results(console, self.evaluation, self.evaluation.metrics, self.evaluation.intervals)
        of_page = self.of_page
        explained, positions = of_page.explained, of_page.instructive[:count]
        tables = top_edges_table(of_page.evaluation, positions)
        for position, table in zip(positions, tables, strict=True):
            print_whole(console, table)
            target = int(of_page.evaluation.targets[position])
            console.print(Text(explain_evaluated(of_page.evaluation, target).sentence), soft_wrap=True)
            console.print(strongest_paths_text(of_page.evaluation, position, explained.first_nodes), soft_wrap=True)

    def page(self, is_live: bool = False) -> dict[str, Any]:
        """Return the content of the page.

        Args:
            is_live: Whether the page can query the model.
        """
        of_page = self.of_page
        subject, evaluation = of_page.explained.subject, of_page.evaluation
        recorded = Reducer(subject).record()
        reductions = {
            name: recorded.reduce(evaluation.pairs, resolve_protocol(name, subject.model), with_probability=True)
            for name in evaluation.reductions
        }
        metrics_file = self.run.folder / "metrics.json"
        metrics = read_metrics(metrics_file) if metrics_file.is_file() else {}
        facts = {"run": str(self.run.folder)}
        facts |= {name: f"{value:.4f}" for name, value in metrics.items() if name == "val/acc"}
        if self.evaluation.num_true_targets is not None:
            facts["table"] = f"{truth_note(self.evaluation.num_true_targets)}; the curves are of all that the run has"
        if of_page is not self:
            facts["shown"] = "the most instructive targets; the metrics are of a random sample"
        return page_content(
            replace(evaluation, reductions=reductions),
            curves=read_curves(self.run.folder),
            summary=facts,
            is_live=is_live,
            has_network=True,
            measured=self.evaluation,
        )


def top_edges_table(evaluation: Evaluation, positions: Sequence[int]) -> Iterator[Table]:
    """Yield a table for each target to show: its strongest edges by the first method, and the effect of reducing each.

    Args:
        evaluation: The evaluation of all targets.
        positions: Positions of the targets to show.
    """
    pairs, bounds, about = evaluation.pairs, evaluation.pairs.ptr.tolist(), evaluation.target_labels
    names, first = about.node_names, next(iter(evaluation.pair_scores))
    for position in positions:
        part = slice(bounds[position], bounds[position + 1])
        strongest = strongest_first(evaluation.pair_scores[first][part])[:MOST_EDGES] + part.start
        title = Text(f"{target_noun(evaluation).capitalize()} {evaluation.target_name(position)}", style="bold")
        if about.labels is not None and int(about.labels[position]) >= 0:
            title.append(f", true class {about.class_name(int(about.labels[position]))}")
        table = Table(title=title, caption=CHANGED if evaluation.reductions else None, padding=(0, 1, 0, 0))
        first_node = 0 if about.first_nodes is None else int(about.first_nodes[position])
        table.add_column("edge", no_wrap=True)
        for method in evaluation.pair_scores:
            words = evaluation.method_labels.get(method, method).replace(" ", "\n")
            table.add_column(Text(words), justify="right")
        for protocol in evaluation.reductions:
            table.add_column(Text(f"dPC\n{protocol}"), justify="right")
        for pair in strongest.tolist():
            nodes = pairs.graph.edge_index[:, pairs.edges[pair]].tolist()
            numbers = pairs.graph.whole_ids(nodes)
            source, destination = (
                str(number - first_node) if names is None else names[node]
                for node, number in zip(nodes, numbers, strict=True)
            )
            cells: list[str | Text] = [significant(float(scores[pair])) for scores in evaluation.pair_scores.values()]
            for reduction in evaluation.reductions.values():
                effect = float(reduction.delta_pc[pair])
                mark = "*" if bool(reduction.changed[pair]) else " "
                cells.append(Text(significant(effect, sign=True) + mark, style=sign_color(effect)))
            table.add_row(edge_name(source, destination, is_loop=nodes[0] == nodes[1]), *cells)
        yield table


def strongest_paths_text(evaluation: Evaluation, position: int, first_nodes: Tensor | None = None) -> Text:
    """Return the strongest paths into a target, one per line.

    Args:
        evaluation: The evaluation of all targets.
        position: Position of the target.
        first_nodes: For graphs in a batch, the id of each graph's first node; None otherwise.
    """
    first = 0 if first_nodes is None else int(first_nodes[position])
    lines = []
    for path in evaluation.paths(int(evaluation.targets[position]), MOST_PATHS):
        names = path.names or tuple(str(node - first) for node in path.nodes)
        lines.append(f"  {replace(path, names=names)}")
    attention = evaluation.attention
    is_attention = attention is None or attention.attends is None
    product = "product of attention" if is_attention else "product of the layers' factors"
    return Text("\n".join([f"Strongest paths ({product}):", *lines]))


def clear_summary(out: Path) -> None:
    """Remove the summary that an earlier call wrote."""
    for pattern in OWN_FILES:
        for path in out.glob(pattern):
            path.unlink(missing_ok=True)
    for suffix in FORMATS:
        for path in (out / "figures").glob(f"*{suffix}"):
            path.unlink(missing_ok=True)
