"""Base class of attree's LightningModules: Adam, and penalties on attention in the training loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attree.models.saved_net import SavesNet
from attree.penalties.callback import log_penalties
from attree.penalties.registry import PenaltiesArgument, only_own, plain_settings
from attree.penalties.regularizer import AttentionPenalties, WatchedPass


class TrainedModule(SavesNet):
    """A LightningModule that is saved with its network and trained by Adam, with optional penalties on attention.

    Attributes:
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
        penalties: Penalties on attention; none by default.
    """

    lr: float
    weight_decay: float
    penalties: AttentionPenalties

    def take_penalties(self, penalties: PenaltiesArgument | None) -> None:
        """Set the penalties on attention, and record attree's own in the hyperparameters."""
        self.penalties = AttentionPenalties(penalties)
        if settings := plain_settings(self.penalties.by_name):
            self.hparams["penalties"] = settings

    @classmethod
    def safe_arguments(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Keep only attree's own penalties of a checkpoint, because others could name any class."""
        return {"penalties": only_own(saved.get("penalties")) or None}

    @contextmanager
    def watch_attention(self) -> Iterator[WatchedPass | None]:
        """Record the attention of a training step for the penalties inside the block; yield None without penalties."""
        if not self.penalties:
            yield None
            return
        with self.penalties.watch(self, self.trainer.fit_loop.total_batch_idx) as watched:
            yield watched

    def add_penalties(self, loss: Tensor, watched: WatchedPass | None, output: Tensor, batch: Any) -> Tensor:
        """Return the loss of a step plus its penalties, and log them as `train/attention_<name>`.

        Args:
            loss: The loss without penalties.
            watched: What `watch_attention` yielded.
            output: The output of the network.
            batch: The batch of the step.
        """
        if watched is None:
            return loss
        loss = loss + watched.penalty(output, batch, getattr(self.datamodule, "truth", None))
        log_penalties(self, watched)
        return loss

    @property
    def datamodule(self) -> Any:
        """The data module that the trainer was given; None if it was given loaders."""
        return getattr(self.trainer, "datamodule", None)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        # `foreach` is PyTorch's default on GPUs; on CPUs it gives the same numbers in fewer calls.
        return torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=self.weight_decay, foreach=True)
