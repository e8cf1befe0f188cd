"""What TensorBoard shows beyond plain curves: charts, a run for each method, histograms, figures, tables, settings.

The tab of `attree.tab` reads what is written here.
"""

from __future__ import annotations

import json
import math
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
from torch.utils.tensorboard.summary import scalar as scalar_summary

from attree.attribution import method_label
from attree.callbacks._private import add_summary, describe_scalars
from attree.evaluation import Evaluation, Evaluator
from attree.evaluation.names import BYPASS, FAITHFULNESS, METRIC_LABELS, PREFIX, SECONDS, TRUTH, MetricName
from attree.faithfulness import PROTOCOLS
from attree.io.files import write_text
from attree.io.json_files import json_ready
from attree.metrics.functional.faithfulness import STATISTICS
from attree.report.page.content import page_content
from attree.report.style import as_png
from attree.runs.run_folder import is_logger

HYPERPARAMETERS = ("dropout", "attention_dropout", "heads", "num_layers", "conv", "hidden_channels")
"""What is read off the network."""

ANY_ACCURACY = ".*[vV]al.*[aA]cc.*"
"""Tags that look like a validation accuracy, where none is known yet."""

DESCRIPTIONS = {
    FAITHFULNESS: "How well the method's scores foretell what reducing each edge's attention does to the prediction: "
    "the mean of seven statistics. 1 is perfect; the correlations among them are 0 by chance, the AUROC 0.5.",
    TRUTH: "How well the method's scores find the edges that are known to cause the label: the chance that a true edge "
    "scores higher than another. 1 is perfect, 0.5 is chance.",
}
"""What the main numbers of a method mean."""

EFFECTS = {"pc": "how far the predicted class's probability falls", "ne": "how far the prediction's entropy rises"}
OTHER_DESCRIPTIONS = {
    "p_auroc": "How well the method's scores tell edges whose reduction changes the predicted class from all others "
    "(AUROC). 1 is perfect, 0.5 is chance.",
    BYPASS: "How much of the prediction goes around attention, by skips and the like: 0 is nothing.",
    SECONDS: "How long this evaluation of the explanations took.",
}

STEP_TARGETS, STEP_EDGES = 20, 300
"""How much of an evaluation is kept for a step."""

TICKED = frozenset({"weight_decay", "dropout", "attention_dropout", "lr", "heads"})
"""What regularises or is varied most: the five that the HParams page shows before anything is clicked."""


class TensorBoardWriter:
    """Writes to the TensorBoard logger of a trainer, in the process that owns it."""

    def __init__(self, writer: SummaryWriter, name: str = PREFIX) -> None:
        self.writer = writer
        self.name = name
        self._of_method: dict[str, SummaryWriter] = {}

    @classmethod
    def of(cls, trainer: Trainer, name: str = PREFIX) -> TensorBoardWriter | None:
        """The writer of a trainer; None without a TensorBoard logger and in all processes but the first."""
        loggers: list[Any] = [logger for logger in trainer.loggers if is_logger(logger, "TensorBoardLogger")]
        if not loggers or not trainer.is_global_zero:
            return None
        described = cls(loggers[0].experiment, name)
        describe_scalars(described.writer, described.describe)
        return described

    def describe(self, tag: str) -> str:
        """What a tag of this callback means, in Markdown; an empty string for tags of others."""
        own = tag == self.name or tag.startswith(f"{self.name}/")
        return describe_metric(PREFIX + tag.removeprefix(self.name)) if own else ""

    def write_layout(self, evaluator: Evaluator, metrics: Iterable[str]) -> None:
        """Charts of the Custom Scalars page: accuracy beside faithfulness, and all methods on one chart a statistic.

        Args:
            evaluator: Says which methods and protocols there are, and whether there is ground truth.
            metrics: Names of what the run logs; those that look like a validation accuracy get a chart.
        """
        charts: dict[str, dict[str, list[Any]]] = {"attree": {}}
        # A chart's lines have the colours of their runs: the main numbers are shown from the runs of the methods.
        # TensorBoard reads tags as patterns: an accuracy that is logged later finds its chart too.
        charts["attree"]["accuracy"] = ["Multiline", accuracy_names(metrics) or [ANY_ACCURACY]]
        if evaluator.truth is not None:
            charts["attree"]["ground truth, AUROC"] = ["Multiline", [self._method_tag(TRUTH)]]
        for protocol in evaluator.protocols:
            for statistic in (FAITHFULNESS, *STATISTICS):
                if statistic == FAITHFULNESS:
                    group, tags = "attree", [self._method_tag(statistic, protocol.name)]
                else:
                    names = [MetricName(method, statistic, protocol.name) for method in evaluator.methods]
                    group, tags = f"statistics ({protocol})", [name.under(self.name) for name in names]
                charts.setdefault(group, {})[f"{statistic} ({protocol})"] = ["Multiline", tags]
        self.writer.add_custom_scalars(charts)

    @property
    def _methods_folder(self) -> str:
        return "methods" if self.name == PREFIX else f"{self.name}_methods"

    def _method_tag(self, statistic: str, protocol: str | None = None) -> str:
        """The tag of a main number in the run of each method."""
        return "/".join(part for part in (self._methods_folder, protocol, statistic) if part is not None)

    def write_scores(self, evaluation: Evaluation, step: int) -> None:
        """Histograms of each method's scores where the prediction changed and where it did not.

        In a distributed run these are the pairs of the first process: a sample of all.
        """
        for protocol, reduction in evaluation.reductions.items():
            for method, scores in evaluation.pair_scores.items():
                for label, chosen in (("changed", reduction.changed), ("unchanged", ~reduction.changed)):
                    known = scores[chosen & scores.isfinite()]
                    if known.numel() > 0:  # TensorBoard refuses an empty histogram
                        self.writer.add_histogram(f"scores/{method}/{protocol}/prediction_{label}", known, step)

    def write_methods(self, metrics: Mapping[str, float], step: int) -> None:
        """The main numbers of each method as a run of its own, so that methods have colours and share a chart.

        The run of `gatt` is the folder `methods/gatt` below the run's; the tags there say what they mean.
        """
        folder = self._methods_folder
        for name, value in metrics.items():
            metric = MetricName.parse(name)
            if metric is None or metric.statistic not in DESCRIPTIONS:
                continue
            if metric.method not in self._of_method:
                self._of_method[metric.method] = SummaryWriter(f"{self.writer.log_dir}/{folder}/{metric.method}")
            own = self._of_method[metric.method]
            summary = scalar_summary(self._method_tag(metric.statistic, metric.protocol), value, new_style=True)
            summary.value[0].metadata.summary_description = DESCRIPTIONS[metric.statistic]
            add_summary(own, summary, step)
        for own in self._of_method.values():
            own.flush()

    def write_explanations(self, evaluation: Evaluation, step: int) -> None:
        """What some targets' explanations are at this step, for the tab: `explanations/steps/<step>.json`."""
        folder = str(self.writer.log_dir)
        if "://" in folder:  # not a folder of this computer
            return
        content = page_content(evaluation, max_targets=STEP_TARGETS, max_edges=STEP_EDGES)
        path = Path(folder, *(() if self.name == PREFIX else (self.name,)), "explanations", "steps", f"{step}.json")
        write_text(path, json.dumps(json_ready(content), allow_nan=False))

    def write_results(self, metrics: Mapping[str, float], step: int) -> None:
        """The last table and how to read it, for the page of texts; runs of methods end here."""
        self.writer.add_text(f"{self.name}/results", results_text(metrics), step)
        for own in self._of_method.values():
            own.close()
        self._of_method.clear()

    def write_figures(self, figures: Mapping[str, Figure], step: int) -> None:
        """Pictures, by name."""
        for name, figure in figures.items():
            self.writer.add_image(f"{self.name}/{name}", _pixels(figure), step, dataformats="HWC")

    def write_hyperparameters(self, pl_module: LightningModule, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """One line of the HParams page: what the run was, and the metrics to compare runs by.

        The metrics' values are those of the curves of the same name; none is written again.
        """
        shown = accuracy_names(metrics)
        shown += [name for name in metrics if name.endswith((f"/{FAITHFULNESS}", f"/{TRUTH}"))]
        experiment, begun, ended = hparams(hyperparameters(pl_module, trainer), dict.fromkeys(shown, 0.0))
        _put_first(experiment, TICKED)
        for summary in (experiment, begun, ended):
            add_summary(self.writer, summary)
        self.writer.flush()


def _put_first(experiment: Summary, names: Collection[str]) -> None:
    """Have the HParams page list some hyperparameters first: it sorts by whether they are said to differ, then by name.

    The page ticks the first five and shows no others until they are ticked too.
    """
    (value,) = experiment.value
    content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
    for info in content.experiment.hparam_infos:
        info.differs = info.name in names
    value.metadata.plugin_data.content = content.SerializeToString()


def _pixels(figure: Figure) -> np.ndarray:
    """A figure's picture as TensorBoard takes it: height, width, red-green-blue."""
    return imread(BytesIO(as_png(figure)), format="png")[:, :, :3]


def write_figures_run(folder: Path, figures: Mapping[str, Figure], step: int) -> None:
    """Pictures by name as a TensorBoard run of their own, in place of those that the folder had."""
    former = list(folder.glob("events.out.tfevents.*"))
    with SummaryWriter(str(folder)) as writer:
        for name, figure in figures.items():
            writer.add_image(name, _pixels(figure), step, dataformats="HWC")
    for path in former:
        path.unlink(missing_ok=True)


def results_text(metrics: Mapping[str, float]) -> str:
    """The final numbers as a Markdown table, one column a method, and what they mean.

    >>> print(results_text({"explain/gatt/truth_auroc": 0.9931}).splitlines()[2])
    | ground truth, AUROC | 0.9931 |
    """
    named = {name: metric for name in metrics if (metric := MetricName.parse(name)) is not None}
    methods = list(dict.fromkeys(metric.method for metric in named.values()))
    rows: dict[str, dict[str, str]] = {}
    for name, metric in named.items():
        if metric.statistic in DESCRIPTIONS:
            reduced = f", reduced by {metric.protocol}" if metric.protocol else ""
            label = METRIC_LABELS.get(metric.statistic, metric.statistic)
            value = metrics[name]
            rows.setdefault(label + reduced, {})[metric.method] = "undefined" if math.isnan(value) else f"{value:.4f}"
    lines = ["| | " + " | ".join(map(method_label, methods)) + " |", "|---" * (len(methods) + 1) + "|"]
    lines += [
        f"| {label} | " + " | ".join(row.get(method, "") for method in methods) + " |" for label, row in rows.items()
    ]
    meanings = [f"**{name}**: {text}" for name, text in ((METRIC_LABELS[TRUTH], DESCRIPTIONS[TRUTH]),)]
    meanings.append(f"**faithfulness**: {DESCRIPTIONS[FAITHFULNESS]}")
    others = [f"{name} {metrics[name]:.4f}" for name in accuracy_names(metrics)]
    more = "All runs side by side, and every explanation to look at: the tab *Explanations*."
    return "\n".join([*lines, "", *[f"{text}\n" for text in (*meanings, *others, more)]])


def describe_metric(name: str) -> str:
    """What a logged number means, in a sentence or two; an empty string for numbers that are not explanations'.

    >>> describe_metric("explain/gatt/removal/pc_kendall").partition(" when ")[0]
    "Kendall's rank correlation of GAtt's scores with how far the predicted class's probability falls"
    >>> describe_metric("val/acc")
    ''
    """
    metric = MetricName.parse(name)
    if metric is None:
        return OTHER_DESCRIPTIONS.get(name, "")
    measure, _, statistic = metric.statistic.partition("_")
    if metric.statistic in STATISTICS and measure in EFFECTS:
        kind = "Pearson's" if statistic == "pearson" else f"{statistic.capitalize()}'s rank"
        text = f"{kind} correlation of {method_label(metric.method)}'s scores with {EFFECTS[measure]} when an edge is "
        text += "reduced. 1 is perfect, 0 is chance."
    else:
        known = DESCRIPTIONS | OTHER_DESCRIPTIONS
        text = known.get(metric.statistic) or f"{METRIC_LABELS.get(metric.statistic, metric.statistic)}."
    if metric.protocol in PROTOCOLS:
        text += f" Reduced by `{metric.protocol}`: {PROTOCOLS[metric.protocol].meaning}."
    return text


def accuracy_names(metrics: Iterable[str]) -> list[str]:
    """Which metrics are validation accuracies, whatever a module calls them; or else any accuracies.

    >>> accuracy_names(["train/loss", "val_acc", "train_acc"]), accuracy_names(["val/loss", "Accuracy"])
    (['val_acc'], ['Accuracy'])
    """
    found = [name for name in metrics if "acc" in name.lower() and not name.startswith(PREFIX)]
    validated = [name for name in found if "val" in name.lower()]
    return validated or found


def hyperparameters(pl_module: LightningModule, trainer: Trainer) -> dict[str, Any]:
    """What tells runs apart: the network, its training, the data and the seed; plain values alone.

    A network's attribute may be something else than its argument was: PyG keeps a dropout rate as a `Dropout` module,
    whose rate is shown.
    """
    net, data = getattr(pl_module, "net", pl_module), getattr(trainer, "datamodule", None)
    values = {name: getattr(pl_module, name) for name in ("weight_decay",) if hasattr(pl_module, name)}
    values |= {name: getattr(net, name) for name in HYPERPARAMETERS if hasattr(net, name)}
    values |= {name: getattr(pl_module, name) for name in ("lr", "readout") if hasattr(pl_module, name)}
    values = {
        name: getattr(value, "p", None) if isinstance(value, nn.Module) else value for name, value in values.items()
    }
    values = {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}
    for optimizer in trainer.optimizers[:1]:  # what is really used, whoever chose it
        values |= {name: optimizer.defaults[name] for name in ("lr", "weight_decay") if name in optimizer.defaults}
        values["optimizer"] = type(optimizer).__name__
    values = {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}
    values["dataset"] = getattr(data, "name", type(data).__name__)
    values["seed"] = int(os.environ.get("PL_GLOBAL_SEED", -1))
    return values
