"""The rows that the model's forward is given for a chunk of reduced edges: one list for each family of stages.

Stages of one family meet in an operation, so they must have the same rows: all that change in any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.faithfulness.exact.changes import OutputRows, RowKeys
from attree.faithfulness.exact.layer_graph import LayerGraph
from attree.faithfulness.exact.stages import Stages
from attree.subject.level import OutputLevel
from attree.tensors.ragged import expand, group


class Families:
    """Finds the rows of each family, and where outputs stand among them.

    Args:
        graph: The graph.
        layers: The edges of each call.
        stages: Which call feeds which.
        outputs: What targets are.
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
        """The nodes that the outputs of targets are read from."""
        if self.ends is not None:
            return self.ends[:, targets].reshape(-1)
        nodes = self._nodes_of(targets)
        return nodes if self._members is None else self._members.items[expand(self._members.ptr, nodes)[1]]

    def graph_sizes(self, nodes: Tensor) -> Tensor | None:
        """For each of some nodes, how many nodes its graph has; None if outputs are not those of graphs."""
        return None if self._members is None or self._batch is None else self._members.sizes[self._batch[nodes]]

    def rows(self, records: Sequence[RowKeys], edges: Tensor, owner: Tensor, target: Tensor) -> list[RowKeys]:
        """The rows of each family of stages.

        A family has every row that changes in one of its calls. Where outputs are those of graphs, the family that they
        read has all nodes of the edge's graph; where they are those of links, the ends of the targets too.
        """
        stages, destination = self.stages, self.graph.destination[edges]
        families = []
        for family in range(stages.num_families):
            members = [one for one, own in zip(records, stages.family[1:], strict=True) if own == family]
            if family == stages.readout and self._batch is not None and self._members is not None:
                edge, place = expand(self._members.ptr, self._batch[destination])
                families.append(RowKeys(edge, self._members.items[place]))
            elif family == stages.readout and self.ends is not None:
                ends = [RowKeys(owner, end[target]) for end in self.ends]
                families.append(RowKeys.union([*members, *ends], self.graph.num_nodes))
            elif members:
                families.append(RowKeys.union(members, self.graph.num_nodes))
            else:
                # No reduction reaches these stages: any rows will do.
                some = torch.zeros(2, dtype=torch.int64, device=edges.device)
                families.append(RowKeys(some, destination[some]))
        return families

    def outputs(self, call: int, rows: RowKeys, records: RowKeys) -> tuple[OutputRows, ...]:
        """The rows of the tensors that a call returns.

        Args:
            call: The number of the call.
            rows: The rows of its family.
            records: Those that change.
        """
        layer = self.layers[call]
        if layer.blocks is None:
            return (OutputRows(rows.node, None, self.place_in(rows, records)),)
        outputs = []
        for number in layer.blocks.targets:
            kind = layer.blocks.inputs[number]
            own, chosen = self.of_type(rows, kind), self._is_of_type(records, kind)
            outputs.append(OutputRows(layer.nodes(own.node), chosen, self.place_in(own, records.at(chosen))))
        return tuple(outputs)

    def queries(self, families: Sequence[RowKeys], owner: Tensor, target: Tensor) -> Tensor | None:
        """The two ends of each pair's target as rows of the family that outputs read, [2, pairs]."""
        if self.ends is None or self.stages.readout is None:
            return None
        rows, types, found = families[self.stages.readout], self.graph.types, []
        for end in self.ends:
            own = rows if types is None else self.of_type(rows, types.node_type(int(end[0])))
            found.append(own.find(owner, end[target], self.graph.num_nodes)[0])
        return torch.stack(found)

    def pair_rows(
        self, families: Sequence[RowKeys], owner: Tensor, target: Tensor, reduced: RowKeys
    ) -> tuple[Tensor, Tensor]:
        """For each pair of a reduced edge and a target, its row in the output, and whether there is one."""
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
        """Where some of the rows stand among them; None if they are all."""
        return None if rows is records else rows.find(records.edge, records.node, self.graph.num_nodes)[0]

    def of_type(self, records: RowKeys, node_type: str) -> RowKeys:
        """The rows of nodes of one type, in their order, which is that of the type's tensors."""
        return records.at(self._is_of_type(records, node_type))

    def _is_of_type(self, records: RowKeys, node_type: str) -> Tensor:
        assert self.graph.types is not None
        own = self.graph.types.nodes(node_type)
        return ((records.node >= own.start) & (records.node < own.stop)).nonzero().view(-1)

    def _nodes_of(self, targets: Tensor) -> Tensor:
        """The graph's ids of targets that are nodes; in the union of types, they are numbered within theirs."""
        types, kind = self.graph.types, self._node_type
        return targets if types is None or kind is None else types.union(kind, targets)
