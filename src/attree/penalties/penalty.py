"""The one interface of every penalty: the attention of a training step in, one differentiable number out."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention import Attention
from attree.data.ground_truth import GroundTruth
from attree.errors import UnsupportedModelError, expect, expect_name, expect_number
from attree.subject.roots import Roots


@dataclass(frozen=True)
class PenalizedStep:
    """One training step, as far as penalties may need it.

    Attributes:
        attention: What the model attended to in the forward pass of the step, with gradients.
        model: The model.
        batch: What the step trains on; PyG's `Data`, for penalties that read more than attention.
        truth: The true edges of targets, where the data has some.
        number: How many steps were taken before; draws depend on it, so that a resumed run draws the same.
    """

    attention: Attention
    model: nn.Module
    batch: Any = None
    truth: GroundTruth | None = None
    number: int = 0

    @property
    def trained_type(self) -> str | None:
        """Of a heterogeneous graph, the type of the nodes whose labels the step learns from; None for one type."""
        if self.attention.graph.types is None:
            return None
        stores = dict(zip(self.batch.node_types, self.batch.node_stores, strict=True))
        found = [kind for kind, store in stores.items() if "batch_size" in store or "train_mask" in store]
        said = getattr(self.model, "node_type", None)
        found = [said] if said in found else found
        expect(len(found) == 1, "data", "a graph in which one type of nodes has a `train_mask`", found)
        return str(found[0])

    @property
    def trained_nodes(self) -> Tensor:
        """The nodes whose labels the step learns from: a loader's seeds, those at `train_mask`, or else all nodes.

        In a heterogeneous graph they are numbered within `trained_type`.
        """
        device, kind = self.attention.graph.device, self.trained_type
        nodes = self.batch if kind is None else self.batch[kind]
        count = self.attention.graph.num_nodes if kind is None else nodes.num_nodes
        seeds, mask = getattr(nodes, "batch_size", None), getattr(nodes, "train_mask", None)
        if isinstance(seeds, int) and (kind is not None or self.node_ids is not None):
            return torch.arange(seeds, device=device)
        if isinstance(mask, Tensor) and mask.shape == (count,):
            return mask.nonzero().view(-1)
        return torch.arange(count, device=device)

    def roots(self, nodes: Tensor) -> Roots:
        """Where the computation trees of some nodes begin, these being numbered as `trained_nodes` is."""
        types, kind = self.attention.graph.types, self.trained_type
        return Roots.at_nodes(nodes, nodes=None if types is None or kind is None else types.union(kind, nodes))

    @property
    def node_ids(self) -> Tensor | None:
        """For a sampled part of a graph, the id of each node in the whole graph; None where the step sees it all."""
        ids = getattr(self.batch, "n_id", None)
        return ids if isinstance(ids, Tensor) and ids.shape == (self.attention.graph.num_nodes,) else None

    def generator(self, seed: int) -> torch.Generator:
        """Random numbers that depend on a seed and on the number of the step alone, the same in every process."""
        return torch.Generator().manual_seed((seed * 1_000_003 + self.number) % 2**63)


class AttentionPenalty(ABC):
    """A number that a loss adds, times `strength`, to train a network for what its attention should be like.

    A subclass sets `name` and implements `measure`, or `measure_step` if it needs more than the attention:

    >>> class LargestWeight(AttentionPenalty):
    ...     name = "largest_weight"
    ...
    ...     def measure(self, attention: Attention) -> Tensor:
    ...         return torch.stack([weight.max() for weight in attention.weights]).mean()

    Attributes:
        name: What users type; the unweighted number is logged as `train/attention_<name>`.

    Args:
        strength: The factor of the penalty in the loss; 0 turns it off.
    """

    name: ClassVar[str]

    def __init__(self, strength: float = 1.0) -> None:
        self.strength = expect_number(strength, "strength", at_least=0)

    def __init_subclass__(cls) -> None:
        """Refuse names that cannot be logged."""
        super().__init_subclass__()
        if "name" in vars(cls):
            expect_name(cls.name, "name")

    def measure(self, attention: Attention) -> Tensor:
        """The penalty of some attention: one number, differentiable with respect to its weights."""
        raise NotImplementedError(f"{type(self).__name__} has neither `measure` nor `measure_step`.")

    def measure_step(self, step: PenalizedStep) -> Tensor:
        """The penalty of a training step; by default that of its attention."""
        return self.measure(step.attention)

    def alter(
        self,
        conv: MessagePassing,
        scores: Tensor,
        softmax: Callable[[Tensor], Tensor],
        edges: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """The weights that a convolution uses in training in place of the softmax's; called only if overridden.

        Args:
            conv: The convolution.
            scores: Its scores before softmax, [edges] or [edges, heads].
            softmax: The softmax over the edges that enter a node.
            edges: The edges that are scored, [2, edges]. A source and a destination of the same number are a self-loop;
                between two types of nodes there is none, as sources are numbered on from the last destination.
            generator: Random numbers of this step.
        """
        return softmax(scores)

    @property
    def alters(self) -> bool:
        """Whether the penalty changes the attention that the network trains with."""
        return type(self).alter is not AttentionPenalty.alter

    def settings(self) -> dict[str, Any] | None:
        """What the penalty was made with, as plain values; None if some argument is no plain value."""
        names = [name for name in signature(type(self).__init__).parameters if name != "self"]
        values = {name: getattr(self, name, _Missing) for name in names}
        plain = all(value is None or isinstance(value, bool | int | float | str) for value in values.values())
        return values if plain else None


class _Missing:
    """Stands for an argument that a penalty did not keep under its name."""


def check_number(value: Any, name: str) -> Tensor:
    """What a penalty returned, if it is one number with a gradient."""
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise UnsupportedModelError(f"Expected the penalty `{name}` to return one number as a tensor, but got {got}.")
    if not value.requires_grad:
        raise UnsupportedModelError(
            f"Expected the penalty `{name}` to depend on what is trained, but it has no gradient: the attention that "
            "it reads is frozen, or was computed without gradients (as inside reentrant checkpointing)."
        )
    return value.reshape(())
