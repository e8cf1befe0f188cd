"""What all of attree's LightningModules share: Adam, and penalties on attention in the training loss."""

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
    """A LightningModule that is saved with its network and trained by Adam, with penalties on attention if asked for.

    Attributes:
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
        penalties: Penalties on attention; none by default.
    """

    lr: float
    weight_decay: float
    penalties: AttentionPenalties

    def take_penalties(self, penalties: PenaltiesArgument | None) -> None:
        """Take penalties on attention, and keep attree's own of them in the hyperparameters."""
        self.penalties = AttentionPenalties(penalties)
        if settings := plain_settings(self.penalties.by_name):
            self.hparams["penalties"] = settings

    @classmethod
    def safe_arguments(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Penalties of a checkpoint may name any class: only attree's own are taken. Only training needs them."""
        return {"penalties": only_own(saved.get("penalties")) or None}

    @contextmanager
    def watch_attention(self) -> Iterator[WatchedPass | None]:
        """While open, the attention of a training step is recorded for the penalties; None if there are none."""
        if not self.penalties:
            yield None
            return
        with self.penalties.watch(self, self.trainer.fit_loop.total_batch_idx) as watched:
            yield watched

    def add_penalties(self, loss: Tensor, watched: WatchedPass | None, output: Tensor, batch: Any) -> Tensor:
        """The loss of a step with its penalties, which are logged as `train/attention_<name>`.

        Args:
            loss: The loss without them.
            watched: What `watch_attention` gave.
            output: What the network returned.
            batch: What the step trains on.
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
