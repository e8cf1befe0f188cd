"""Base class of penalties: a function from the attention of a training step to one differentiable number."""

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
from attree.subject.target_roots import Roots


@dataclass(frozen=True)
class PenalizedStep:
    """The data of one training step that penalties can read.

    Attributes:
        attention: The model's attention in the forward pass of the step, with gradients.
        model: The model.
        batch: The batch of the step, PyG's `Data` or `HeteroData`.
        truth: The true edges of targets, if the data has any.
        number: Number of earlier steps. Random draws depend on it, so that a resumed run draws the same.
    """

    attention: Attention
    model: nn.Module
    batch: Any = None
    truth: GroundTruth | None = None
    number: int = 0

    @property
    def trained_type(self) -> str | None:
        """In a heterogeneous graph, the type of the labelled training nodes; None for a homogeneous graph."""
        if self.attention.graph.types is None:
            return None
        stores = dict(zip(self.batch.node_types, self.batch.node_stores, strict=True))
        trained_types = [kind for kind, store in stores.items() if "batch_size" in store or "train_mask" in store]
        model_type = getattr(self.model, "node_type", None)
        trained_types = [model_type] if model_type in trained_types else trained_types
        expect(len(trained_types) == 1, "data", "a graph in which one type of nodes has a `train_mask`", trained_types)
        return str(trained_types[0])

    @property
    def trained_nodes(self) -> Tensor:
        """The training nodes of the step: the loader's seeds, the nodes at `train_mask`, or else all nodes.

        In a heterogeneous graph, they are ids within `trained_type`.
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
        """Return the roots of the computation trees of some nodes, given by ids like those of `trained_nodes`."""
        types, kind = self.attention.graph.types, self.trained_type
        return Roots.at_nodes(nodes, nodes=None if types is None or kind is None else types.union(kind, nodes))

    @property
    def node_ids(self) -> Tensor | None:
        """For a sampled subgraph, the id of each node in the whole graph; None if the step uses the whole graph."""
        ids = getattr(self.batch, "n_id", None)
        return ids if isinstance(ids, Tensor) and ids.shape == (self.attention.graph.num_nodes,) else None

    def generator(self, seed: int) -> torch.Generator:
        """Return a random generator that depends only on a seed and the step's number; the same in every process."""
        return torch.Generator().manual_seed((seed * 1_000_003 + self.number) % 2**63)


class AttentionPenalty(ABC):
    """Base class of penalties. The training loss adds the penalty times `strength`.

    A subclass sets `name` and implements `measure`, or `measure_step` if it needs more than the attention:

    >>> class LargestWeight(AttentionPenalty):
    ...     name = "largest_weight"
    ...
    ...     def measure(self, attention: Attention) -> Tensor:
    ...         return torch.stack([weight.max() for weight in attention.weights]).mean()

    Attributes:
        name: Name in configs; the unweighted penalty is logged as `train/attention_<name>`.

    Args:
        strength: The factor of the penalty in the loss; 0 turns it off.
    """

    name: ClassVar[str]

    def __init__(self, strength: float = 1.0) -> None:
        self.strength = expect_number(strength, "strength", at_least=0)

    def __init_subclass__(cls) -> None:
        """Check that the name can be logged."""
        super().__init_subclass__()
        if "name" in vars(cls):
            expect_name(cls.name, "name")

    def measure(self, attention: Attention) -> Tensor:
        """Return the penalty on some attention: one number, differentiable with respect to the weights."""
        raise NotImplementedError(f"{type(self).__name__} has neither `measure` nor `measure_step`.")

    def measure_step(self, step: PenalizedStep) -> Tensor:
        """Return the penalty of a training step; by default `measure` of its attention."""
        return self.measure(step.attention)

    def alter(
        self,
        conv: MessagePassing,
        scores: Tensor,
        softmax: Callable[[Tensor], Tensor],
        edges: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """Return attention weights that replace the softmax's in training. Called only if overridden.

        Args:
            conv: The convolution.
            scores: Its scores before softmax, [edges] or [edges, heads].
            softmax: The softmax over the edges that enter a node.
            edges: The scored edges [2, edges]. An edge is a self-loop if source and destination are equal. Between two
                types of nodes they never are: sources are numbered after the last destination.
            generator: Random generator of this step.
        """
        return softmax(scores)

    @property
    def alters(self) -> bool:
        """Whether the penalty changes the attention that the network trains with."""
        return type(self).alter is not AttentionPenalty.alter

    def settings(self) -> dict[str, Any] | None:
        """Return the arguments of the penalty as plain values; None if one is not a plain value."""
        names = [name for name in signature(type(self).__init__).parameters if name != "self"]
        values = {name: getattr(self, name, _Missing) for name in names}
        plain = all(value is None or isinstance(value, bool | int | float | str) for value in values.values())
        return values if plain else None


class _Missing:
    """Placeholder for an argument that a penalty does not store under its name."""


def check_number(value: Any, name: str) -> Tensor:
    """Return the value of a penalty as a scalar tensor; raise unless it is one number with a gradient."""
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        actual = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise UnsupportedModelError(
            f"Expected the penalty `{name}` to return one number as a tensor, but got {actual}."
        )
    if not value.requires_grad:
        raise UnsupportedModelError(
            f"Expected the penalty `{name}` to depend on trained weights, but it has no gradient: its attention is "
            "frozen, or was computed without gradients (as in reentrant checkpointing)."
        )
    return value.reshape(())
