"""Measure whether outputs depend only on nodes within reach of the attention layers: noise elsewhere must not matter.

`measure_locality` puts noise on nodes of the whole graph that are out of reach of some targets.
`attree.subject.model_call` runs the model on a part of the graph instead, between decoys with noise. Both use the noise
and the comparisons of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.graph import Graph
from attree.attention.stand_ins import eval_mode, inplace_messages, score_tensor
from attree.errors import expect

RunOnFeatures = Callable[[Any], Any]
"""Calls the model with other node features: a tensor, or a dict by node type."""

LOUDNESS = 8.0
"""Scale of the noise relative to the largest feature, so that a maximum over rows changes, too."""

CANDIDATES = 16
"""Number of random nodes from which those with small neighbourhoods are chosen."""


@dataclass(frozen=True)
class Locality:
    """Change of the outputs when features out of reach of the attention layers change.

    Attributes:
        change: The largest change of an output, relative to the largest output; 0 if no node is out of reach.
        tolerance: Smaller changes are rounding errors.
        compared: Number of compared outputs; 0 if no node is out of reach.
    """

    change: float
    tolerance: float
    compared: int = 0

    @property
    def local(self) -> bool:
        """Whether the model reads only nodes within reach of its attention layers."""
        return self.change <= self.tolerance

    def __str__(self) -> str:
        if self.local:
            return "The outputs depend only on nodes that the attention layers reach."
        return (
            f"Outputs change by {self.change:.2g} of their size with features that no attention layer reaches: the "
            "model has paths that bypass attention, such as norms or pooling over all nodes; their edges get no score."
        )


@torch.no_grad()
def measure_locality(
    model: nn.Module,
    run: RunOnFeatures,
    x: Tensor,
    *,
    num_layers: int,
    graph: Graph,
    graph_of: Tensor | None = None,
    usual: Tensor | None = None,
    seed: int = 0,
) -> Locality:
    """Replace the features out of reach of the attention layers by noise, and compare the outputs.

    For node-level models, nodes more than `num_layers` hops away are out of reach. For graph-level models, nodes of
    other graphs are.

    Args:
        model: The model.
        run: Calls the model with other features.
        x: The node features or node ids. Embeddings inside the model are not changed.
        num_layers: Number of attention layers, see `Attention.num_layers`.
        graph: The graph of the call.
        graph_of: The graph of each node, if the model returns one row per graph.
        usual: The output for `x`, if it was computed already.
        seed: Seed of the compared nodes and of the noise.
    """
    expect(x.layout == torch.strided, "x", "a dense tensor", x.layout)
    if graph_of is None:
        compared, near = _neighbourhoods(graph, num_layers, torch.Generator().manual_seed(seed))
    else:
        compared = graph_of.unique()[: graph_of.unique().numel() // 2]
        near = torch.isin(graph_of, compared)
    far = (~near).nonzero().view(-1)
    with eval_mode(model), inplace_messages(model):
        before = score_tensor(run(x)) if usual is None else usual
        tolerance = torch.finfo(before.dtype).eps ** 0.5
        if far.numel() == 0 or compared.numel() == 0:
            return Locality(0.0, tolerance)
        after = score_tensor(run(with_noise(x, far, seed)))
    expect(
        before.shape[0] > int(compared.max()),
        "graph_of",
        "the graph of each node if the model returns one row per graph",
        graph_of,
    )
    size = float(before[compared].abs().max())
    change = float((after[compared] - before[compared]).abs().max())
    return Locality(change / size if size > 0 else change, tolerance, compared.numel())


def loud_noise(like: Tensor, rows: Tensor, seed: int) -> Tensor:
    """Return noise that is larger than the given rows.

    Args:
        like: A tensor with the shape of the result.
        rows: The rows that set the scale of the noise.
        seed: Seed of the noise.
    """
    noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like)
    largest = rows.nan_to_num(0.0, 0.0, 0.0).abs().max() if rows.numel() else rows.new_ones(())
    return noise * LOUDNESS * largest.clamp(min=1.0)


def difference(got: Tensor, expected: Tensor, dtype: torch.dtype) -> float | None:
    """Return the largest difference between outputs; None if it is a rounding error of this type.

    Expected outputs that are not finite, as in a model that has diverged, are ignored.
    """
    if expected.numel() == 0:
        return None
    finite = expected.isfinite()
    largest = float((got - expected).abs().where(finite, 0).max())
    scale = max(float(expected.abs().where(finite, 0).max()), 1.0)
    return None if largest <= torch.finfo(dtype).eps ** 0.5 * scale else largest


def same(got: Tensor, expected: Tensor, dtype: torch.dtype | None = None, floor: float = 1.0) -> bool:
    """Whether numbers are equal up to rounding errors of a type: the one comparison of computed numbers in attree.

    Rounding errors are at most sqrt(eps) of the largest number, or of `floor` if that is larger.

    Args:
        got: Numbers.
        expected: The numbers that they should be. NaN equals NaN.
        dtype: The type in which they were computed; None takes that of `expected`.
        floor: Numbers below it are not compared relative to their own size; 1 fits logits, 0 compares any size.
    """
    if got.shape != expected.shape:
        return False
    if not expected.is_floating_point():
        return torch.equal(got, expected)
    scale = max(float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max()) if expected.numel() else 0.0, floor)
    tolerance = torch.finfo(dtype or expected.dtype).eps ** 0.5 * scale
    return torch.allclose(got.to(expected.dtype), expected, rtol=0.0, atol=tolerance, equal_nan=True)


def with_noise(x: Tensor, nodes: Tensor, seed: int = 0) -> Tensor:
    """Replace the features of some nodes by loud noise; integer features by the features of random nodes.

    Args:
        x: The features, one row per node.
        nodes: Ids of the nodes.
        seed: Seed of the noise.
    """
    if x.is_floating_point():
        return x.index_copy(0, nodes, loud_noise(x[nodes], x, seed))
    generator = torch.Generator().manual_seed(seed)
    return x.index_copy(
        0, nodes, x[torch.randint(max(x.shape[0], 1), (nodes.numel(),), generator=generator).to(x.device)]
    )


def _neighbourhoods(graph: Graph, hops: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return some nodes, and a mask of all nodes within `hops` of them: at most half of the graph if possible."""

    candidates = torch.randperm(graph.num_nodes, generator=generator)[:CANDIDATES].to(graph.device)
    reached = torch.zeros(candidates.numel(), graph.num_nodes, dtype=torch.bool, device=graph.device)
    reached[torch.arange(candidates.numel(), device=graph.device), candidates] = True
    for row in reached:
        for _ in range(hops):
            row[graph.source[row[graph.destination]]] = True
    order = reached.sum(dim=1).argsort()
    together = reached[order].cumsum(dim=0).bool()
    fits = max(int((2 * together.sum(dim=1) <= graph.num_nodes).sum()), min(1, candidates.numel()))
    near = together[fits - 1] if fits else torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    return candidates[order[:fits]], near
