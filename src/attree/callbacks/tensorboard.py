"""Write to TensorBoard: chart layout, histograms, figures, tables, hyperparameters, descriptions of the metrics.

The tab of `attree.tensorboard_tab` reads the files of `write_explanations`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from matplotlib.figure import Figure
from matplotlib.image import imread
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from attree.attribution import method_label
from attree.callbacks.lightning_internals import add_summary, describe_scalars
from attree.evaluation import Evaluation, Evaluator
from attree.evaluation.metric_names import (
    BYPASS,
    EFFECTS,
    FAITHFULNESS,
    METRIC_LABELS,
    PREFIX,
    SECONDS,
    TRUTH,
    WITHIN,
    MetricName,
    charted_accuracies,
)
from attree.evaluation.tables import HEADERS, short_table
from attree.faithfulness import PROTOCOLS
from attree.io.files import json_ready, write_text
from attree.metrics.functional.faithfulness import STATISTICS
from attree.report.page.content import page_content
from attree.report.style import as_png
from attree.runs.run_folder import is_logger

DESCRIPTIONS = {
    WITHIN: "How well the method's scores find the edges that matter to a single prediction: Pearson's correlation of "
    "scores with the effects of reducing each edge, within each target; the mean over targets. 1 is perfect, 0 is "
    "chance.",
    FAITHFULNESS: "How well the method's scores predict the effect of reducing an edge's attention on the output: "
    "the mean of seven statistics. 1 is perfect; the correlations among them are 0 by chance, the AUROC 0.5.",
    TRUTH: "How well the method's scores find the edges that are known to cause the label: the probability that a true "
    "edge scores higher than another edge. 1 is perfect, 0.5 is chance.",
}
"""The meaning of the main numbers of a method."""

CHANGES = {"pc": "how far the predicted class's probability falls", "ne": "how far the prediction's entropy rises"}
OTHER_DESCRIPTIONS = {
    "p_auroc": "How well the method's scores separate edges whose reduction changes the predicted class from all other "
    "edges (AUROC). 1 is perfect, 0.5 is chance.",
    BYPASS: "How much of the prediction bypasses attention, through skip connections and the like. 0 is nothing.",
    SECONDS: "How long this evaluation of the explanations took.",
}


SIZES = {
    "strongest": "The effect of a target's strongest edge on the predicted probability (or number); the median over "
    "targets.",
    "edges_90": "How many edges hold 90 % of a target's effect; the median over targets with an effect.",
    "targets_without": "The number of targets for which no single edge has an effect.",
    "two_together": "The effect of a target's two strongest edges, reduced at once; the median over targets. It is "
    "measured where edges may stand in for each other.",
    "two_apart": "The sum of the single effects of a target's two strongest edges; the median over targets.",
}
"""The meaning of the sizes of effects."""


def describe_metric(name: str) -> str:
    """Return the meaning of a logged metric; an empty string for metrics that are not of explanations.

    >>> describe_metric("explain/gatt/removal/pc_kendall").partition(" when ")[0]
    "Kendall's rank correlation of GAtt's scores with how far the predicted class's probability falls"
    >>> describe_metric("val/acc")
    ''
    """
    metric = MetricName.parse(name)
    if metric is None:
        return SIZES.get(name.rpartition("/")[2], "") if f"/{EFFECTS}/" in name else OTHER_DESCRIPTIONS.get(name, "")
    measure, _, statistic = metric.statistic.partition("_")
    if metric.statistic in STATISTICS and measure in CHANGES:
        kind = "Pearson's" if statistic == "pearson" else f"{statistic.capitalize()}'s rank"
        text = f"{kind} correlation of {method_label(metric.method)}'s scores with {CHANGES[measure]} when an edge is "
        text += "reduced. 1 is perfect, 0 is chance."
    else:
        descriptions = DESCRIPTIONS | OTHER_DESCRIPTIONS
        text = descriptions.get(metric.statistic) or f"{METRIC_LABELS.get(metric.statistic, metric.statistic)}."
    if metric.protocol in PROTOCOLS:
        text += f" Reduced by `{metric.protocol}`: {PROTOCOLS[metric.protocol].meaning}."
    return text


def results_text(metrics: Mapping[str, float], headline: str = "") -> str:
    """Return the headline, the short table in Markdown, and the meaning of its numbers.

    Args:
        metrics: The final metrics by name.
        headline: The headline of the verdict.

    >>> print(results_text({"explain/gatt/truth_auroc": 0.9931}).splitlines()[2])
    | GAtt | **0.99** |
    """
    methods = {metric.method for name in metrics if (metric := MetricName.parse(name)) is not None}
    short = short_table(metrics, {method: method_label(method) for method in methods})
    lines = ["| | " + " | ".join(short.headers) + " |", "|---" * (len(short.headers) + 1) + "|"]
    for label, cells in short.rows.items():
        texts = (f"**{cell.text}**" if cell.is_best else cell.text for cell in cells)
        lines.append(f"| {label} | " + " | ".join(texts) + " |")
    truth = HEADERS["truth"]
    meanings = [f"**{truth}**: {DESCRIPTIONS[TRUTH]}"] if truth in short.headers else []
    if set(short.headers) - {truth}:
        meanings.append(f"**{'the other columns' if meanings else 'the columns'}**: {DESCRIPTIONS[WITHIN]}")
    others = [f"{name} {metrics[name]:.4f}" for name in charted_accuracies(metrics)]
    more = "All runs side by side, with their explanations: the tab *Explanations*."
    head = [f"**{line}**\n" for line in headline.splitlines()]
    return "\n".join([*head, *lines, "", *[f"{text}\n" for text in (*meanings, *others, more)]])


HYPERPARAMETERS = ("dropout", "attention_dropout", "heads", "num_layers", "conv", "hidden_channels")
"""Attributes of the network that the HParams page shows."""

ANY_ACCURACY = ".*[vV]al.*([aA]cc|[aA][uU][cC]).*"
"""Pattern of tags that look like a validation accuracy, for when none is logged yet."""

MAX_RUNS_SHOWN = 40
"""TensorBoard's pages Custom Scalars, Scalars, Histograms and Distributions tick no run above this number of runs. Its
first page, Time Series, ticks all up to 500."""

FIRST = "attree"
"""The group of tags that TensorBoard lists first; the others are `config`, `explain`, `train` and `val`."""

RUNS_BESIDE = "ATTREE_RUNS_BESIDE"
"""Environment variable with the number of runs that a sweep writes to one folder. It is set by `attree sweep`."""

STEP_TARGETS, STEP_EDGES = 20, 300
"""Most targets, and most edges per target, that are written at a step."""

TICKED = frozenset({"weight_decay", "dropout", "attention_dropout", "lr", "heads"})
"""The five hyperparameters that the HParams page shows at first: those that are varied most."""


class TensorBoardWriter:
    """Writes to the TensorBoard logger of a trainer, in the process that owns it."""

    def __init__(self, writer: SummaryWriter, name: str = PREFIX) -> None:
        self.writer = writer
        self.name = name
        self._headline: dict[str, str] = {}

    @classmethod
    def of(cls, trainer: Trainer, name: str = PREFIX) -> TensorBoardWriter | None:
        """Return the writer of a trainer; None without a TensorBoard logger, and in all processes but the first."""
        loggers: list[Any] = [logger for logger in trainer.loggers if is_logger(logger, "TensorBoardLogger")]
        if not loggers or not trainer.is_global_zero:
            return None
        described = cls(loggers[0].experiment, name)
        describe_scalars(described.writer, described.describe)
        return described

    def describe(self, tag: str) -> str:
        """Return the meaning of a tag of this callback, in Markdown; an empty string for other tags."""
        tag = self._headline.get(tag, tag)
        is_ours = tag == self.name or tag.startswith(f"{self.name}/")
        return describe_metric(PREFIX + tag.removeprefix(self.name)) if is_ours else ""

    def write_layout(self, evaluator: Evaluator, metrics: Iterable[str]) -> None:
        """Write the charts of the Custom Scalars page: accuracy, the leading statistic, then all others.

        TensorBoard colours lines by run. So a single run is read in the charts that compare methods, and several runs
        in the charts of one method each. Methods are tags, not runs of their own: above 40 runs this page shows none.

        Args:
            evaluator: The evaluator, with its methods, protocols and ground truth.
            metrics: Names of the logged metrics; validation accuracies get a chart.
        """
        if int(os.environ.get(RUNS_BESIDE, "0")) > MAX_RUNS_SHOWN:
            return
        # TensorBoard reads tags as patterns, so an accuracy that is logged later is in the chart too.
        charts = {"attree": {"accuracy": charted_accuracies(metrics) or [ANY_ACCURACY]}}
        numbers: list[tuple[str, str | None]] = [(TRUTH, None)] if evaluator.truth is not None else []
        numbers += [(WITHIN, protocol.name) for protocol in evaluator.protocols]
        for statistic, protocol in numbers:
            title = _chart_title(statistic, protocol)
            tags = {method: self._tag(method, statistic, protocol) for method in evaluator.methods}
            charts["attree"][f"{title}: all methods"] = list(tags.values())
            charts[f"{title}: a method each"] = {method_label(method): [tag] for method, tag in tags.items()}
        for protocol in (reduction.name for reduction in evaluator.protocols):
            charts[f"statistics ({protocol})"] = {
                _chart_title(statistic, protocol): [self._tag(name, statistic, protocol) for name in evaluator.methods]
                for statistic in (*STATISTICS, FAITHFULNESS)
            }
        layout = {
            group: {title: ["Multiline", tags] for title, tags in titles.items()} for group, titles in charts.items()
        }
        self.writer.add_custom_scalars(layout)

    def _tag(self, method: str, statistic: str, protocol: str | None) -> str:
        return MetricName(method, statistic, protocol).under(self.name)

    def write_headline(self, metrics: Mapping[str, float], step: int) -> None:
        """Write the numbers of the short table once more, in a group that TensorBoard lists first.

        All metrics of explanations are one group of about ninety cards, sorted by method. TensorBoard sorts groups by
        the first word of their tags.

        Args:
            metrics: The metrics of an evaluation by name.
            step: The step that they are logged at.
        """
        for name, value in metrics.items():
            metric = MetricName.parse(name)
            if metric is None or metric.statistic not in (TRUTH, WITHIN):
                continue
            column = HEADERS.get(metric.group, metric.group)
            tag = self._first(f"{column}/{method_label(metric.method)}")
            self._headline[tag] = MetricName(metric.method, metric.statistic, metric.protocol).under(self.name)
            self.writer.add_scalar(tag, value, step)

    def _first(self, tag: str) -> str:
        """Return a tag in the group that is listed first."""
        return f"{FIRST}/{tag}" if self.name == PREFIX else f"{FIRST}/{self.name}/{tag}"

    def write_scores(self, evaluation: Evaluation, step: int) -> None:
        """Write histograms of each method's scores, for edges that change the prediction and edges that do not.

        In a distributed run, these are the edges of the first process only.
        """
        for protocol, reduction in evaluation.reductions.items():
            for method, scores in evaluation.pair_scores.items():
                for label, edge_mask in (("changed", reduction.changed), ("unchanged", ~reduction.changed)):
                    values = scores[edge_mask & scores.isfinite()]
                    if values.numel() > 0:  # TensorBoard refuses an empty histogram
                        self.writer.add_histogram(f"scores/{method}/{protocol}/prediction_{label}", values, step)

    def write_explanations(self, evaluation: Evaluation, step: int) -> None:
        """Write explanations of some targets at this step, for the tab: `explanations/steps/<step>.json`."""
        folder = str(self.writer.log_dir)
        if "://" in folder:  # not a folder of this computer
            return
        content = page_content(evaluation, max_targets=STEP_TARGETS, max_edges=STEP_EDGES)
        path = Path(folder, *(() if self.name == PREFIX else (self.name,)), "explanations", "steps", f"{step}.json")
        write_text(path, json.dumps(json_ready(content), allow_nan=False))

    def write_results(self, metrics: Mapping[str, float], step: int, headline: str = "") -> None:
        """Write the final table and its legend to the page of texts, before all other texts."""
        self.writer.add_text(self._first("results"), results_text(metrics, headline), step)

    def write_figures(self, figures: Mapping[str, Figure], step: int) -> None:
        """Write figures as images, by name."""
        for name, figure in figures.items():
            self.writer.add_image(f"{self.name}/{name}", _pixels(figure), step, dataformats="HWC")

    def write_hyperparameters(self, pl_module: LightningModule, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Write a line of the HParams page: the run's hyperparameters, and the metrics to compare runs by.

        TensorBoard takes the metrics' values from the curves of the same name.
        """
        names = charted_accuracies(metrics)
        names += [name for name in metrics if name.endswith((f"/{WITHIN}", f"/{FAITHFULNESS}", f"/{TRUTH}"))]
        experiment, begun, ended = hparams(hyperparameters(pl_module, trainer), dict.fromkeys(names, 0.0))
        _put_first(experiment, TICKED)
        for summary in (experiment, begun, ended):
            add_summary(self.writer, summary)
        self.writer.flush()


def _chart_title(statistic: str, protocol: str | None) -> str:
    words = METRIC_LABELS.get(statistic, statistic)
    return words if protocol is None else f"{words} ({protocol})"


def _put_first(experiment: Summary, names: Collection[str]) -> None:
    """List some hyperparameters first on the HParams page, which shows only the first five until others are ticked.

    The page sorts by the flag `differs`, then by name.
    """
    (value,) = experiment.value
    content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
    for info in content.experiment.hparam_infos:
        info.differs = info.name in names
    value.metadata.plugin_data.content = content.SerializeToString()


def _pixels(figure: Figure) -> np.ndarray:
    """Return a figure as an image [height, width, RGB]."""
    return imread(BytesIO(as_png(figure)), format="png")[:, :, :3]


def write_figures_run(folder: Path, figures: Mapping[str, Figure], step: int) -> None:
    """Write figures by name as a TensorBoard run of their own, and remove the folder's earlier ones."""
    former = list(folder.glob("events.out.tfevents.*"))
    with SummaryWriter(str(folder)) as writer:
        for name, figure in figures.items():
            writer.add_image(name, _pixels(figure), step, dataformats="HWC")
    for path in former:
        path.unlink(missing_ok=True)


def hyperparameters(pl_module: LightningModule, trainer: Trainer) -> dict[str, Any]:
    """Return the hyperparameters of a run: of the network, its training, the data, and the seed; plain values only.

    PyG keeps a dropout rate as a `Dropout` module, so the rate of a module is taken.
    """
    net, data = getattr(pl_module, "net", pl_module), getattr(trainer, "datamodule", None)
    values = {name: getattr(pl_module, name) for name in ("weight_decay",) if hasattr(pl_module, name)}
    values |= {name: getattr(net, name) for name in HYPERPARAMETERS if hasattr(net, name)}
    values |= {name: getattr(pl_module, name) for name in ("lr", "readout") if hasattr(pl_module, name)}
    values = {
        name: getattr(value, "p", None) if isinstance(value, nn.Module) else value for name, value in values.items()
    }
    for optimizer in trainer.optimizers[:1]:  # the optimiser in use, whoever chose it
        values |= {name: optimizer.defaults[name] for name in ("lr", "weight_decay") if name in optimizer.defaults}
        values["optimizer"] = type(optimizer).__name__
    values = {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}
    values["dataset"] = getattr(data, "name", type(data).__name__)
    values["seed"] = int(os.environ.get("PL_GLOBAL_SEED", -1))
    return values
