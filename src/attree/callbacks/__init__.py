"""Lightning callbacks: what happens around training."""

from attree.callbacks.checkpoint import LastCheckpoint
from attree.callbacks.explain import ExplainCallback
from attree.callbacks.progress import EpochProgress

__all__ = ["EpochProgress", "ExplainCallback", "LastCheckpoint"]
