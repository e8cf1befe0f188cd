"""What TensorBoard shows beyond plain curves: grouped charts, histograms, figures, hyperparameters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from attree.evaluation import Evaluation
from attree.evaluation.names import FAITHFULNESS, PREFIX, TRUTH, MetricName
from attree.metrics.functional.faithfulness import STATISTICS
from attree.report.case_studies import draw_score_histograms

HYPERPARAMETERS = (
    "conv",
    "num_layers",
    "heads",
    "hidden_channels",
    "dropout",
    "attention_dropout",
)
"""What is read off the network; learning rate, weight decay, seed and dataset come from elsewhere."""


class Board:
    """Writes to the TensorBoard logger of a trainer, in the process that owns it."""

    def __init__(self, writer: SummaryWriter) -> None:
        self.writer = writer

    @classmethod
    def of(cls, trainer: Trainer) -> Board | None:
        """The board of a trainer; None without a TensorBoard logger and in all processes but the first."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        return cls(loggers[0].experiment) if loggers and trainer.is_global_zero else None

    def write_layout(self, methods: Iterable[str], protocols: Iterable[str]) -> None:
        """Charts of the Custom Scalars page: accuracy beside faithfulness, and all methods on one chart a statistic."""
        methods = list(methods)
        charts: dict[str, dict[str, list[Any]]] = {
            "attree": {
                "accuracy": ["Multiline", ["val/acc"]],
                "ground-truth AUROC": ["Multiline", [str(MetricName(method, TRUTH)) for method in methods]],
            }
        }
        for protocol in protocols:
            for statistic in (FAITHFULNESS, *STATISTICS):
                tags = [str(MetricName(method, statistic, protocol)) for method in methods]
                group = "attree" if statistic == FAITHFULNESS else f"statistics ({protocol})"
                charts.setdefault(group, {})[f"{statistic} ({protocol})"] = ["Multiline", tags]
        self.writer.add_custom_scalars(charts)

    def write_scores(self, evaluation: Evaluation, step: int) -> None:
        """Histograms of each method's scores where the prediction changed and where it did not.

        In a distributed run these are the pairs of the first process: a sample of all.
        """
        for protocol, reduction in evaluation.reductions.items():
            for method, scores in evaluation.pair_scores.items():
                for label, chosen in (("changed", reduction.changed), ("unchanged", ~reduction.changed)):
                    if bool(chosen.any()):
                        tag = f"scores/{method}/{protocol}/prediction_{label}"
                        self.writer.add_histogram(tag, scores[chosen], step)
        self.write_figures(draw_score_histograms(evaluation), step)

    def write_figures(self, figures: Mapping[str, Figure], step: int) -> None:
        """Pictures, by name."""
        for name, figure in figures.items():
            self.writer.add_figure(f"{PREFIX}/{name}", figure, step)

    def write_hyperparameters(self, pl_module: LightningModule, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """One line of the HParams page: what the run was, and the metrics to compare runs by.

        The metrics' values are those of the curves of the same name; none is written again.
        """
        shown = [name for name in metrics if name == "val/acc" or name.endswith((f"/{FAITHFULNESS}", f"/{TRUTH}"))]
        for summary in hparams(hyperparameters(pl_module, trainer), dict.fromkeys(shown, 0.0)):
            self.writer._get_file_writer().add_summary(summary)
        self.writer.flush()


def log_scalars(trainer: Trainer, values: Mapping[str, float], step: int) -> None:
    """Log scalars to all loggers of a trainer.

    TensorBoard gets them as one event: dozens of single ones, as its logger writes them, cost a fifth of an epoch.
    A logger that derives from its one, and may write them otherwise, is left to do so.
    """
    for logger in trainer.loggers:
        if type(logger) is TensorBoardLogger and not logger._prefix:
            if trainer.is_global_zero:
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
                logger.experiment._get_file_writer().add_summary(summary, step)
        else:
            logger.log_metrics(dict(values), step)


def hyperparameters(pl_module: LightningModule, trainer: Trainer) -> dict[str, Any]:
    """What tells runs apart: the network, its training, the data and the seed."""
    net, data = getattr(pl_module, "net", pl_module), getattr(trainer, "datamodule", None)
    values = {name: getattr(net, name) for name in HYPERPARAMETERS if hasattr(net, name)}
    values |= {name: getattr(pl_module, name) for name in ("lr", "weight_decay", "readout") if hasattr(pl_module, name)}
    values["dataset"] = getattr(data, "name", type(data).__name__)
    values["seed"] = int(os.environ.get("PL_GLOBAL_SEED", -1))
    return values
