"""The result of an evaluation: metrics, the scores and effects that they were computed from, node scores, files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attree.attention import Attention
from attree.attribution import METHODS, AttentionPath, Attribution, AttributionMethod, NodeAttribution, Pairs
from attree.attribution.node_scores import read_node_scores, scores_of_nodes, write_node_scores
from attree.attribution.tree import paths_from
from attree.data import GroundTruth
from attree.errors import ArgumentError, did_you_mean, expect, expect_int, expect_path
from attree.evaluation.certainty import Certainty, Difference, influences_of
from attree.evaluation.columns import PairColumns
from attree.evaluation.metric_names import FAITHFULNESS, METRIC_LABELS, NUMBER_LABELS, TRUTH, MetricName
from attree.evaluation.npz_file import Arrays, read_arrays, write_arrays
from attree.evaluation.tables import TableKind, as_html, as_text, metrics_frame
from attree.evaluation.verdict import Verdict, verdict_level
from attree.evaluation.verdict_rules import judge
from attree.faithfulness import Reduction, ReductionProtocol
from attree.io.files import read_intervals, read_metrics, read_settings, write_metrics, write_text
from attree.io.terminal import in_notebook
from attree.metrics.functional.intervals import LEVEL, UNKNOWN, Interval
from attree.source.target_labels import TargetLabels, one_line
from attree.subject import Subject
from attree.subject.target_roots import Roots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from attree.evaluation.stability import Stability
    from attree.explanation import TargetExplanation


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """The numbers of an evaluation, without words and without the model.

    Attributes:
        metrics: Every metric by logged name; NaN if undefined.
        pairs: The (target, edge) pairs of the metrics; in a distributed run, those of this process.
        pair_scores: Each method's score of every pair; for a random method, of its first draw.
        reductions: By protocol, the effect of reducing each pair's edge on the prediction.
        predictions: Class probabilities of the targets, [targets, classes]; with several labels, of not having and of
            having the measured one, [targets, 2]; None for regression.
        truth_columns: Scores and labels of the pairs of targets with ground truth.
        by_target: For metrics of sets of edges, the values of the single targets by metric name.
        averaged: Methods whose metrics are means over several draws.
        seconds: Time that each method took to score the pairs.
        owner: Position of each pair's target among the targets of all processes; None in a single process.
        all_targets: Number of targets of all processes; None in a single process.
        population: Number of targets that the evaluated ones were drawn from; None if they stand for any number of
            others, as graphs do.
        has_intervals: Whether statistics have intervals.
        gathered_certainty: The certainty over the targets of several processes; None in a single process, which
            computes it when it is first needed.
    """

    metrics: dict[str, float]
    pairs: Pairs
    pair_scores: dict[str, Tensor]
    reductions: dict[str, Reduction]
    predictions: Tensor | None = None
    truth_columns: PairColumns | None = None
    by_target: dict[str, Tensor] = field(default_factory=dict)
    averaged: frozenset[str] = frozenset()
    seconds: dict[str, float] = field(default_factory=dict)
    owner: Tensor | None = None
    all_targets: int | None = None
    population: int | None = None
    has_intervals: bool = True
    gathered_certainty: Certainty | None = None

    @cached_property
    def scores(self) -> dict[str, Attribution]:
        """Each method's scores by target and edge."""
        pairs = self.pairs
        return {
            name: Attribution(name, pairs.graph, pairs.targets, pairs.ptr, pairs.edges, values)
            for name, values in self.pair_scores.items()
        }

    @property
    def targets(self) -> Tensor:
        """Ids of the explained nodes, pairs or graphs; in a distributed run, those of this process.

        For a part of a larger graph, these are ids of the whole graph; those of `pairs` are of the part.
        """
        return self.pairs.graph.whole_nodes(self.pairs.targets)

    @property
    def num_targets(self) -> int:
        """Number of explained nodes, pairs or graphs of all processes."""
        return self.targets.numel() if self.all_targets is None else self.all_targets

    @cached_property
    def predicts_numbers(self) -> bool:
        """Whether the model predicts numbers (regression), which have neither a confidence nor an entropy."""
        effects = [reduction.delta_ne for reduction in self.reductions.values() if reduction.delta_ne.numel()]
        return self.predictions is None and len(effects) > 0 and all(bool(entropy.isnan().all()) for entropy in effects)

    @property
    def statistic_labels(self) -> Mapping[str, str]:
        """Names of the statistics in tables, by their names in metrics."""
        return NUMBER_LABELS if self.predicts_numbers else METRIC_LABELS

    @property
    def is_exact(self) -> bool:
        """Whether all targets there are were evaluated, so that no number could differ with other targets."""
        return self.population is not None and self.num_targets >= self.population

    def num_changed(self, protocol: str) -> int:
        """Return the number of reductions that change the predicted class, which `p_auroc` is based on."""
        return int(self.reductions[protocol].changed.sum())

    def num_changed_targets(self, protocol: str) -> int:
        """Return the number of targets with a reduction that changes the predicted class."""
        return int(self.pairs.owner[self.reductions[protocol].changed].unique().numel())

    def columns(self) -> PairColumns:
        """Return the pairs as columns: scores by method, effects by protocol."""
        effects = {
            name: (reduction.delta_pc, reduction.delta_ne, reduction.changed)
            for name, reduction in self.reductions.items()
        }
        return PairColumns(self.pairs.owner if self.owner is None else self.owner, self.pair_scores, effects)

    @cached_property
    def certainty(self) -> Certainty:
        """How much each target moves every metric; computed on first use."""
        if self.gathered_certainty is not None:
            return self.gathered_certainty
        if not self.has_intervals:
            return Certainty()
        truth = None if self.truth_columns is None else self.truth_columns.on_cpu()
        columns = self.columns().on_cpu()
        return influences_of(self.metrics, columns, truth, self.averaged, self.by_target, self.population)


METRICS_FILE, METHODS_FILE, ARRAYS_FILE = "metrics.json", "methods.json", "evaluation.npz"
NODES_FILE = "nodes.npz"


@dataclass(frozen=True, kw_only=True)
class Evaluation(Measurements):
    """The result of an evaluation: how well methods explain a model.

    The attributes of `Measurements` are its numbers: `metrics`, `pairs`, `pair_scores`, `reductions`, `predictions` and
    others. `save` does not write `attention`, `truth`, `roots`, `truth_columns`, `subject` and
    `all_target_labels`.

    Attributes:
        method_labels: Names of the methods in tables.
        settings: Arguments of each method.
        meanings: The effect of each protocol on an edge's attention, in words.
        target_labels: True classes and names of the targets.
        all_target_labels: True classes and names of all targets of the data, evaluated or not.
        network: Class name and depth of the model.
        subject: The model and its inputs.
        attention: The model's attention.
        roots: Root nodes of the targets' computation trees.
        truth: True edges of the nodes that have some.
        stability: How much explanations agree with those of other models, if some were given.
        stored: Intervals that were read from a file.
        stored_level: The level of the verdict's comparisons that was read from a file.
    """

    method_labels: dict[str, str] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    meanings: dict[str, str] = field(default_factory=dict)
    target_labels: TargetLabels = field(default_factory=TargetLabels)
    all_target_labels: TargetLabels = field(default_factory=TargetLabels)
    network: str = ""
    subject: Subject | None = None
    attention: Attention | None = None
    roots: Roots | None = None
    truth: GroundTruth | None = None
    stability: Stability | None = None
    stored: dict[str, Interval] = field(default_factory=dict)
    stored_level: float | None = None

    @property
    def title(self) -> str:
        """Names of the dataset and the network, if known."""
        return " \N{MIDDLE DOT} ".join(part for part in (self.target_labels.dataset, self.network) if part)

    def target_name(self, position: int) -> str:
        """Return the name of the target at a position, as the page and tables call it: "7", "3 - 4", "author 3".

        A link is named by its two nodes. The dash between them is an en dash.

        Args:
            position: Position in `targets`.
        """
        about, names = self.target_labels, self.target_labels.node_names
        if self.pairs.num_layers is None:
            return str(int(self.targets[position] if about.ids is None else about.ids[position]))
        nodes = [int(self.targets[position])] if about.roots is None else about.roots[position].tolist()
        if self.pairs.level != "edge":
            nodes = nodes[:1]
        types = self.pairs.graph.types
        if names is None and types is not None:
            return " \N{EN DASH} ".join(types.names(torch.tensor(nodes)))
        return " \N{EN DASH} ".join(str(node) if names is None else one_line(str(names[node])) for node in nodes)

    @property
    def num_true_targets(self) -> int | None:
        """Number of targets with true edges that ground truth was measured on; None without ground truth."""
        return None if self.truth is None else self.truth.targets.numel()

    @cached_property
    def nodes(self) -> NodeAttribution | None:
        """Which nodes the predictions read: r at the input, by the first of `gatt`, `uniform` and `structure`.

        None if no such method was evaluated.
        """
        return scores_of_nodes(self.subject, self.pairs.targets, self.pair_scores, len(self.pairs))

    def paths(self, target: int, k: int = 5) -> list[AttentionPath]:
        """Return the walks into a target with the most attention, and the measured effect of each of their edges.

        Args:
            target: One of the targets.
            k: Number of walks.
        """
        if self.attention is None or self.roots is None:
            raise ArgumentError(
                "Expected a result of `evaluate` for a network with a computation tree, but this one has no attention "
                "(files do not keep it)."
            )
        place = (self.targets == expect_int(target, "target")).nonzero().view(-1)
        expect(place.numel() == 1, "target", "one of the targets", target)
        position, names, first = int(place), self.target_labels.node_names, self.target_labels.first_nodes
        # In a batch, nodes are numbered within their graph.
        begin = 0 if first is None or self.pairs.num_layers is not None else int(first[position])
        part = slice(*self.pairs.ptr[position : position + 2].tolist())
        pair_of = {edge: pair for pair, edge in enumerate(self.pairs.edges[part].tolist(), part.start)}
        effects = {name: reduction.delta_pc for name, reduction in self.reductions.items()}
        return [
            replace(
                path,
                effects={
                    name: tuple(float(values[pair_of[edge]]) if edge >= 0 else nan for edge in path.edges)
                    for name, values in effects.items()
                },
                names=tuple(
                    str(number - begin) if names is None or node >= len(names) else one_line(names[node])
                    for node, number in zip(path.nodes, self.pairs.graph.whole_ids(path.nodes), strict=True)
                ),
            )
            for path in paths_from(self.attention, self.roots.slice(position, position + 1), k)
        ]

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """The 95 % interval (over targets) of each metric, by name; NaN if it has none."""
        return self.stored | self.certainty.intervals()

    def interval(self, method: str, protocol: str, statistic: str = FAITHFULNESS) -> Interval:
        """Return the 95 % interval of one statistic; NaN if it is undefined.

        Args:
            method: Name of a method.
            protocol: Name of a protocol, or `truth` for the comparison with ground truth.
            statistic: Name of a statistic, such as `pc_pearson`.
        """
        return self.intervals.get(str(self._name(method, protocol, statistic)), UNKNOWN)

    def difference(
        self, first: str, second: str, protocol: str, statistic: str = FAITHFULNESS, level: float = LEVEL
    ) -> Difference:
        """Return the difference between the statistics of two methods on the same pairs, with its interval.

        Args:
            first: Name of a method.
            second: Name of the method to subtract.
            protocol: Name of a protocol, or `truth` for the comparison with ground truth.
            statistic: Name of a statistic, such as `pc_pearson`.
            level: How often the interval holds the true difference.
        """
        minuend, subtrahend = (self._name(method, protocol, statistic) for method in (first, second))
        return self.certainty.difference(self.metrics, minuend, subtrahend, level)

    @cached_property
    def verdict(self) -> Verdict:
        """The conclusions from the numbers in words: which method to trust, and what is uncertain."""
        return judge(self)

    @cached_property
    def verdict_level(self) -> float:
        """The level of each comparison in the verdict at which all its comparisons hold together in 95 % of cases."""
        return verdict_level(self) if self.stored_level is None else self.stored_level

    def _name(self, method: str, protocol: str, statistic: str) -> MetricName:
        name = MetricName(method, TRUTH) if protocol == "truth" else MetricName(method, statistic, protocol)
        if str(name) not in self.metrics:
            raise ArgumentError(
                "Expected arguments `method`, `protocol` and `statistic` to name a number of this evaluation, but got "
                f"{str(name)!r}.{did_you_mean(str(name), self.metrics)}"
            )
        return name

    def to_pandas(self, intervals: bool = False) -> pd.DataFrame:
        """Return a table with one row per statistic and protocol, and one column per method.

        Args:
            intervals: Add the ends of the 95 % intervals as columns `<method> low` and `<method> high`.
        """
        return metrics_frame(self.metrics, self.method_labels, self.intervals if intervals else None)

    def table(self, kind: TableKind = "short") -> str:
        """Return headline, table and findings as text.

        Args:
            kind: `short` for a few numbers of each method, `full` for every statistic and every finding.
        """
        expect(kind in ("short", "full"), "kind", "'short' or 'full'", kind)
        return as_text(self, kind)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return as_html(self)

    # These methods import from later packages, so they import only when they are called.

    def explain(
        self,
        target: int,
        method: str | AttributionMethod | None = None,
        protocol: str | ReductionProtocol | None = None,
    ) -> TargetExplanation:
        """Explain one prediction of the evaluated model, as `attree.explain` does.

        Args:
            target: A node, pair or graph; it need not be one of the evaluated targets.
            method: The method that scores the edges; None takes the recommended method, or else the exact effect.
            protocol: The reduction protocol; None takes `removal`, or a protocol that was measured.
        """
        from attree.explanation.explain import explain_evaluated

        return explain_evaluated(self, target, method, protocol)

    def show(self) -> Any:
        """Show the explorer in a notebook, or bars without anywidget. Elsewhere, print the table and draw bars."""
        from attree.report.page import MissingWidgetError, show

        if not in_notebook():
            print(self)
            return self.plot()
        try:
            return show(self)
        except MissingWidgetError:
            return self.plot()

    def page(self, path: str | Path) -> Path:
        """Write an HTML page with predictions, true classes, names and computation trees, and return its path."""
        from attree.report.page import write_page

        return write_page(expect_path(path, "path"), self)

    def plot(self) -> Figure:
        """Draw all statistics as bars, with one panel per protocol and one colour per method."""
        from attree.report.score_figures import evaluation_figure

        return evaluation_figure(self)

    def save(self, folder: str | Path) -> Path:
        """Write `metrics.json`, `methods.json`, `evaluation.npz` and `nodes.npz` to a folder; return the folder.

        No file holds pickled objects.
        """
        folder = expect_path(folder, "folder")
        content = {name: getattr(self, name) for name in Arrays._fields} | {"stored_level": self.verdict_level}
        write_arrays(folder / ARRAYS_FILE, Arrays(**content))
        write_text(folder / METHODS_FILE, json.dumps(self.settings, indent=2, default=str) + "\n")
        if self.nodes is not None:
            write_node_scores(folder / NODES_FILE, self.nodes)
        write_metrics(
            folder / METRICS_FILE, self.metrics, self.intervals, self.verdict.sentences, self.verdict.headline
        )
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Evaluation:
        """Read an evaluation that `save` wrote."""
        folder = expect_path(folder, "folder")
        arrays = read_arrays(folder / ARRAYS_FILE)
        methods = folder / METHODS_FILE
        settings = read_settings(methods) if methods.is_file() else {}
        metrics = folder / METRICS_FILE
        averaged = frozenset(name for name in arrays.pair_scores if name in METHODS and METHODS[name].is_random)
        evaluation = cls(
            metrics=read_metrics(metrics),
            settings=settings,
            averaged=averaged,
            stored=read_intervals(metrics),
            **arrays._asdict(),
        )
        # Files keep no model to compute them with.
        vars(evaluation)["nodes"] = read_node_scores(folder / NODES_FILE, evaluation.pairs.graph)
        return evaluation
