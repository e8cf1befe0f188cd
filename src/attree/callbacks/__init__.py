"""Lightning callbacks: explain a network while it trains, show progress, save the last checkpoint."""

from attree.callbacks.checkpoint import LastCheckpoint
from attree.callbacks.explain import ExplainCallback
from attree.callbacks.progress import EpochProgress

__all__ = ["EpochProgress", "ExplainCallback", "LastCheckpoint"]
