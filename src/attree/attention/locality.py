"""Whether a model sees only the neighbourhoods that its attention layers reach.

A computation tree of L layers ends L hops from its target. A model that normalises or attends over the whole graph
(PyG's LayerNorm by default, GraphNorm, PairNorm, GPSConv) also depends on nodes beyond: no attention weight leads
there, so no edge there gets a score, though it matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.eager import eval_mode, score_tensor
from attree.attention.inplace_messages import inplace_messages
from attree.attention.looped_graph import LoopedGraph
from attree.errors import expect

CANDIDATES = 16
"""How many nodes are tried for a neighbourhood that leaves much of the graph out."""


@dataclass(frozen=True)
class Locality:
    """How much outputs change when all features are changed that no layer should bring there.

    Attributes:
        change: The largest change of an output, as a share of the largest output; 0 if nothing lies out of reach.
        tolerance: Up to this, the change is that of rounding.
    """

    change: float
    tolerance: float

    @property
    def local(self) -> bool:
        """Whether the model sees only what its attention layers reach."""
        return self.change <= self.tolerance

    def __str__(self) -> str:
        if self.local:
            return "The model sees only what its attention layers reach."
        return (
            f"Outputs change by {self.change:.2g} of their size with features that no attention layer reaches: the "
            "model has paths beside attention, such as norms or pooling over all nodes, and edges there get no score."
        )


@torch.no_grad()
def measure_locality(
    model: nn.Module,
    x: Tensor,
    edge_index: Tensor,
    *args: Any,
    num_layers: int,
    graph: LoopedGraph | None = None,
    graph_of: Tensor | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> Locality:
    """Run the model again with other features where no layer reaches, and compare what it returns.

    Nodes are compared if other features lie more than `num_layers` hops away; graphs, if they lie in other graphs.

    Args:
        model: The model, which returns one row per node or per graph.
        x: Node features or ids of nodes; learned features that the model takes from elsewhere are not changed.
        edge_index: The graph's edges.
        *args: Further positional arguments of the model.
        num_layers: Number of attention layers, as `Attention.num_layers` has it.
        graph: The looped graph of `edge_index`, if at hand.
        graph_of: The graph of each node, if the model returns one row per graph.
        seed: Seed of the nodes that are compared and of the features that are put elsewhere.
        **kwargs: Further keyword arguments of the model.
    """
    expect(x.layout == torch.strided, "x", "a dense tensor", x.layout)
    generator = torch.Generator().manual_seed(seed)
    if graph_of is None:
        graph = LoopedGraph(edge_index, x.shape[0]) if graph is None else graph
        compared, near = _neighbourhoods(graph, num_layers, generator)
    else:
        compared = graph_of.unique()[: graph_of.unique().numel() // 2]
        near = torch.isin(graph_of, compared)
    far = (~near).nonzero().view(-1)
    with eval_mode(model), inplace_messages(model):
        before = score_tensor(model(x, edge_index, *args, **kwargs))
        tolerance = torch.finfo(before.dtype).eps ** 0.5
        if far.numel() == 0 or compared.numel() == 0:
            return Locality(0.0, tolerance)
        after = score_tensor(model(_elsewhere(x, far, generator), edge_index, *args, **kwargs))
    expect(
        before.shape[0] > int(compared.max()),
        "graph_of",
        "the graph of each node where the model returns one row per graph",
        graph_of,
    )
    size = float(before[compared].abs().max())
    change = float((after[compared] - before[compared]).abs().max())
    return Locality(change / size if size > 0 else change, tolerance)


def _neighbourhoods(graph: LoopedGraph, hops: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Some nodes, and which nodes lie within `hops` of them: at most half of all where that is possible."""
    some = torch.randperm(graph.num_nodes, generator=generator)[:CANDIDATES].to(graph.device)
    reached = torch.zeros(some.numel(), graph.num_nodes, dtype=torch.bool, device=graph.device)
    reached[torch.arange(some.numel(), device=graph.device), some] = True
    for row in reached:
        for _ in range(hops):
            row[graph.source[row[graph.destination]]] = True
    order = reached.sum(dim=1).argsort()
    together = reached[order].cumsum(dim=0).bool()
    fits = max(int((2 * together.sum(dim=1) <= graph.num_nodes).sum()), min(1, some.numel()))
    near = together[fits - 1] if fits else torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    return some[order[:fits]], near


def _elsewhere(x: Tensor, far: Tensor, generator: torch.Generator) -> Tensor:
    """The features with those of far nodes changed: those of any nodes, and noise where they are real numbers."""
    drawn = torch.randint(x.shape[0], (far.numel(),), generator=generator).to(x.device)
    other = x[drawn]
    if x.is_floating_point():
        noise = torch.randn(other.shape, generator=generator).to(x)
        other = other + noise * (1 + x.abs().max())
    return x.index_copy(0, far, other)
