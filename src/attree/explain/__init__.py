"""Look at the explanations of a finished run: `attree explain`, and `attree.load_run`."""

from attree.explain.load_run import FinishedRun, load_run

__all__ = ["FinishedRun", "load_run"]
