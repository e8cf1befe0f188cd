"""Walk the computation trees of a graph transformer, whose layers run along edges or over all nodes.

The matrix of a layer is A_local, A_global, or their sum where both read the same states side by side. r is a dense row
here, because every node reaches every other one:

    r_c = share_c * start + sum over later layers d that c feeds of factor_cd * r_d A_d

`r A_global` of a linear attention costs O(n d) for each target; its matrix is never built. Targets in different graphs
share one row, because nothing passes from graph to graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attention.wiring import Wiring
from attree.attribution.flows import Frontier
from attree.errors import expect_memory
from attree.subject.local_and_global_layers import GlobalTrace
from attree.subject.target_roots import Roots
from attree.tensors.arrays import expand, group
from attree.tensors.memory import chunk_bounds


@dataclass(frozen=True)
class GlobalWalk:
    """r of some targets, at every node of their graphs.

    Attributes:
        targets: Ids of the targets, [T].
        owner: The position in `targets` of each entry's target, ascending.
        node: The node of each entry: all nodes of the target's graph.
        values: r at the output of each layer, [layers, entries].
        inputs: r at the input of the model, [entries]: which nodes the prediction reads.
    """

    targets: Tensor
    owner: Tensor
    node: Tensor
    values: Tensor
    inputs: Tensor

    def frontier(self, trace: GlobalTrace, num_layers: int, counted: GlobalWalk | None = None) -> Frontier:
        """Return r of the layers along edges only, first layer first, with the number of flows if it was counted."""
        place = {step: layer for layer, step in enumerate(trace.steps) if isinstance(step, int)}

        def local(values: Tensor) -> Tensor:
            none = torch.zeros_like(self.inputs)
            rows = [values[place[layer]] if layer in place else none for layer in range(num_layers)]
            return torch.stack(rows)

        count = None if counted is None else local(counted.values)
        return Frontier(self.targets, self.owner, self.node, local(self.values), count)


def stream_global_walks(
    graph: Graph,
    roots: Roots,
    weights: Sequence[Tensor],
    trace: GlobalTrace,
    wiring: Wiring,
    memory: int,
) -> Iterator[GlobalWalk]:
    """Yield the walks of consecutive targets that fit into `memory` bytes.

    Args:
        graph: The graph.
        roots: Where the walks start.
        weights: Per layer along edges and per edge [num_edges]: the factor of a flow on that edge.
        trace: The layers.
        wiring: Which layer feeds which: that of the trace, or a variant of it.
        memory: Bytes of working memory; a single target is never split.
    """
    expect_memory(memory)
    graph_of = _graph_of(roots, trace)
    members = group(graph_of, int(graph_of.max()) + 1 if graph_of.numel() else 0)
    where = torch.zeros_like(roots.targets).index_copy_(0, roots.owner, graph_of[roots.node])
    bytes_per_value = roots.weight.element_size() * (2 * len(trace.steps) + 4)
    cost = members.sizes[where] * float(bytes_per_value) + 2 * graph.num_edges * roots.weight.element_size()
    for begin, end in chunk_bounds(cost, memory):
        part = roots.slice(begin, end)
        row = _rank(where[begin:end])
        start = roots.weight.new_zeros(int(row.max()) + 1 if row.numel() else 0, graph.num_nodes)
        start.index_put_((row[part.owner], part.node), part.weight, accumulate=True)
        values, inputs = _pull(graph, start, weights, trace, wiring)
        owner, place = expand(members.ptr, where[begin:end])
        node = members.items[place]
        at = row[owner] * graph.num_nodes + node
        yield GlobalWalk(part.targets, owner, node, values.flatten(1)[:, at], inputs.flatten()[at])


def _graph_of(roots: Roots, trace: GlobalTrace) -> Tensor:
    """Return the graph of each node; one graph for all if the roots of a target are in several."""
    where = trace.graph_of[roots.node]
    of_target = torch.zeros_like(roots.targets).index_copy_(0, roots.owner, where)
    return trace.graph_of if torch.equal(of_target[roots.owner], where) else torch.zeros_like(trace.graph_of)


def _rank(groups: Tensor) -> Tensor:
    """Return the number of earlier entries with the same value.

    >>> _rank(torch.tensor([4, 2, 4, 4])).tolist()
    [0, 0, 1, 2]
    """
    order = groups.argsort(stable=True)
    ordered = groups[order]
    first = torch.searchsorted(ordered, ordered)
    rank = torch.empty_like(groups)
    rank[order] = torch.arange(groups.numel(), device=groups.device) - first
    return rank


def _pull(
    graph: Graph, start: Tensor, weights: Sequence[Tensor], trace: GlobalTrace, wiring: Wiring
) -> tuple[Tensor, Tensor]:
    """Pull rows through the layers: r at the output of each layer, [layers, rows, nodes], and at the input."""
    values = start.new_zeros(len(trace.steps), *start.shape)
    moved: dict[int, Tensor] = {}
    for layer in reversed(range(len(trace.steps))):
        value = wiring.shares[layer] * start
        for later, factor in wiring.feeds[layer]:
            value = value + factor * moved[later]
        values[layer] = value
        step = trace.steps[layer]
        if isinstance(step, int):
            flows = value[:, graph.destination] * weights[step].to(value.dtype)
            moved[layer] = torch.zeros_like(value).index_add_(1, graph.source, flows)
        else:
            moved[layer] = step.pull(value)
    inputs = torch.zeros_like(start)
    for layer in trace.reading_input:
        inputs = inputs + moved[layer]
    return values, inputs
