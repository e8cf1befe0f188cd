"""Scores of nodes: which nodes a prediction reads, not only along which edges.

GAtt of a node is r at the input: the sum, over all flows from the node through all layers to the target, of the product
of their weights,

    r_0 = r_1 A(1) = onehot(v) A(L) ... A(1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attribution.blocks import edge_blocks
from attree.attribution.gatt import FlowMethod, GAtt
from attree.attribution.global_walk import stream_global_walks
from attree.attribution.method import AttributionMethod, as_subject
from attree.errors import ArgumentError, expect
from attree.subject import Subject
from attree.subject.roots import Targets
from attree.tensors.limits import WALK_MEMORY
from attree.tensors.ragged import pointers


@dataclass(frozen=True)
class NodeAttribution:
    """Node scores of several targets. Nodes that are not listed have score 0.

    Attributes:
        method: Name of the method.
        graph: The graph.
        targets: Ids of the explained nodes, links or graphs, [T].
        ptr: The nodes and scores of target k are at `ptr[k]:ptr[k + 1]`, [T + 1].
        nodes: Node ids, ascending within a target, [M].
        scores: Scores, [M].
    """

    method: str
    graph: Graph
    targets: Tensor
    ptr: Tensor
    nodes: Tensor
    scores: Tensor

    def __len__(self) -> int:
        return self.targets.numel()

    def of(self, target: int) -> tuple[Tensor, Tensor]:
        """Return the nodes and scores of one target."""
        place = (self.targets == target).nonzero().view(-1)
        expect(place.numel() == 1, "target", "one of the explained targets", target)
        part = slice(*self.ptr[int(place) : int(place) + 2].tolist())
        return self.nodes[part], self.scores[part]

    def dense(self, target: int) -> Tensor:
        """Return one target's score of every node of the graph, [num_nodes]."""
        nodes, scores = self.of(target)
        return scores.new_zeros(self.graph.num_nodes).index_copy_(0, nodes, scores)

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with the columns target, node and score; `node_type` too if there are types."""
        owner = self.targets.repeat_interleave(self.ptr.diff())
        columns: dict[str, Any] = {"target": owner.cpu().numpy()}
        types, nodes = self.graph.types, self.nodes
        if types is not None:
            names = [types.node_types[number] for number in types.type_of_nodes(nodes).tolist()]
            columns |= {"node_type": names}
            nodes = types.local(nodes)
        return pd.DataFrame(columns | {"node": nodes.cpu().numpy(), "score": self.scores.cpu().numpy()})


def scores_nodes(method: AttributionMethod) -> bool:
    """Whether a method has node scores of its own: GAtt, and the same walk with other weights."""
    return isinstance(method, GAtt)


def attribute_nodes(
    subject: Subject, targets: Targets = "all", method: FlowMethod | None = None, memory: int = WALK_MEMORY
) -> NodeAttribution:
    """Return, for each target, r at the input: how much of the walk from the target ends in each node.

    Works for every network: layers along edges, over all nodes, and both. If all weights of each node add up to 1, the
    scores of a target add up to 1.

    Args:
        subject: The subject, or its attention alone.
        targets: Nodes, links or graphs.
        method: GAtt (the default), Uniform or Structure.
        memory: Bytes of working memory, in addition to the result.

    >>> from attree.attention import Attention, Graph
    >>> graph = Graph(torch.tensor([[1], [0]]), num_nodes=2)  # edges: 1 -> 0, then the loops of 0 and of 1
    >>> attention = Attention.from_weights(graph, [torch.tensor([0.9, 0.1, 1.0]), torch.tensor([0.25, 0.75, 1.0])])
    >>> scores = attribute_nodes(attention, 0).dense(0)  # of node 1: 0.25 * 1 + 0.75 * 0.9
    >>> [round(score, 3) for score in scores.tolist()] == [0.075, 0.925]
    True
    """
    subject = as_subject(subject)
    method = GAtt() if method is None else method
    if not scores_nodes(method):
        raise ArgumentError(
            f"Expected argument `method` to be a walk with weights (gatt, uniform, structure), but got {method.name}: "
            "effects of nodes are those of `attree.faithfulness.node_effects`."
        )
    parts = list(_parts(subject, targets, method, memory))
    sizes = torch.cat([part.ptr.diff() for part in parts]) if parts else subject.graph.source[:0]
    return NodeAttribution(
        method.name,
        subject.graph,
        torch.cat([part.targets for part in parts]) if parts else subject.graph.source[:0],
        pointers(sizes),
        torch.cat([part.nodes for part in parts]) if parts else subject.graph.source[:0],
        torch.cat([part.scores for part in parts]) if parts else torch.zeros(0),
    )


def _parts(subject: Subject, targets: Targets, method: FlowMethod, memory: int) -> Iterator[NodeAttribution]:
    """Yield the node scores of consecutive targets."""
    table, roots = method.start(subject, targets)
    wiring = method.wiring_of(table)
    weights = method.walk_weights(table.alphas, table.used)
    if table.everywhere is not None:
        trace = method.walk_everywhere(table.everywhere)
        for walk in stream_global_walks(table.graph, roots, weights, trace, wiring, memory):
            yield _sparse(method.name, table.graph, walk.targets, walk.owner, walk.node, walk.inputs)
        return
    fed = {later for feeds in wiring.feeds for later, _ in feeds}
    first_layers = [layer for layer in range(len(weights)) if layer not in fed]
    order = table.graph.entering.items
    weight_rows = [weight.index_select(0, order) for weight in weights]
    for frontier in method.walks(table, roots, memory):
        owners, nodes, values = [], [], []
        for block in edge_blocks(table, frontier):
            flows = torch.zeros(block.edges.numel(), dtype=block.frontier.weight.dtype, device=block.edges.device)
            for layer in first_layers:
                flows += block.frontier.weight[layer][block.owner] * weight_rows[layer][block.place].to(flows.dtype)
            owners.append(block.frontier.owner[block.owner])
            nodes.append(table.graph.source[block.edges])
            values.append(flows)
        none = frontier.node[:0]
        owner, node = (torch.cat([none, *lists]) for lists in (owners, nodes))
        total = torch.cat([frontier.weight[0, :0], *values])
        key, inverse = (owner * table.graph.num_nodes + node).unique(return_inverse=True)
        total = total.new_zeros(key.numel()).index_add_(0, inverse, total)
        owner, node = key // table.graph.num_nodes, key % table.graph.num_nodes
        yield _sparse(method.name, table.graph, frontier.targets, owner, node, total)


def _sparse(name: str, graph: Graph, targets: Tensor, owner: Tensor, node: Tensor, scores: Tensor) -> NodeAttribution:
    """Return node scores without those of 0."""
    is_listed = scores != 0
    ptr = pointers(owner[is_listed].bincount(minlength=targets.numel()))
    return NodeAttribution(name, graph, targets, ptr, node[is_listed], scores[is_listed])
