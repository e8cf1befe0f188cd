"""What an evaluation came to: metrics, the scores and reductions behind them, as tables, figures and files."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attree.attention import Attention
from attree.attribution import METHODS, AttentionPath, Attribution, AttributionMethod, Pairs
from attree.attribution.paths import paths_from
from attree.data import GroundTruth
from attree.defaults import RESAMPLES, SEED
from attree.errors import ArgumentError, expect, expect_int, expect_path
from attree.evaluation.certainty import Certainty, Difference, PairColumns, resample
from attree.evaluation.names import FAITHFULNESS, TRUTH, MetricName
from attree.evaluation.result_files import Arrays, read_arrays, write_arrays
from attree.evaluation.result_text import as_html, as_text, metrics_frame
from attree.evaluation.target_labels import TargetLabels, one_line
from attree.evaluation.verdict import Verdict, judge
from attree.faithfulness import Reduction, ReductionProtocol
from attree.io.console import in_notebook
from attree.io.files import write_text
from attree.io.json_files import read_intervals, read_metrics, write_metrics
from attree.metrics.functional.bootstrap import Interval
from attree.subject import Subject
from attree.subject.roots import Roots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from attree.explanation import TargetExplanation

METRICS_FILE, METHODS_FILE, ARRAYS_FILE = "metrics.json", "methods.json", "evaluation.npz"


@dataclass(frozen=True)
class Evaluation:
    """How well methods explain a model.

    Attributes:
        metrics: Every metric under the name it is logged with; NaN where it is undefined.
        pairs: The (target, edge) pairs behind them; of this process where several evaluate together.
        pair_scores: Each method's score of every pair; of a random method, the first draw.
        reductions: By protocol, what reducing each pair's edge does to the prediction.
        labels: What tables call each method.
        settings: What each method was made with.
        meanings: What each protocol does to an edge, in words.
        predictions: Class probabilities of the targets, [targets, classes]; None where no classes are predicted.
        about: True classes and names of the targets.
        network: The model in a few words.
        attention: What the model attended to; not saved to files.
        truth: True edges of the nodes that have some; not saved to files.
        roots: Where the computation trees of the targets begin; not saved to files.
        owner: For each pair the position of its target among those of all processes; None in one process.
        truth_columns: Scores and labels of the pairs of targets with ground truth; not saved to files.
        averaged: Methods whose metrics are means over several draws.
        resamples: How often targets are resampled for intervals; 0 makes none.
        seed: Seed of these draws.
        known: The certainty over the targets of all processes, where it is known already.
        stored: Intervals that were read from a file.
        seconds: What each method took to score the pairs.
        by_target: Values of each target by the name of the metric that is their mean: those of sets of edges.
        all_targets: Number of targets of all processes; None in one process.
        subject: The model and its inputs; not saved to files.
        named: True classes and names of all targets, also those that were not evaluated; not saved to files.
    """

    metrics: dict[str, float]
    pairs: Pairs
    pair_scores: dict[str, Tensor]
    reductions: dict[str, Reduction]
    labels: dict[str, str] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    meanings: dict[str, str] = field(default_factory=dict)
    predictions: Tensor | None = None
    about: TargetLabels = field(default_factory=TargetLabels)
    network: str = ""
    attention: Attention | None = None
    truth: GroundTruth | None = None
    roots: Roots | None = None
    owner: Tensor | None = None
    truth_columns: PairColumns | None = None
    averaged: frozenset[str] = frozenset()
    resamples: int = RESAMPLES
    seed: int = SEED
    known: Certainty | None = None
    stored: dict[str, Interval] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    by_target: dict[str, Tensor] = field(default_factory=dict)
    all_targets: int | None = None
    subject: Subject | None = None
    named: TargetLabels = field(default_factory=TargetLabels)

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
        """Ids of the explained nodes or graphs."""
        return self.pairs.targets

    @property
    def num_targets(self) -> int:
        """How many nodes or graphs are explained, in all processes."""
        return self.targets.numel() if self.all_targets is None else self.all_targets

    @property
    def title(self) -> str:
        """Dataset and network, as far as they are known."""
        return " \N{MIDDLE DOT} ".join(part for part in (self.about.dataset, self.network) if part)

    def paths(self, target: int, k: int = 5) -> list[AttentionPath]:
        """The strongest walks into a target by attention, with the measured effect of each of their edges.

        Args:
            target: One of the targets.
            k: How many walks.
        """
        if self.attention is None or self.roots is None:
            raise ArgumentError("Expected a result of `evaluate`, but this one has no attention: files do not keep it.")
        place = (self.targets == expect_int(target, "target")).nonzero().view(-1)
        expect(place.numel() == 1, "target", "one of the targets", target)
        position, names, first = int(place), self.about.node_names, self.about.first_nodes
        # Nodes of a graph of a batch are called by their places in it.
        begin = 0 if first is None or self.pairs.num_layers is not None else int(first[position])
        part = slice(*self.pairs.ptr[position : position + 2].tolist())
        pair_of = {edge: pair for pair, edge in enumerate(self.pairs.edges[part].tolist(), part.start)}
        effects = {name: reduction.delta_pc for name, reduction in self.reductions.items()}
        return [
            replace(
                path,
                effects={
                    name: tuple(float(values[pair_of[edge]]) for edge in path.edges) for name, values in effects.items()
                },
                names=tuple(str(node - begin) if names is None else one_line(names[node]) for node in path.nodes),
            )
            for path in paths_from(self.attention, self.roots.slice(position, position + 1), k)
        ]

    def columns(self) -> PairColumns:
        """The pairs as plain columns: scores by method, effects by protocol."""
        effects = {name: (one.delta_pc, one.delta_ne, one.changed) for name, one in self.reductions.items()}
        return PairColumns(self.pairs.owner if self.owner is None else self.owner, self.pair_scores, effects)

    @cached_property
    def certainty(self) -> Certainty:
        """Every metric in resamples of the targets; computed when it is first asked for."""
        if self.known is not None:
            return self.known
        truth = None if self.truth_columns is None else self.truth_columns.on_host()
        columns = self.columns().on_host()
        return resample(self.metrics, columns, truth, self.averaged, self.resamples, self.seed, self.by_target)

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """The 95 % interval of every metric that has one, by its name: a bootstrap over the targets."""
        return self.stored | self.certainty.intervals()

    def interval(self, method: str, protocol: str, statistic: str = FAITHFULNESS) -> Interval:
        """The 95 % interval of one statistic; NaN where it is undefined.

        Args:
            method: Name of a method.
            protocol: Name of a protocol, or `truth` for the comparison with ground truth.
            statistic: Name of a statistic, such as `pc_pearson`.
        """
        return self.intervals.get(str(self._name(method, protocol, statistic)), (math.nan, math.nan))

    def difference(self, first: str, second: str, protocol: str, statistic: str = FAITHFULNESS) -> Difference:
        """By how much a method's statistic exceeds another's on the same pairs, with the 95 % interval of that."""
        names = [self._name(method, protocol, statistic) for method in (first, second)]
        return self.certainty.difference(self.metrics, *names)

    @cached_property
    def verdict(self) -> Verdict:
        """What the numbers say in plain words: what to trust, and what is too uncertain to say."""
        return judge(self)

    def _name(self, method: str, protocol: str, statistic: str) -> MetricName:
        name = MetricName(method, TRUTH) if protocol == "truth" else MetricName(method, statistic, protocol)
        expect(str(name) in self.metrics, "method, protocol, statistic", "those of a metric", str(name))
        return name

    def num_changed(self, protocol: str) -> int:
        """How many reductions change the predicted class: `p_auroc` rests on these."""
        return int(self.reductions[protocol].changed.sum())

    def to_pandas(self, intervals: bool = False) -> pd.DataFrame:
        """One row per statistic and protocol, one column per method.

        Args:
            intervals: Also two columns per method, `<method> low` and `<method> high`: the ends of the 95 % interval.
        """
        return metrics_frame(self.metrics, self.labels, self.intervals if intervals else None)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    # Imports against the order of the folders, made only when a picture or an explanation is asked for.

    def explain(
        self,
        target: int,
        method: str | AttributionMethod | None = None,
        protocol: str | ReductionProtocol | None = None,
    ) -> TargetExplanation:
        """Explain one prediction of the evaluated model, as `attree.explain` does; any target, not only evaluated ones.

        Args:
            target: A node, pair or graph.
            method: What scores the edges; None takes what the evaluation recommends, or else the exact effect.
            protocol: What reducing an edge means; None takes `removal`, or what was measured.
        """
        from attree.explanation.explain import explain_evaluated

        return explain_evaluated(self, target, method, protocol)

    def show(self) -> Any:
        """The explorer in a notebook, or bars where anywidget is not installed; elsewhere the table is printed."""
        from attree.report.page.widget import MissingWidgetError, show

        if not in_notebook():
            print(self)
            return self.plot()
        try:
            return show(self)
        except MissingWidgetError:
            return self.plot()

    def page(self, path: str | Path) -> Path:
        """Write one HTML file with all that is known: predictions, true classes, names, trees; returns the path."""
        from attree.report.page import write_page

        return write_page(expect_path(path, "path"), self)

    def plot(self) -> Figure:
        """All statistics as bars, a panel each protocol, a colour each method."""
        from attree.report.evaluation_figure import evaluation_figure

        return evaluation_figure(self)

    def save(self, folder: str | Path) -> Path:
        """Write `metrics.json`, `methods.json` and `evaluation.npz` (no pickle) to a folder; returns the folder."""
        folder = expect_path(folder, "folder")
        write_arrays(folder / ARRAYS_FILE, Arrays(*(getattr(self, name) for name in Arrays._fields)))
        write_text(folder / METHODS_FILE, json.dumps(self.settings, indent=2, default=str) + "\n")
        write_metrics(folder / METRICS_FILE, self.metrics, self.intervals, self.verdict.sentences)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Evaluation:
        """Read what `save` wrote."""
        folder = expect_path(folder, "folder")
        arrays = read_arrays(folder / ARRAYS_FILE)
        methods = folder / METHODS_FILE
        settings = json.loads(methods.read_text(encoding="utf-8")) if methods.is_file() else {}
        metrics = folder / METRICS_FILE
        averaged = frozenset(name for name in arrays.pair_scores if name in METHODS and METHODS[name].is_random)
        return cls(
            read_metrics(metrics),
            settings=settings,
            averaged=averaged,
            stored=read_intervals(metrics),
            **arrays._asdict(),
        )
