"""Pictures in dashboards while a network trains: when they are drawn, and for whom."""

from __future__ import annotations

from lightning.pytorch import Trainer

from attree.callbacks.board import Board
from attree.callbacks.figure_sinks import figure_sinks, write_figures
from attree.callbacks.warn_only import warn_only
from attree.evaluation import Evaluation, Evaluator
from attree.report.case_studies import draw_case_studies, draw_score_histograms


class Pictures:
    """Draws case studies and histograms about five times in a run, and of the network that it ends with.

    Pictures cost more than an epoch of a small graph. One that cannot be drawn or shown is a warning.

    Args:
        count: How many targets are drawn as case studies; 0 draws nothing.
        every_n_epochs: Epochs between two evaluations.
        name: First word of their names in dashboards.
    """

    def __init__(self, count: int, every_n_epochs: int, name: str) -> None:
        self.count = count
        self.every_n_epochs = every_n_epochs
        self.name = name
        self._drawn_step = -1

    def forget(self) -> None:
        """Begin a new run."""
        self._drawn_step = -1

    def are_due(self, trainer: Trainer, has_ended: bool) -> bool:
        """Whether to draw after this evaluation."""
        if self.count == 0:
            return False
        if has_ended:
            return self._drawn_step != trainer.global_step
        epoch, last, step = trainer.current_epoch + 1, trainer.max_epochs, max(self.every_n_epochs, 1)
        return last is not None and last > 0 and (epoch == last or epoch * 5 // last > (epoch - step) * 5 // last)

    def draw(
        self,
        trainer: Trainer,
        board: Board | None,
        evaluator: Evaluator,
        evaluation: Evaluation,
        step: int,
    ) -> None:
        """Draw what an evaluation found, for TensorBoard and for every other logger that takes figures."""
        self._drawn_step = trainer.global_step
        sinks = figure_sinks(trainer)
        if board is None and not sinks:
            return
        with warn_only("Pictures in dashboards"):
            figures = draw_case_studies(evaluator, self.count)
            figures |= draw_score_histograms(evaluation)
            if board is not None:
                board.write_scores(evaluation, step)
                board.write_figures(figures, step)
            write_figures(sinks, figures, self.name, step)
