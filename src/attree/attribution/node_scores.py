"""Scores of nodes and their files, and the strongest pairs of nodes that attend to each other beyond the edges.

GAtt of a node is r at the input: the sum, over all flows from the node through all layers to the target, of the product
of their weights,

    r_0 = r_1 A(1) = onehot(v) A(L) ... A(1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attree.attention.global_attention_calls import GlobalCall
from attree.attention.graph import Graph
from attree.attribution.gatt import FlowMethod, GAtt, edge_blocks
from attree.attribution.global_walk import stream_global_walks
from attree.attribution.method import METHODS, AttributionMethod, as_subject
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.io.files import read_npz, write_npz
from attree.subject import Subject
from attree.subject.local_and_global_layers import GlobalTrace
from attree.subject.target_roots import Targets
from attree.tensors.arrays import are_pointers, pointers
from attree.tensors.memory import WALK_MEMORY

if TYPE_CHECKING:
    import pandas as pd


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
        owner = self.graph.whole_nodes(self.targets).repeat_interleave(self.ptr.diff())
        columns: dict[str, Any] = {"target": owner.cpu().numpy()}
        types, nodes = self.graph.types, self.nodes
        if types is not None:
            names = [types.node_types[number] for number in types.type_of_nodes(nodes).tolist()]
            columns |= {"node_type": names}
            nodes = types.local(nodes)
        nodes = self.graph.whole_nodes(nodes)
        import pandas as pd

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
    parts = list(_scores_of_target_chunks(subject, targets, method, memory))
    sizes = torch.cat([part.ptr.diff() for part in parts]) if parts else subject.graph.source[:0]
    return NodeAttribution(
        method.name,
        subject.graph,
        torch.cat([part.targets for part in parts]) if parts else subject.graph.source[:0],
        pointers(sizes),
        torch.cat([part.nodes for part in parts]) if parts else subject.graph.source[:0],
        torch.cat([part.scores for part in parts]) if parts else torch.zeros(0),
    )


def _scores_of_target_chunks(
    subject: Subject, targets: Targets, method: FlowMethod, memory: int
) -> Iterator[NodeAttribution]:
    """Yield the scores of nodes for consecutive chunks of targets, each as large as the memory allows."""
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
        if table.graph.num_nodes > subject.graph.num_nodes:  # nodes that the model adds are no nodes of the data
            of_data = node < subject.graph.num_nodes
            owner, node, total = owner[of_data], node[of_data], total[of_data]
        yield _sparse(method.name, subject.graph, frontier.targets, owner, node, total)


def _sparse(name: str, graph: Graph, targets: Tensor, owner: Tensor, node: Tensor, scores: Tensor) -> NodeAttribution:
    """Return node scores without those of 0."""
    is_listed = scores != 0
    ptr = pointers(owner[is_listed].bincount(minlength=targets.numel()))
    return NodeAttribution(name, graph, targets, ptr, node[is_listed], scores[is_listed])


QUERIES = 256
"""Number of queries whose weights are held at once."""

MOST_NODES = 20_000
"""Pairs of larger graphs are not listed: there are their number of nodes squared."""


@dataclass(frozen=True)
class GlobalPairs:
    """What a target's walk takes through attention over all nodes.

    Attributes:
        query: The node that reads, of the strongest pairs that no edge joins, [K].
        key: The node that is read, [K].
        score: The sum over global layers of r at the query times the weight of the pair, [K].
        hops: Number of hops from query to key along edges (-1: none leads there), ascending, [H].
        share: The share of all pairs with these hops in the sum of sizes of all scores, [H].
    """

    query: Tensor
    key: Tensor
    score: Tensor
    hops: Tensor
    share: Tensor

    def to_pandas(self) -> pd.DataFrame:
        """Return the strongest pairs as a table."""
        import pandas as pd

        columns = {"query": self.query, "key": self.key, "score": self.score}
        return pd.DataFrame({name: values.tolist() for name, values in columns.items()})


@torch.no_grad()
def global_pairs(subject: Subject, target: int, k: int = 10, most_hops: int = 8) -> GlobalPairs | None:
    """Return the strongest pairs of attention over all nodes that no edge joins, and attention by hop distance.

    Both are summed over queries block by block; no matrix of all pairs is held.

    Args:
        subject: The subject.
        target: A node, pair or graph.
        k: Number of pairs.
        most_hops: Farther nodes count as not reached.

    Returns:
        The pairs; None if the model does not attend over all nodes, or if the graph is too large.
    """
    trace = subject.global_trace
    if trace is None or subject.graph.num_nodes > MOST_NODES:
        return None
    attention, roots = subject.attention, subject.roots([target])
    (walk,) = stream_global_walks(subject.graph, roots, attention.per_edge(), trace, trace.wiring, max(WALK_MEMORY, 1))
    best = torch.zeros(0, device=subject.device, dtype=walk.values.dtype), *(2 * [walk.node[:0]])
    totals = torch.zeros(most_hops + 2, dtype=walk.values.dtype, device=subject.device)
    for queries in walk.node.split(QUERIES):
        where = torch.searchsorted(walk.node, queries)
        scores = _scores(trace, walk.values[:, where], queries)[:, walk.node]
        hops = _hops(subject, queries, most_hops)[:, walk.node]
        totals.index_add_(0, hops.flatten() + 1, scores.abs().flatten())
        beyond = scores.where((hops > 1) | (hops == -1), 0.0)
        strongest = beyond.abs().flatten().topk(min(k, beyond.numel())).indices
        row, column = strongest // beyond.shape[1], strongest % beyond.shape[1]
        parts = (torch.cat([best[0], beyond[row, column]]), torch.cat([best[1], queries[row]]))
        keys = torch.cat([best[2], walk.node[column]])
        largest = parts[0].abs().argsort(descending=True, stable=True)[:k]
        best = parts[0][largest], parts[1][largest], keys[largest]
    is_pair = best[0] != 0
    seen = (totals > 0).nonzero().view(-1)
    share = totals[seen] / totals.sum().clamp(min=torch.finfo(totals.dtype).tiny)
    return GlobalPairs(best[1][is_pair], best[2][is_pair], best[0][is_pair], seen - 1, share)


def _scores(trace: GlobalTrace, values: Tensor, queries: Tensor) -> Tensor:
    """Return, for each query and node, the sum over global layers of r at the query times the weight."""
    total: Tensor | float = 0.0
    for layer, step in enumerate(trace.steps):
        if isinstance(step, GlobalCall):
            total = total + values[layer].unsqueeze(1) * step.rows(queries).to(values.dtype)
    assert isinstance(total, Tensor)
    return total


def _hops(subject: Subject, queries: Tensor, most_hops: int) -> Tensor:
    """Return the number of hops along edges from each node to each query, [queries, nodes]; -1 if there are more."""
    graph = subject.graph
    hops = torch.full((queries.numel(), graph.num_nodes), -1, device=queries.device)
    reached = torch.zeros(queries.numel(), graph.num_nodes, device=queries.device)
    reached[torch.arange(queries.numel(), device=queries.device), queries] = 1.0
    for hop in range(most_hops + 1):
        hops[(hops < 0) & (reached > 0)] = hop
        reached = reached.index_add(1, graph.source, reached[:, graph.destination]).clamp_(max=1.0)
    return hops


MOST_PAIRS = 10_000_000
"""Node scores of larger evaluations are not computed: they would take about as long as those of edges."""


def walk_among(methods: Iterable[str]) -> GAtt | None:
    """Return the first method, by name, that scores nodes by a walk: GAtt, Uniform or Structure; None if none does."""
    for name in methods:
        if name in METHODS and issubclass(METHODS[name], GAtt):
            method = METHODS[name].make()
            assert isinstance(method, GAtt)
            return method
    return None


def scores_of_nodes(
    subject: Subject | None, targets: Tensor, methods: Iterable[str], num_pairs: int
) -> NodeAttribution | None:
    """Return the node scores of some targets; None without a model or a walk, or if there are too many pairs."""
    method = walk_among(methods)
    if subject is None or method is None or num_pairs > MOST_PAIRS:
        return None
    try:
        return attribute_nodes(subject, targets, method)
    except (UnsupportedModelError, ArgumentError):  # a walk that this network does not have
        return None


def write_node_scores(path: Path, nodes: NodeAttribution) -> Path:
    """Write node scores as plain arrays: `method`, `targets`, `ptr`, `nodes`, `scores`."""
    arrays = {name: getattr(nodes, name).cpu().numpy() for name in ("targets", "ptr", "nodes", "scores")}
    return write_npz(path, method=nodes.method, **arrays)


def read_node_scores(path: Path, graph: Graph) -> NodeAttribution | None:
    """Read a file of `write_node_scores`; None if there is none. A damaged file raises an `ArgumentError`."""
    if not path.is_file():
        return None
    arrays = read_npz(path)
    try:
        parts = (torch.from_numpy(arrays[name]) for name in ("targets", "ptr", "nodes", "scores"))
        nodes = NodeAttribution(str(arrays["method"]), graph, *parts)
        ids = nodes.nodes
        fits = are_pointers(nodes.ptr, len(nodes), ids.numel()) and nodes.scores.shape == ids.shape
        fits = fits and nodes.scores.is_floating_point() and ids.dtype == nodes.targets.dtype == torch.int64
        fits = fits and (ids.numel() == 0 or 0 <= int(ids.min()) <= int(ids.max()) < graph.num_nodes)
    except (KeyError, TypeError, ValueError, RuntimeError):
        fits = False
    if not fits:
        raise ArgumentError(f"Expected argument `folder` to hold node scores that fit its graph, but {path} does not.")
    return nodes
