"""A run on disk: its folder and lock, its config, its checkpoint, how it is resumed and how it is opened again."""

from attree.runs.load_run import FinishedRun, load_run

__all__ = ["FinishedRun", "load_run"]
