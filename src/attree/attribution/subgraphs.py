"""Neighbourhoods of targets: their edges (the pairs), and explaining a large graph one neighbourhood at a time.

The output of an L-layer network for a target depends only on the nodes within L hops and on the edges that enter the
nodes within L - 1 hops; layer m is needed only at nodes within L - m hops. So the network runs on the union of the
neighbourhoods of a batch of targets. There, the attention on every flow is that of the full graph. The scores are
returned with edge ids of the full graph.

This holds only for networks whose layers read only neighbours. A network that normalises or pools over all nodes in
eval mode computes something else on a part of the graph. So the outputs of the first targets are computed on two
different parts, and the network is refused if they differ (see `attree.subject.model_call`).

The pairs of a node are all edges, including self-loops, of the subgraph induced by the nodes within L hops of it. Some
of them carry no flow to the node: edges that enter nodes exactly L hops away. For a pair of nodes, the subgraph is that
of the nodes within L hops of either. The pairs of a graph are all its edges. Self-loops that no layer of the network
has are not pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.capture import Attention, capture_run, check_model, graph_of
from attree.attention.graph import Graph
from attree.attention.message_edges import MessageGraph
from attree.attention.stand_ins import eval_mode, score_tensor
from attree.attention.wiring import Wiring
from attree.attribution.flows import frontier_bound, stream_frontiers, walk_back
from attree.attribution.gatt import FlowMethod
from attree.attribution.method import as_subject
from attree.attribution.pairs import Pairs
from attree.attribution.result import Attribution
from attree.errors import UnsupportedModelError, expect, expect_bool, expect_instance, expect_int, expect_memory
from attree.io.terminal import track
from attree.subject import ModelCall, Part, Subject
from attree.subject.model_call import NotLocalError, check_local
from attree.subject.target_roots import Roots, Targets, as_targets
from attree.tensors.arrays import expand, group, pointers
from attree.tensors.memory import WALK_MEMORY, chunk_bounds
from attree.tensors.precision import exact_dtype


def subject_pairs(subject: Subject | Attention, targets: Targets = "all", *, only_flows: bool = False) -> Pairs:
    """Return the pairs of a subject's targets: nodes, pairs of nodes, or graphs.

    Args:
        subject: The subject to explain, or its attention alone.
        targets: Ids of the targets.
        only_flows: Leave out pairs whose edge carries no flow to the target.
    """
    subject = as_subject(subject)
    attention, batch, ids = subject.layers, subject.batch, subject.targets(targets)
    if batch is None and not attention.runs_on_data:
        pairs = _all_pairs(subject, ids)
    elif batch is None:
        roots = subject.roots(ids, torch.float32)
        rows = None if subject.outputs.nodes is None else subject.rows(ids)
        pairs = root_pairs(subject.graph, roots, attention.num_layers, only_flows=only_flows)
        pairs = replace(pairs, rows=rows, level=subject.level)
    else:
        pairs = graph_pairs(subject.graph, batch)
        pairs = pairs.of_targets(torch.searchsorted(pairs.targets, ids))
    if any(present is None for present in attention.present):
        return pairs
    used = torch.stack([present for present in attention.present if present is not None]).any(dim=0)
    is_used = used[pairs.edges]
    return pairs if bool(is_used.all()) else pairs.only(is_used)


def _all_pairs(subject: Subject, targets: Tensor) -> Pairs:
    """Return all pairs of some nodes or links and an edge, for a model in which any edge may reach any target."""
    graph, count = subject.graph, targets.numel()
    edges = torch.arange(graph.num_edges, device=graph.device).repeat(count)
    ptr = torch.arange(count + 1, device=graph.device) * graph.num_edges
    rows = None if subject.outputs.nodes is None else subject.rows(targets)
    flow = torch.ones_like(edges, dtype=torch.bool)
    return Pairs(targets, ptr, edges, flow, graph, subject.num_layers, rows, subject.level)


def subgraph_pairs(graph: Graph, targets: Targets, num_layers: int, memory: int = WALK_MEMORY) -> Pairs:
    """Return all pairs of the L-hop subgraphs of some nodes.

    Args:
        graph: The graph with self-loops.
        targets: The nodes: one, several, a mask, or 'all'.
        num_layers: Number L of layers of the network.
        memory: Bytes of working memory.
    """
    expect_instance(graph, "graph", Graph)
    expect_int(num_layers, "num_layers", 1)
    expect_memory(memory)
    nodes = as_targets(targets, graph.num_nodes, graph.device)
    return root_pairs(graph, Roots.at_nodes(nodes, torch.float32), num_layers, memory)


def root_pairs(
    graph: Graph, roots: Roots, num_layers: int, memory: int = WALK_MEMORY, *, only_flows: bool = False
) -> Pairs:
    """Return all pairs of the L-hop subgraphs around the roots of some targets, or only those that carry a flow."""
    parts = list(
        _stream_flow_pairs(graph.walked, roots, num_layers, memory)
        if only_flows
        else _stream_pairs(graph.walked, roots, num_layers, memory)
    )
    if isinstance(graph.walked, MessageGraph):
        parts = [_pairs_of_owners(part, graph, graph.walked.owner) for part in parts]
    none = roots.targets[:0]
    sizes = torch.cat([none, *(part.ptr.diff() for part in parts)])
    edges = torch.cat([none, *(part.edges for part in parts)])
    flow = torch.cat([none.bool(), *(part.flow for part in parts)])
    return Pairs(roots.targets, pointers(sizes), edges, flow, graph, num_layers)


def _pairs_of_owners(pairs: Pairs, graph: Graph, owner: Tensor) -> Pairs:
    """Return pairs of messages as pairs of the edges that they come from; an edge carries a flow if a message does."""
    edges, target = owner[pairs.edges], pairs.owner
    is_owned = edges >= 0
    key, place = (target * graph.num_edges + edges)[is_owned].unique(return_inverse=True)
    flow = torch.zeros_like(key, dtype=torch.bool)
    flow[place[pairs.flow[is_owned]]] = True
    target, edges = key // graph.num_edges, key % graph.num_edges
    order = (target * 2 + (~flow).long()).argsort(stable=True)
    ptr = pointers(target.bincount(minlength=pairs.targets.numel()))
    return Pairs(pairs.targets, ptr, edges[order], flow[order], graph, pairs.num_layers)


def graph_pairs(graph: Graph, batch: Tensor) -> Pairs:
    """Return all edges, including self-loops, of every graph of a batch; targets are the ids of graphs with nodes.

    Every edge of a graph carries a flow to its readout.

    Args:
        graph: The graph of the whole batch, with self-loops.
        batch: The graph of each node, [num_nodes].

    >>> pairs = graph_pairs(Graph(torch.tensor([[2, 0], [1, 0]]), num_nodes=3), torch.tensor([0, 1, 1]))
    >>> pairs.targets.tolist(), pairs.ptr.tolist(), pairs.edges.tolist()
    ([0, 1], [0, 1, 4], [1, 0, 2, 3])
    """
    expect_instance(graph, "graph", Graph)
    expect_instance(batch, "batch", Tensor)
    expect(
        batch.shape == (graph.num_nodes,) and batch.dtype == torch.int64,
        "batch",
        f"{graph.num_nodes} graph ids of dtype torch.int64, one per node",
        f"{tuple(batch.shape)} of {batch.dtype}",
    )
    source, destination = batch[graph.edge_index]
    expect(torch.equal(source, destination), "batch", "one graph for both ends of every edge", "edges between graphs")
    rows = group(destination, int(batch.max()) + 1 if batch.numel() else 0)
    targets = batch.unique()
    _, place = expand(rows.ptr, targets)
    ptr = torch.cat([rows.ptr[:1], rows.ptr[targets + 1]])
    flow = torch.ones_like(place, dtype=torch.bool)
    return Pairs(targets, ptr, rows.items[place], flow, graph, None, level="graph")


def _stream_pairs(graph: Graph, roots: Roots, num_layers: int, memory: int) -> Iterator[Pairs]:
    """Yield pairs of consecutive targets whose node masks and edge lists fit into `memory` bytes."""
    ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * (num_layers + 1)
    # A chunk needs one flag per target and node, and the edges that enter every node of the neighbourhoods.
    cost = roots.sums(frontier_bound(graph, num_layers + 1)) * 48.0 + graph.num_nodes
    for begin, end in chunk_bounds(cost, memory):
        yield _pairs_of(graph, roots.slice(begin, end), num_layers, ones)


def _stream_flow_pairs(graph: Graph, roots: Roots, num_layers: int, memory: int) -> Iterator[Pairs]:
    """Do the same as `_stream_pairs` for pairs that carry a flow only: their edges enter a node of the walk."""
    ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * num_layers
    for frontier in stream_frontiers(graph, roots, ones, memory=memory):
        entry, place = expand(graph.entering.ptr, frontier.node)
        owner, edges = frontier.owner[entry], graph.entering.items[place]
        ptr = pointers(owner.bincount(minlength=frontier.targets.numel()))
        yield Pairs(frontier.targets, ptr, edges, torch.ones_like(edges, dtype=torch.bool), graph, num_layers)


def _pairs_of(graph: Graph, roots: Roots, num_layers: int, ones: list[Tensor]) -> Pairs:
    """Return the pairs of some targets: all edges between nodes within L hops, and whether each carries a flow."""
    # One more layer than the model has: the frontier is then every node within L hops, and levels give the distance.
    targets, ball = roots.targets, walk_back(graph, roots, ones)
    inner = ball.weight[1:].sum(dim=0) > 0
    inside = torch.zeros(targets.numel() * graph.num_nodes, dtype=torch.bool, device=graph.device)
    inside[ball.owner * graph.num_nodes + ball.node] = True

    order = torch.argsort(ball.owner * 2 + (~inner).long(), stable=True)
    entry_owner, entry_inner = ball.owner[order], inner[order]
    owner, place = expand(graph.entering.ptr, ball.node[order])
    target, flow = entry_owner[owner], entry_inner[owner]
    keep = flow | inside[target * graph.num_nodes + graph.entering_source[place]]
    target, flow, edges = target[keep], flow[keep], graph.entering.items[place[keep]]
    ptr = pointers(target.bincount(minlength=targets.numel()))
    return Pairs(targets, ptr, edges, flow, graph, num_layers)


def neighbourhoods(
    subject: Subject, targets: Tensor, bytes_per_edge: float, memory: float, *, induced: bool = False, wider: int = 0
) -> Iterator[tuple[int, int, Part]]:
    """Yield the parts of the graph that targets `begin` to `end` depend on, each with one graph per target.

    The output of an L-layer network for a node depends on the edges that enter the nodes fewer than L hops away. The
    output for a graph depends on all its edges.

    Args:
        subject: The subject to explain.
        targets: Ids of nodes, pairs of nodes, or graphs.
        bytes_per_edge: Bytes that one edge takes in a pass of the model.
        memory: Bytes that a part may take in a pass; the nodes of one target always stay together.
        induced: Take all edges between the nodes within L hops instead; always so if messages come from edges in
            other ways than along them.
        wider: Number of hops beyond those of the network's layers, for networks that also read edges elsewhere.
    """
    sizes, done = subject.graph.given_entering.sizes + 1, 0
    induced = induced or subject.graph.messages is not None
    for ids, owner, node in _inner_nodes(subject, targets, memory, subject.num_layers + int(induced) + wider):
        edges = torch.zeros(ids.numel(), dtype=exact_dtype(ids.device), device=ids.device)
        edges.index_add_(0, owner, sizes[node].to(edges.dtype))
        for begin, end in chunk_bounds(edges * bytes_per_edge, memory):
            first, last = torch.searchsorted(owner, owner.new_tensor([begin, end])).tolist()
            part = Part.entering(
                subject.graph, end - begin, owner[first:last] - begin, node[first:last], induced=induced
            )
            yield done + begin, done + end, part_of_targets(subject, part, ids[begin:end])
        done += ids.numel()


def _inner_nodes(
    subject: Subject, targets: Tensor, memory: float, steps: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield, for consecutive targets, the nodes whose entering edges they depend on: targets, owners, nodes."""
    graph, batch, num_nodes = subject.graph.walked, subject.batch, subject.graph.num_nodes
    if batch is not None:
        nodes = group(batch, subject.num_targets)
        owner, place = expand(nodes.ptr, targets)
        yield targets, owner, nodes.items[place]
        return
    ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * steps
    roots = subject.roots(targets, torch.float32)
    for frontier in stream_frontiers(graph, roots, ones, memory=max(int(memory), 1)):
        of_data = slice(None) if graph.num_nodes == num_nodes else frontier.node < num_nodes
        yield frontier.targets, frontier.owner[of_data], frontier.node[of_data]


def part_of_targets(subject: Subject, part: Part, targets: Tensor) -> Part:
    """Return a part with the positions of its targets, the pairs to predict and the graph of each node."""
    numbers, ends = torch.arange(part.count, device=part.node.device), subject.outputs.ends
    batch = subject.call.batch
    return replace(
        part,
        graph_of=None if batch is None or not part.node.numel() else batch[part.node[part.bounds[0][:-1]]],
        queries=None if ends is None else torch.stack([part.find(numbers, end[targets]) for end in ends]),
        target=part.find(numbers, subject.nodes_of(targets)) if subject.level == "node" else None,
    )


TRIED = 8
"""Number of targets on which a model is checked."""


def attribute_subgraphs(
    method: FlowMethod,
    model: nn.Module,
    x: Tensor,
    edge_index: Tensor,
    targets: Targets = "all",
    *,
    num_layers: int | None = None,
    memory: int = WALK_MEMORY,
    progress: bool = False,
    **kwargs: Any,
) -> Attribution:
    """Score targets in batches, on the union of their neighbourhoods; the result equals one pass over the full graph.

    Args:
        method: The attribution method; `random` is excluded, because it reads no attention.
        model: The model; it may be on another device than the graph.
        x: Node features of the full graph.
        edge_index: Edges of the full graph, [2, E].
        targets: Nodes to explain.
        num_layers: Number of attention layers that the output depends on; None finds it by a forward pass.
        memory: Approximate bytes that the forward pass of a batch may take; its attribution may take as many again.
        progress: Show a progress bar.
        **kwargs: Further arguments of the model; those with one row per node or edge (see `ModelCall`) are cut to the
            neighbourhood.

    Raises:
        UnsupportedModelError: If the model's attention differs on a part of the graph.
    """
    parts = list(
        stream_subgraphs(
            method, model, x, edge_index, targets, num_layers=num_layers, memory=memory, progress=progress, **kwargs
        )
    )
    if not parts:
        graph = Graph(edge_index, x.shape[0])
        none = graph.source[:0]
        return Attribution(method.name, graph, none, graph.source.new_zeros(1), none, torch.zeros(0, device=x.device))
    return Attribution.concat(parts)


def stream_subgraphs(
    method: FlowMethod,
    model: nn.Module,
    x: Any,
    edge_index: Any,
    targets: Targets = "all",
    *,
    num_layers: int | None = None,
    memory: int = WALK_MEMORY,
    progress: bool = False,
    **kwargs: Any,
) -> Iterator[Attribution]:
    """Do the same as `attribute_subgraphs`, but yield the result in parts of consecutive targets."""
    check_model(model)
    if isinstance(x, dict) or isinstance(edge_index, dict):
        raise UnsupportedModelError(
            "Expected a graph with one type of nodes and edges, but got a heterogeneous one: explain it in one pass."
        )
    graph = graph_of(x, edge_index)
    expect_instance(method, "method", FlowMethod)
    expect_bool(progress, "progress")
    expect(not method.is_random, "method", "one that reads attention", method.name)
    expect_memory(memory)
    if num_layers is not None:
        expect_int(num_layers, "num_layers", 1)
    nodes = as_targets(targets, graph.num_nodes, graph.device)
    if nodes.numel() == 0:
        return iter(())
    scorer = SubgraphScorer(method, model, x, graph, nodes[:1], kwargs)
    layers_of_model = scorer.num_layers
    expect(
        num_layers in (None, layers_of_model),
        "num_layers",
        f"the number of attention layers, {layers_of_model}",
        num_layers,
    )
    parts = scorer.stream(nodes, memory)
    return track(parts, nodes.numel()) if progress else parts


class SubgraphScorer:
    """Runs a model on parts of a graph and scores targets there, with edge ids of the full graph.

    Data shared by all targets is computed once, so `stream` can be called several times.

    Args:
        method: The attribution method, which must read attention.
        model: The model.
        x: Node features of the full graph.
        graph: The full graph.
        node: A node, [1], around which the layers of the model are counted.
        kwargs: Further arguments of the model.

    Attributes:
        num_layers: Number of attention layers.
    """

    def __init__(
        self,
        method: FlowMethod,
        model: nn.Module,
        x: Tensor,
        graph: Graph,
        node: Tensor,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.graph = graph
        self.hops = 1
        self._method = method
        self._x = x
        self._call = ModelCall.of(model, x, graph.original_edge_index, **(kwargs or {})).private()
        self._device = next((parameter.device for parameter in model.parameters()), graph.device)
        self._wiring: Wiring | None = None
        self._is_checked = False
        attention = self._attend(self._ball(node))
        # All further passes assume that the model has the same layers.
        self._wiring, self.num_layers = attention.wiring, attention.num_layers
        self.hops = method.hops(attention.num_layers)

    def stream(self, targets: Tensor, memory: int = WALK_MEMORY) -> Iterator[Attribution]:
        """Yield the scores of some nodes, in parts of consecutive ones; `memory` is that of `attribute_subgraphs`."""
        # Neighbourhoods overlap, so the sum of their sizes is an upper bound on the size of the union.
        size = frontier_bound(self.graph, self.hops + 1)[targets].clamp(max=float(self.graph.num_edges))
        for begin, end in chunk_bounds(size * self.bytes_per_edge, memory):
            self._is_checked = self._is_checked or self.check(targets[begin:end])
            yield from self.score(targets[begin:end], memory)

    @property
    def bytes_per_edge(self) -> float:
        """Rough bytes of a forward pass per edge: a node's features and three messages of the widest layer."""
        widest = max(
            (parameter.shape[0] for parameter in self._call.model.parameters() if parameter.dim() >= 2), default=0
        )
        return float(self._x.element_size() * (self._x[:1].numel() + 3 * widest))

    def score(self, targets: Tensor, memory: int) -> Iterator[Attribution]:
        """Yield the scores of targets from a pass on the union of their neighbourhoods."""
        ball = self._ball(targets)
        attention = self._attend(ball)
        # Ids in the full graph of the part's edges, with self-loops.
        device = self.graph.device
        proper = attention.graph.original_edge_index[0] != attention.graph.original_edge_index[1]
        assert ball.edge is not None
        proper_edges = ball.edge[proper.to(device)]
        place = torch.cat([self.graph.position[proper_edges], self.graph.num_proper_edges + ball.node])
        roots = Roots.at_nodes(torch.searchsorted(ball.node, targets).to(self._device))
        for scored in self._method.stream(attention, roots, memory):
            yield Attribution(
                self._method.name,
                self.graph,
                ball.node[scored.targets.to(device)],
                scored.ptr.to(device),
                place[scored.edges.to(device)],
                scored.scores.to(device),
            )

    def check(self, targets: Tensor) -> bool:
        """Raise if the outputs of the first targets change when the model runs on more of the graph.

        Returns:
            Whether the check was conclusive: a target without entering edges may be the same in any model.
        """
        if self._beyond(targets).numel() == 0:  # the part is the full graph
            return False
        tried_targets = targets[: min((targets.numel() + 1) // 2, TRIED)]
        other_nodes = self._beyond(tried_targets)
        # Spread evenly over the graph.
        other_nodes = other_nodes[:: max(other_nodes.numel() // tried_targets.numel(), 1)][: tried_targets.numel()]
        ball = self._ball(torch.cat([tried_targets, other_nodes]).unique())
        rows = torch.searchsorted(ball.node, tried_targets).to(self._device)
        owner, node = (torch.cat(ids) for ids in zip(*self._inner_nodes(tried_targets), strict=True))
        part = Part.entering(self.graph, tried_targets.numel(), owner, node)
        part = replace(
            part, target=part.find(torch.arange(tried_targets.numel(), device=tried_targets.device), tried_targets)
        )
        try:
            with eval_mode(self._call.model), torch.no_grad():
                expected = score_tensor(self._on(ball).run())[rows]
                check_local(self._call, part, expected, lambda call: self._here(call).run())
        except NotLocalError as error:
            raise UnsupportedModelError(
                f"Expected {self._call.name} to attend to a target's neighbourhood as it does in the full graph, but "
                f"{error.reason}. It needs one pass over the full graph."
            ) from error
        return bool((self.graph.entering.sizes[tried_targets] > 1).any())

    def _inner_nodes(self, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, for each target, its position and the nodes whose entering edges it depends on."""
        for number, target in enumerate(targets.split(1)):
            node = target if self.hops == 1 else Part.around(self.graph, target, self.hops - 1).node
            yield torch.full_like(node, number), node

    def _beyond(self, centres: Tensor) -> Tensor:
        """Return the nodes outside the neighbourhood of `centres`, or without all their entering edges in it."""
        ball = self._ball(centres)
        nodes = torch.ones(self.graph.num_nodes, dtype=torch.bool, device=self.graph.device)
        nodes[ball.node] = False
        edges = torch.ones_like(self.graph.position, dtype=torch.bool)
        assert ball.edge is not None
        edges[ball.edge] = False
        nodes[self.graph.original_edge_index[1, edges]] = True
        return nodes.nonzero().view(-1)

    def _ball(self, centres: Tensor) -> Part:
        return Part.around(self.graph, centres, self.hops)

    def _attend(self, ball: Part) -> Attention:
        """Return the model's attention in a neighbourhood."""
        part = self._on(ball)
        return capture_run(part.model, part.run, Graph(part.edge_index, part.num_nodes), self._wiring)

    def _on(self, part: Part) -> ModelCall:
        """Return the model's call on a part, on the model's device."""
        return self._here(self._call.on(part))

    def _here(self, call: ModelCall) -> ModelCall:
        return call.changed(lambda _, value: value.to(self._device) if isinstance(value, Tensor) else value)
