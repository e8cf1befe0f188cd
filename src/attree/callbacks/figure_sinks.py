"""Where figures go beside TensorBoard: to W&B and MLflow, in the way each has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Trainer
from matplotlib.figure import Figure

FigureSink = Callable[[str, Figure, int], None]
"""Called as `sink(name, figure, step)`."""


def figure_sinks(trainer: Trainer) -> list[FigureSink]:
    """One sink for each of the trainer's loggers that takes figures; none in all processes but the first.

    Loggers are known by the name of their class, or of one that they derive from, so that `lightning` and
    `pytorch_lightning` are alike and nothing is imported that the user does not have.
    """
    if not trainer.is_global_zero:
        return []
    found = []
    for logger in trainer.loggers:
        names = {base.__name__ for base in type(logger).__mro__}
        found += [make(logger) for name, make in SINKS.items() if name in names]
    return found


def write_figures(sinks: list[FigureSink], figures: Mapping[str, Figure], prefix: str, step: int) -> None:
    """Give every figure to every sink."""
    for name, figure in figures.items():
        for sink in sinks:
            sink(f"{prefix}/{name}", figure, step)


def _wandb(logger: Any) -> FigureSink:
    def write(name: str, figure: Figure, step: int) -> None:
        import wandb

        # W&B's own step counts calls: Lightning logs the trainer's step as a metric of this name, which charts read.
        logger.experiment.log({name: wandb.Image(figure), "trainer/global_step": step})

    return write


def _mlflow(logger: Any) -> FigureSink:
    def write(name: str, figure: Figure, step: int) -> None:
        logger.experiment.log_figure(logger.run_id, figure, f"{name}_step_{step}.png")

    return write


SINKS: dict[str, Callable[[Any], FigureSink]] = {"WandbLogger": _wandb, "MLFlowLogger": _mlflow}
"""By the name of a logger's class: how a figure is written to it."""
