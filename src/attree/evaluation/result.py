"""What an evaluation came to: metrics, the scores and reductions behind them, as tables, figures and files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attree.attention import Attention
from attree.attribution import AttentionPath, Attribution, Pairs
from attree.attribution.paths import paths_from
from attree.data import GroundTruth
from attree.errors import ArgumentError, expect, expect_int, expect_path
from attree.evaluation.names import BYPASS, MetricName
from attree.evaluation.result_files import Arrays, read_arrays, write_arrays
from attree.evaluation.target_labels import TargetLabels, one_line
from attree.faithfulness import Reduction
from attree.io.files import write_text
from attree.io.metrics_file import read_metrics, write_metrics
from attree.subject.roots import Roots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

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
        position, names = int(place), self.about.node_names
        part = slice(*self.pairs.ptr[position : position + 2].tolist())
        pair_of = {edge: pair for pair, edge in enumerate(self.pairs.edges[part].tolist(), part.start)}
        effects = {name: reduction.delta_pc for name, reduction in self.reductions.items()}
        return [
            replace(
                path,
                effects={
                    name: tuple(float(values[pair_of[edge]]) for edge in path.edges) for name, values in effects.items()
                },
                names=None if names is None else tuple(one_line(names[node]) for node in path.nodes),
            )
            for path in paths_from(self.attention, self.roots.slice(position, position + 1), k)
        ]

    def num_changed(self, protocol: str) -> int:
        """How many reductions change the predicted class: `p_auroc` rests on these."""
        return int(self.reductions[protocol].changed.sum())

    def to_pandas(self) -> pd.DataFrame:
        """One row per statistic and protocol, one column per method."""
        import pandas as pd

        parsed = {name: MetricName.parse(name) for name in self.metrics}
        rows: dict[tuple[str, str], dict[str, float]] = {}
        for name, metric in parsed.items():
            if metric is not None:
                row = rows.setdefault((metric.protocol or "truth", metric.statistic), {})
                row[self.labels.get(metric.method, metric.method)] = self.metrics[name]
        index = pd.MultiIndex.from_tuples(list(rows), names=["protocol", "statistic"])
        return pd.DataFrame(list(rows.values()), index=index)

    def __str__(self) -> str:
        pairs, targets = len(self.pairs), self.targets.numel()
        kind = "graphs" if self.pairs.num_layers is None else "nodes"
        changed = ", ".join(f"{self.num_changed(name):,} ({name})" for name in self.reductions)
        about = f"{targets:,} {kind}, {pairs:,} pairs" + (f"; changed predictions: {changed}" if changed else "")
        if BYPASS in self.metrics:
            about += f"; {self.metrics[BYPASS]:.0%} of predictions are the same without the attention of a layer"
        table = self.to_pandas().to_string(float_format=lambda value: f"{value:.4f}", na_rep="undefined")
        meanings = [f"{name}: {self.meanings[name]}" for name in self.reductions if name in self.meanings]
        return "\n".join([about, table, *meanings])

    def _repr_html_(self) -> str:
        return self.to_pandas().to_html(float_format=lambda value: f"{value:.4f}", na_rep="undefined")

    def plot(self) -> Figure:
        """All statistics as bars, a panel each protocol, a colour each method."""
        # The one import against the order of the folders, and only when a picture is asked for.
        from attree.report.evaluation_figure import evaluation_figure

        return evaluation_figure(self)

    def save(self, folder: str | Path) -> Path:
        """Write `metrics.json`, `methods.json` and `evaluation.npz` (no pickle) to a folder; returns the folder."""
        folder = expect_path(folder, "folder")
        write_arrays(folder / ARRAYS_FILE, Arrays(*(getattr(self, name) for name in Arrays._fields)))
        write_text(folder / METHODS_FILE, json.dumps(self.settings, indent=2, default=str) + "\n")
        write_metrics(folder / METRICS_FILE, self.metrics)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Evaluation:
        """Read what `save` wrote."""
        folder = expect_path(folder, "folder")
        arrays = read_arrays(folder / ARRAYS_FILE)
        methods = folder / METHODS_FILE
        settings = json.loads(methods.read_text(encoding="utf-8")) if methods.is_file() else {}
        return cls(read_metrics(folder / METRICS_FILE), settings=settings, **arrays._asdict())
