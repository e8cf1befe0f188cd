"""Find what predicts inside a LightningModule: the module itself, a network in it, or a call that the user gives."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from lightning.pytorch import LightningModule
from torch import nn
from torch_geometric.data import Data

from attree.attention.softmax_hook import attention_convs
from attree.errors import ArgumentError, AttreeError, UnsupportedModelError
from attree.subject import Head, Subject
from attree.subject.binding import Call
from attree.subject.readout import READOUTS, Readout

NAMES = ("net", "model", "gnn", "network", "backbone", "encoder")
"""Attributes of a module that are tried after the module itself."""


def find_subject(
    module: nn.Module,
    data: Data,
    *,
    network: str | None = None,
    call: Call | None = None,
    head: Head | None = None,
    readout: Readout | None = None,
    num_classes: int | None = None,
) -> Subject:
    """The subject of the first network in a module whose outputs fit the data.

    What is explained is what predicts: the outputs have one row per node or graph, and as many columns as the labels
    need. A network that was named, or a call that was given, is taken at the user's word.

    Args:
        module: The LightningModule.
        data: The graph or batch that it is explained on.
        network: Where the network is, such as `model.backbone`; None looks for it.
        call: How the module is called instead.
        head: What the outputs mean; None leaves it to them.
        readout: Graph-level: how nodes become a graph; None takes the module's own `readout` if it has one, or reads
            it from the model.
        num_classes: Number of classes; None where it is not known.

    Raises:
        ArgumentError: Nothing fits; the message says what was tried.
    """
    own = getattr(module, "readout", None)
    chosen = next((known for known in READOUTS if known == own), None) if readout is None else readout
    if call is not None:
        return Subject.of_data(module, data, call=call, readout=chosen, head=head)
    if network is not None:
        return Subject.of_data(_named(module, network), data, readout=chosen, head=head)
    tried = []
    for name, candidate in _candidates(module):
        try:
            attention_convs(candidate)
            subject = Subject.of_data(candidate, data, readout=chosen, head=head)
            reason = _misfit(subject, num_classes)
        except (AttreeError, RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
        if reason is None:
            return subject
        tried.append(f"{name}: {reason}")
    raise ArgumentError(
        f"Expected {type(module).__name__} to have a network whose outputs fit the data's labels (or arguments "
        f"`network` or `call` of ExplainCallback to say what predicts), but tried {'; '.join(tried) or 'nothing'}."
    )


def _candidates(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(module).forward not in (LightningModule.forward, nn.Module.forward):
        yield "the module itself", module
    for name in NAMES:
        if isinstance(candidate := getattr(module, name, None), nn.Module):
            yield f"`{name}`", candidate


def _named(module: nn.Module, path: str) -> nn.Module:
    try:
        found = attrgetter(path)(module)
    except AttributeError as error:
        raise ArgumentError(
            f"Expected argument `network` to name a part of {type(module).__name__}, but {error}."
        ) from (error)
    if not isinstance(found, nn.Module):
        raise ArgumentError(f"Expected argument `network` to name a module, but {path!r} is {type(found).__name__}.")
    return found


def _misfit(subject: Subject, num_classes: int | None) -> str | None:
    """Why a network's outputs are no predictions of the data's labels; None if they may be."""
    output, head = subject.output, subject.head
    rows, columns = output.shape[0], 1 if output.dim() == 1 else output.shape[1]
    if subject.level == "node" and rows != subject.graph.num_nodes:
        raise UnsupportedModelError(f"{rows} rows of outputs for {subject.graph.num_nodes} nodes")
    if head.mode == "multiclass_classification" and num_classes is not None and columns != num_classes:
        return f"{columns} columns of outputs for {num_classes} classes"
    return None
