"""Rows that a reduction plan covers: nodes on a path to a target, and the rows on which the model's forward runs.

The forward gets one list of rows for each family of stages. An operation combines the stages of a family, so they need
the same rows: all rows that change in any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.faithfulness.exact.changes import OutputRows, RowKeys
from attree.faithfulness.exact.layer_graph import LayerGraph
from attree.faithfulness.exact.stages import Stages
from attree.subject.roots import OutputLevel
from attree.tensors.ragged import Rows, expand, group


class TargetPaths:
    """Paths from changed nodes to targets: the nodes that matter in each call, and the edges that lead to them.

    Paths follow the graph with self-loops, even if a layer has none, because a skip may carry a node to itself. Calls
    on several types have no such loops; there, a node's own features are followed separately.

    Args:
        graph: The graph.
        layers: The edges of each call.
        stages: Which call feeds which.
        nodes: The nodes that outputs are read from.
        spreads: Whether a deleted edge changes all messages that its destination sends in each call.

    Attributes:
        needed: For each call, a mask of the nodes at which its output matters, [num_nodes].
        onward: For each call on outputs of earlier calls, and each that spreads changes, the edges that enter these
            nodes, grouped by source node, block by block.
    """

    def __init__(
        self, graph: Graph, layers: Sequence[LayerGraph], stages: Stages, nodes: Tensor, spreads: Sequence[bool]
    ) -> None:
        self._graph = graph
        self._layers = layers
        self._stages = stages
        feeds = stages.feeds
        self._is_followed = [bool(feeding) or spread for feeding, spread in zip(feeds, spreads, strict=True)]
        none = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
        read = none.index_fill(0, nodes, True)
        self.needed = [(read if call in stages.outputs else none).clone() for call in range(1, len(feeds) + 1)]
        self.onward: list[tuple[Rows, ...]] = [()] * len(feeds)
        for call in reversed(range(len(feeds))):
            if self._is_followed[call]:
                layer, needed = layers[call], self.needed[call]
                receivers = layer.nodes(needed.nonzero().view(-1))
                if layer.blocks is not None:
                    receivers = receivers[(receivers >= 0) & (receivers < layer.num_nodes)]
                _, place = expand(layer.entering.ptr, receivers)
                edges = layer.entering.items[place]
                source = layer.source_node[edges]
                self.onward[call] = tuple(_by_source(edges, source, layer, graph.num_nodes))
                for before in feeds[call]:
                    self.needed[before - 1][source] = True
                    if layer.blocks is not None:
                        self.needed[before - 1] |= needed

    def entries(self, edges: Tensor) -> Tensor:
        """Return an upper bound on the number of entries that change, over all calls, when each edge is reduced."""
        graph, feeds = self._graph, self._stages.feeds
        counts = [torch.ones(graph.num_nodes, device=graph.device) for _ in feeds]
        for call in reversed(range(len(feeds))):
            if self._is_followed[call]:
                layer = self._layers[call]
                onward = torch.zeros_like(counts[call])
                source, destination = layer.source_node, layer.destination_node
                for rows in self.onward[call]:
                    onward.index_add_(0, source[rows.items], counts[call][destination[rows.items]])
                if layer.blocks is not None:
                    onward += counts[call]
                if not feeds[call]:
                    counts[call] = (counts[call] + onward).clamp_(max=float(graph.num_edges))
                for before in feeds[call]:
                    counts[before - 1] = (counts[before - 1] + onward).clamp_(max=float(graph.num_edges))
        total = torch.zeros(edges.numel(), device=graph.device)
        for call, count in enumerate(counts):
            if not feeds[call] or self._layers[call].blocks is not None:
                total += count[graph.destination[edges]]
        return total


def _by_source(edges: Tensor, source: Tensor, layer: LayerGraph, num_nodes: int) -> Iterator[Rows]:
    """Yield the edges of a call grouped by source node, block by block."""
    if layer.blocks is None or layer.block is None:
        by_source = group(source, num_nodes)
        yield Rows(by_source.ptr, edges[by_source.items])
        return
    block = layer.block[edges]
    for number in range(len(layer.blocks.relations)):
        of_relation = (block == number).nonzero().view(-1)
        by_source = group(source[of_relation], num_nodes)
        yield Rows(by_source.ptr, edges[of_relation[by_source.items]])


class FamilyRows:
    """Finds the rows of each family, and the rows of outputs among them.

    Args:
        graph: The graph.
        layers: The edges of each call.
        stages: Which call feeds which.
        outputs: What the rows of the output belong to.
    """

    def __init__(self, graph: Graph, layers: Sequence[LayerGraph], stages: Stages, outputs: OutputLevel) -> None:
        self.graph = graph
        self.layers = layers
        self.stages = stages
        self.ends = outputs.ends
        self._batch = batch = outputs.batch
        self._node_type = outputs.node_type
        self._members = None if batch is None else group(batch, int(batch.max()) + 1)

    def nodes_read(self, targets: Tensor) -> Tensor:
        """Return the nodes that the outputs of targets are read from."""
        if self.ends is not None:
            return self.ends[:, targets].reshape(-1)
        nodes = self._nodes_of(targets)
        return nodes if self._members is None else self._members.items[expand(self._members.ptr, nodes)[1]]

    def graph_sizes(self, nodes: Tensor) -> Tensor | None:
        """Return the number of nodes in the graph of each given node; None if outputs do not belong to graphs."""
        return None if self._members is None or self._batch is None else self._members.sizes[self._batch[nodes]]

    def rows(self, records: Sequence[RowKeys], edges: Tensor, owner: Tensor, target: Tensor) -> list[RowKeys]:
        """Return the rows of each family of stages.

        A family has every row that changes in one of its calls. For graph outputs, the family that they read has all
        nodes of the reduced edge's graph; for link outputs, it also has the ends of the targets.
        """
        stages, destination = self.stages, self.graph.destination[edges]
        families = []
        for family in range(stages.num_families):
            members = [
                record
                for record, family_of_call in zip(records, stages.family[1:], strict=True)
                if family_of_call == family
            ]
            if family == stages.readout and self._batch is not None and self._members is not None:
                edge, place = expand(self._members.ptr, self._batch[destination])
                families.append(RowKeys(edge, self._members.items[place]))
            elif family == stages.readout and self.ends is not None:
                ends = [RowKeys(owner, end[target]) for end in self.ends]
                families.append(RowKeys.union([*members, *ends], self.graph.num_nodes))
            elif members:
                families.append(RowKeys.union(members, self.graph.num_nodes))
            else:
                # No reduction reaches these stages, so any rows will do.
                any_rows = torch.zeros(2, dtype=torch.int64, device=edges.device)
                families.append(RowKeys(any_rows, destination[any_rows]))
        return families

    def outputs(self, call: int, rows: RowKeys, records: RowKeys) -> tuple[OutputRows, ...]:
        """Return the rows of the tensors that a call returns.

        Args:
            call: The number of the call.
            rows: The rows of its family.
            records: The rows that change.
        """
        layer = self.layers[call]
        if layer.blocks is None:
            return (OutputRows(rows.node, None, self.place_in(rows, records)),)
        outputs = []
        for number in layer.blocks.targets:
            kind = layer.blocks.inputs[number]
            rows_of_type, among_records = self.of_type(rows, kind), self._is_of_type(records, kind)
            outputs.append(
                OutputRows(
                    layer.nodes(rows_of_type.node),
                    among_records,
                    self.place_in(rows_of_type, records.at(among_records)),
                )
            )
        return tuple(outputs)

    def queries(self, families: Sequence[RowKeys], owner: Tensor, target: Tensor) -> Tensor | None:
        """Return the two ends of each pair's target as rows of the family that outputs read, [2, pairs]."""
        if self.ends is None or self.stages.readout is None:
            return None
        rows, types, end_rows = families[self.stages.readout], self.graph.types, []
        for end in self.ends:
            rows_of_type = rows if types is None else self.of_type(rows, types.node_type(int(end[0])))
            end_rows.append(rows_of_type.find(owner, end[target], self.graph.num_nodes)[0])
        return torch.stack(end_rows)

    def pair_rows(
        self, families: Sequence[RowKeys], owner: Tensor, target: Tensor, reduced: RowKeys
    ) -> tuple[Tensor, Tensor]:
        """Return the output row of each pair of a reduced edge and a target, and whether there is one."""
        if self._batch is not None:
            return owner, self._batch[reduced.node[owner]] == target
        if self.ends is not None:
            return torch.arange(owner.numel(), device=owner.device), torch.ones_like(owner, dtype=torch.bool)
        if not self.stages.outputs:
            return owner, torch.zeros_like(owner, dtype=torch.bool)
        rows = families[self.stages.family[self.stages.outputs[0]]]
        rows = rows if self._node_type is None else self.of_type(rows, self._node_type)
        return rows.find(owner, self._nodes_of(target), self.graph.num_nodes)

    def place_in(self, rows: RowKeys, records: RowKeys) -> Tensor | None:
        """Return the positions of `records` among `rows`; None if they are the same rows."""
        return None if rows is records else rows.find(records.edge, records.node, self.graph.num_nodes)[0]

    def of_type(self, records: RowKeys, node_type: str) -> RowKeys:
        """Return the rows of nodes of one type, in order."""
        return records.at(self._is_of_type(records, node_type))

    def _is_of_type(self, records: RowKeys, node_type: str) -> Tensor:
        assert self.graph.types is not None
        nodes = self.graph.types.nodes(node_type)
        return ((records.node >= nodes.start) & (records.node < nodes.stop)).nonzero().view(-1)

    def _nodes_of(self, targets: Tensor) -> Tensor:
        """Return the graph's ids of targets that are nodes; targets are numbered within their type."""
        types, kind = self.graph.types, self._node_type
        return targets if types is None or kind is None else types.union(kind, targets)
