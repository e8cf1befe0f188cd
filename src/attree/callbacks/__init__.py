"""Lightning callbacks: what happens around training."""

from attree.callbacks.checkpoint import LastCheckpoint
from attree.callbacks.epoch_progress import EpochProgress
from attree.callbacks.explain import ExplainCallback

__all__ = ["EpochProgress", "ExplainCallback", "LastCheckpoint"]
