"""Explain targets of a graph that is too large for one forward pass, exactly, one neighbourhood at a time.

The output of an L-layer network for a target depends only on the nodes within L hops and on the edges that enter the
nodes within L - 1 hops; layer m is needed only at nodes within L - m hops. So the network runs on the union of the
neighbourhoods of a batch of targets. There, the attention on every flow is that of the full graph. The scores are
returned with edge ids of the full graph.

This holds only for networks whose layers read only neighbours. A network that normalises or pools over all nodes in
eval mode computes something else on a part of the graph. So the outputs of the first targets are computed on two
different parts, and the network is refused if they differ (see `attree.subject.part_check`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.capture import Attention, capture_run, check_model, graph_of
from attree.attention.eval_mode import eval_mode, score_tensor
from attree.attention.graph import Graph
from attree.attention.wiring import Wiring
from attree.attribution.flows import frontier_bound
from attree.attribution.gatt import FlowMethod
from attree.attribution.result import Attribution
from attree.errors import UnsupportedModelError, expect, expect_bool, expect_instance, expect_int, expect_memory
from attree.io.terminal import track
from attree.subject import ModelCall, Part
from attree.subject.part_check import NotLocalError, check_local
from attree.subject.roots import Roots, Targets, as_targets
from attree.tensors.limits import WALK_MEMORY, chunk_bounds

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
