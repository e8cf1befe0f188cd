"""Base class of attree's LightningModules: saved together with its network, and trained by Adam with penalties."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import IO, Any, ClassVar, Self

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import MeanMetric

from attree.data.dataset_module import DatasetModule
from attree.errors import ArgumentError, expect, expect_number
from attree.models.conv_nets import GAT, GCN, GIN, SAGE, GATv2, SuperGAT
from attree.models.hetero_net import HGT, HeteroGAT
from attree.penalties.regularizer import (
    AttentionPenalties,
    PenaltiesArgument,
    WatchedPass,
    log_penalties,
    only_own,
    plain_settings,
)
from attree.subject import Head

NETS: dict[str, type[nn.Module]] = {net.__name__: net for net in (GAT, GATv2, SuperGAT, GCN, SAGE, GIN, HGT, HeteroGAT)}
"""The networks that a checkpoint can name."""


def net_arguments(net: nn.Module) -> dict[str, Any] | None:
    """Return the name and arguments of a network as plain values; None if it is not one of `NETS`."""
    if NETS.get(type(net).__name__) is not type(net):
        return None
    names = [name for name in signature(type(net).__init__).parameters if name != "self"]
    return {"name": type(net).__name__} | {name: getattr(net, name) for name in names}


def net_from_arguments(arguments: Mapping[str, Any]) -> nn.Module:
    """Make a network from the values of `net_arguments`. Only classes of `NETS` are made.

    >>> net_from_arguments(net_arguments(GATv2(3, 2, heads=4))).heads
    4
    """
    name = arguments.get("name")
    expect(name in NETS, "net", f"one of {', '.join(NETS)}", name)
    return NETS[str(name)](**{key: value for key, value in arguments.items() if key != "name"})


class TrainedModule(LightningModule):
    """A LightningModule that is saved with its network and trained by Adam, with optional penalties on attention.

    The `__init__` of a subclass calls `save_hyperparameters`, then `prepare_training`.

    Attributes:
        net_argument: Name of the argument that takes the network.
        output_head: What the outputs mean, which those of an untrained network do not show.
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
        penalties: Penalties on attention; none by default.
        train_loss: Mean of the training loss over an epoch; `val_loss` and `test_loss` likewise.
    """

    net_argument: ClassVar[str] = "net"
    output_head: ClassVar[Head] = Head()
    lr: float
    weight_decay: float
    penalties: AttentionPenalties

    def prepare_training(
        self, net: nn.Module, lr: float, weight_decay: float, penalties: PenaltiesArgument | None
    ) -> None:
        """Set Adam's arguments, the penalties and the metrics of the losses.

        The network and the penalties are recorded in the hyperparameters if they are attree's own.
        """
        expect_number(lr, "lr", above=0)
        expect_number(weight_decay, "weight_decay", at_least=0)
        self.lr = lr
        self.weight_decay = weight_decay
        if (arguments := net_arguments(net)) is not None:
            self.hparams[self.net_argument] = arguments
        self.penalties = AttentionPenalties(penalties)
        if settings := plain_settings(self.penalties.by_name):
            self.hparams["penalties"] = settings
        # Lightning's own mean of logged losses divides by the mean number of examples per process, rounded down. NaN
        # losses must stay visible, so they make the mean NaN.
        self.train_loss, self.val_loss, self.test_loss = (MeanMetric(nan_strategy=math.nan) for _ in range(3))

    def check_width(self, data: DatasetModule) -> None:
        """Raise an `ArgumentError` if the network takes features of another width than the data's."""
        width = getattr(self.net, "in_channels", None)
        if isinstance(width, dict) or (isinstance(width, int) and width > 0):  # -1 means any width
            expected = f"of `in_channels` {data.num_features}, the features that {data.name} has"
            expect(width == data.num_features, self.net_argument, expected, width)

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path | IO[bytes],
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = True,
        **kwargs: Any,
    ) -> Self:
        """Load a trained model. Its network is made from the checkpoint if it is one of attree's; otherwise pass it.

        Args:
            checkpoint_path: The checkpoint file.
            map_location: Device of its tensors, as in `torch.load`.
            hparams_file: File of hyperparameters, for a checkpoint without any.
            strict: Whether the names of all weights must match the model's.
            weights_only: Read only tensors and plain values.
            kwargs: Arguments of the model that replace the checkpoint's.
        """
        saved = _saved_arguments(checkpoint_path)
        if cls.net_argument not in kwargs:
            kwargs[cls.net_argument] = _saved_net(saved, cls.net_argument)
        # Penalties of others could name any class.
        kwargs = {"penalties": only_own(saved.get("penalties")) or None, **kwargs}
        # The command line records a function here that would make the model from a config.
        kwargs["_instantiator"] = None
        loaded: Self = super().load_from_checkpoint(
            checkpoint_path, map_location, hparams_file, strict, weights_only=weights_only, **kwargs
        )
        return loaded

    @contextmanager
    def watch_attention(self) -> Iterator[WatchedPass | None]:
        """Record the attention of a training step for the penalties inside the block; yield None without penalties."""
        if not self.penalties:
            yield None
            return
        with self.penalties.watch(self, self.trainer.fit_loop.total_batch_idx) as watched:
            yield watched

    def finish_training_step(
        self, loss: Tensor, num_examples: int, watched: WatchedPass | None, output: Tensor, batch: Any
    ) -> Tensor:
        """Return the whole loss of a step, and log `train/loss` and the penalties as `train/attention_<name>`.

        Args:
            loss: The loss of the predictions, to which the network's own attention loss and the penalties are added.
            num_examples: Number of examples in the loss.
            watched: The pass that `watch_attention` yielded; None without penalties.
            output: The output of the network.
            batch: The batch of the step.
        """
        attention_loss = getattr(self.net, "attention_loss", lambda: None)()
        if attention_loss is not None:
            loss = loss + attention_loss
        self.train_loss.update(loss.detach().clone(), num_examples)
        self.log("train/loss", self.train_loss, on_step=False, on_epoch=True, batch_size=num_examples)
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


def _saved_arguments(checkpoint_path: Any) -> Mapping[str, Any]:
    """Return the arguments of the model that a checkpoint records; empty if it records none."""
    checkpoint = torch.load(checkpoint_path, map_location="cpu", weights_only=True)
    if hasattr(checkpoint_path, "seek"):
        checkpoint_path.seek(0)
    arguments = checkpoint.get("hyper_parameters", {})
    return arguments if isinstance(arguments, Mapping) else {}


def _saved_net(saved: Mapping[str, Any], name: str) -> nn.Module:
    """Return the untrained network that a checkpoint records."""
    arguments = saved.get(name)
    if arguments is None:
        raise ArgumentError(
            f"Expected argument `{name}` to be the network, made as for training, because checkpoints record only "
            "attree's own networks, but got None."
        )
    return net_from_arguments(arguments)
