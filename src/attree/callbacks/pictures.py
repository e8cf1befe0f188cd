"""Pictures of explanations while a run trains: when they are drawn, and which loggers get them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from matplotlib.figure import Figure

from attree.callbacks._private import log_step
from attree.callbacks.tensorboard import TensorBoardWriter
from attree.evaluation import Evaluation, Evaluator
from attree.report.case_studies import draw_case_studies, draw_score_histograms
from attree.runs.run_folder import is_logger

SHARE = 0.1
"""Largest share of a fit's time that pictures may take before its end."""

FIRST_SECONDS = 2.0
"""Assumed seconds for the first pictures, before any were timed."""

FigureSink = Callable[[str, Figure, int], None]
"""Called as `sink(name, figure, step)`."""


@contextmanager
def warn_only(what: str) -> Iterator[None]:
    """Turn any exception inside the block into a one-line warning. For pictures and dashboards, never for results."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())
        rank_zero_warn(f"{what} could not be made ({type(error).__name__}: {reason}); the run goes on without.")


class Pictures:
    """Draws case studies and histograms about five times while a run trains, and once at its end.

    Pictures take longer than many epochs on a small graph, so they may take at most a tenth of the run's time before
    its end. A picture that cannot be drawn or shown causes a warning.

    Args:
        count: Number of targets to draw as case studies; 0 draws nothing.
        every_n_epochs: Number of epochs between two evaluations.
        name: First word of the pictures' names in dashboards.
    """

    def __init__(self, count: int, every_n_epochs: int, name: str) -> None:
        self.count = count
        self.every_n_epochs = every_n_epochs
        self.name = name
        self._began = perf_counter()
        self._spent = 0.0
        self._last_seconds = FIRST_SECONDS

    def are_due(self, trainer: Trainer) -> bool:
        """Whether to draw after this evaluation, while training goes on."""
        epoch, last, step = trainer.current_epoch + 1, trainer.max_epochs, max(self.every_n_epochs, 1)
        if self.count == 0 or last is None or last <= 0 or epoch * 5 // last <= (epoch - step) * 5 // last:
            return False
        return self._spent + self._last_seconds <= SHARE * (perf_counter() - self._began)

    def draw(self, evaluator: Evaluator, evaluation: Evaluation) -> dict[str, Figure]:
        """Draw an evaluation, and return the figures by name. If drawing fails, warn and return those drawn so far."""
        began = perf_counter()
        figures: dict[str, Figure] = {}
        with warn_only("Figures"):
            figures |= draw_case_studies(evaluator, self.count)
            figures |= draw_score_histograms(evaluation)
        self._last_seconds = perf_counter() - began
        self._spent += self._last_seconds
        return figures

    def show(
        self, figures: Mapping[str, Figure], trainer: Trainer, writer: TensorBoardWriter | None, evaluation: Evaluation
    ) -> None:
        """Send pictures to TensorBoard and to all other loggers that accept figures."""
        step = log_step(trainer)
        with warn_only("Pictures in dashboards"):
            if writer is not None:
                writer.write_scores(evaluation, step)
                writer.write_figures(figures, step)
            for sink in figure_sinks(trainer):
                for name, figure in figures.items():
                    sink(f"{self.name}/{name}", figure, step)


def figure_sinks(trainer: Trainer) -> list[FigureSink]:
    """Return a function for each logger that accepts figures, except TensorBoard's; none outside the first process."""
    if not trainer.is_global_zero:
        return []
    return [make(logger) for logger in trainer.loggers for name, make in SINKS.items() if is_logger(logger, name)]


def _wandb(logger: Any) -> FigureSink:
    def write(name: str, figure: Figure, step: int) -> None:
        import wandb

        # W&B's own step counts calls. Lightning logs the trainer's step as a metric of this name, and charts use it.
        logger.experiment.log({name: wandb.Image(figure), "trainer/global_step": step})

    return write


def _mlflow(logger: Any) -> FigureSink:
    def write(name: str, figure: Figure, step: int) -> None:
        logger.experiment.log_figure(logger.run_id, figure, f"{name}_step_{step}.png")

    return write


SINKS: dict[str, Callable[[Any], FigureSink]] = {"WandbLogger": _wandb, "MLFlowLogger": _mlflow}
"""Functions that write figures to a logger, by the name of the logger's class."""
