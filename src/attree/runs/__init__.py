"""A run on disk: its directory and lock, its config, its checkpoint, how it is resumed and loaded."""

from attree.runs.load_run import FinishedRun, load_run

__all__ = ["FinishedRun", "load_run"]
