"""What TensorBoard shows beyond plain curves: grouped charts, histograms, figures, hyperparameters."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from matplotlib.figure import Figure
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from attree.callbacks._private import add_summary
from attree.evaluation import Evaluation, Evaluator
from attree.evaluation.names import FAITHFULNESS, PREFIX, TRUTH, MetricName
from attree.metrics.functional.faithfulness import STATISTICS
from attree.runs.run_folder import is_logger

HYPERPARAMETERS = ("dropout", "attention_dropout", "heads", "num_layers", "conv", "hidden_channels")
"""What is read off the network."""

TICKED = frozenset({"weight_decay", "dropout", "attention_dropout", "lr", "heads"})
"""What regularises or is varied most: the five that the HParams page shows before anything is clicked."""


class TensorBoardWriter:
    """Writes to the TensorBoard logger of a trainer, in the process that owns it."""

    def __init__(self, writer: SummaryWriter, name: str = PREFIX) -> None:
        self.writer = writer
        self.name = name

    @classmethod
    def of(cls, trainer: Trainer, name: str = PREFIX) -> TensorBoardWriter | None:
        """The writer of a trainer; None without a TensorBoard logger and in all processes but the first."""
        loggers: list[Any] = [logger for logger in trainer.loggers if is_logger(logger, "TensorBoardLogger")]
        return cls(loggers[0].experiment, name) if loggers and trainer.is_global_zero else None

    def write_layout(self, evaluator: Evaluator, metrics: Iterable[str]) -> None:
        """Charts of the Custom Scalars page: accuracy beside faithfulness, and all methods on one chart a statistic.

        Args:
            evaluator: Says which methods and protocols there are, and whether there is ground truth.
            metrics: Names of what the run logs; those that look like a validation accuracy get a chart.
        """
        charts: dict[str, dict[str, list[Any]]] = {"attree": {}}
        if accuracy := accuracy_names(metrics):
            charts["attree"]["accuracy"] = ["Multiline", accuracy]
        if evaluator.truth is not None:
            charts["attree"]["ground-truth AUROC"] = ["Multiline", self._tags(evaluator, TRUTH)]
        for protocol in evaluator.protocols:
            for statistic in (FAITHFULNESS, *STATISTICS):
                group = "attree" if statistic == FAITHFULNESS else f"statistics ({protocol})"
                tags = self._tags(evaluator, statistic, protocol.name)
                charts.setdefault(group, {})[f"{statistic} ({protocol})"] = ["Multiline", tags]
        self.writer.add_custom_scalars(charts)

    def _tags(self, evaluator: Evaluator, statistic: str, protocol: str | None = None) -> list[str]:
        return [MetricName(method, statistic, protocol).under(self.name) for method in evaluator.methods]

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

    def write_figures(self, figures: Mapping[str, Figure], step: int) -> None:
        """Pictures, by name."""
        for name, figure in figures.items():
            self.writer.add_figure(f"{self.name}/{name}", figure, step)

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


def write_figures_run(folder: Path, figures: Mapping[str, Figure], step: int) -> None:
    """Pictures by name as a TensorBoard run of their own, in place of those that the folder had."""
    former = list(folder.glob("events.out.tfevents.*"))
    with SummaryWriter(str(folder)) as writer:
        for name, figure in figures.items():
            writer.add_figure(name, figure, step)
    for path in former:
        path.unlink(missing_ok=True)


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
