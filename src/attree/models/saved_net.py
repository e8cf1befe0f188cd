"""Describe networks in checkpoints by plain values, and make them again without running a stranger's code."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import IO, Any, ClassVar, Self

import torch
from lightning.pytorch import LightningModule
from torch import nn

from attree.errors import ArgumentError, expect
from attree.models.attention_net import GAT, GATv2, SuperGAT
from attree.models.hetero_net import HGT, HeteroGAT

NETS: dict[str, type[nn.Module]] = {net.__name__: net for net in (GAT, GATv2, SuperGAT, HGT, HeteroGAT)}
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


class SavesNet(LightningModule):
    """A LightningModule that is loaded from a checkpoint together with its network.

    Attributes:
        net_argument: Name of the argument that takes the network.
    """

    net_argument: ClassVar[str] = "net"

    def record_net(self, net: nn.Module) -> None:
        """Record the network in the hyperparameters, if it is one of attree's."""
        if (arguments := net_arguments(net)) is not None:
            self.hparams[self.net_argument] = arguments

    @classmethod
    def safe_arguments(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return safe replacements for arguments of a checkpoint that could run a stranger's code; none by default.

        Args:
            saved: The arguments in the checkpoint.
        """
        return {}

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
        kwargs = {**cls.safe_arguments(saved), **kwargs}
        # The command line records a function here that would make the model from a config.
        kwargs["_instantiator"] = None
        loaded: Self = super().load_from_checkpoint(
            checkpoint_path, map_location, hparams_file, strict, weights_only=weights_only, **kwargs
        )
        return loaded


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
            f"Expected argument `{name}` to be the network, made as for training, as the checkpoint does not say how: "
            "it does of attree's own networks only, but got None."
        )
    return net_from_arguments(arguments)
