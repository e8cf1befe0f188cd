"""The rows that the forward runs on for each family of stages, and the rows of layers and outputs among them.

The forward gets one list of rows for each family. An operation combines the stages of a family, so they need the same
rows: all rows that change in any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.faithfulness.exact.call_plans import CopiedRows, OutputRows, RootRows
from attree.faithfulness.exact.changed_rows import RowKeys, Variants
from attree.faithfulness.exact.layer_graph import LayerGraph
from attree.faithfulness.exact.stages import Stages
from attree.subject.target_roots import OutputLevel
from attree.tensors.arrays import expand, group, take_rows


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

    def rows(self, records: Sequence[RowKeys], variants: Variants, owner: Tensor, target: Tensor) -> list[RowKeys]:
        """Return the rows of each family of stages.

        A family has every row that changes in one of its calls. For graph outputs, the family that they read has all
        nodes of the reduced edge's graph; for link outputs, it also has the ends of the targets.
        """
        stages, destination = self.stages, self.graph.destination[variants.edge]
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
                any_rows = torch.zeros(2, dtype=torch.int64, device=owner.device)
                families.append(RowKeys(any_rows, destination[any_rows]))
        return families

    def outputs(self, call: int, rows: RowKeys, records: RowKeys, variants: Variants) -> tuple[OutputRows, ...]:
        """Return the rows of the tensors that a call returns.

        Args:
            call: The number of the call.
            rows: The rows of its family.
            records: The rows that change.
            variants: The variants.
        """
        layer = self.layers[call]
        if layer.blocks is None:
            copies = None
            if variants.base is not None:
                first = int(torch.searchsorted(rows.variant, variants.first_copy))
                base = variants.base_of(rows.variant[first:])
                source, is_found = rows.find(base, rows.node[first:], self.graph.num_nodes)
                copied = is_found.nonzero().view(-1)
                copies = CopiedRows(copied + first, take_rows(source, copied))
            return (OutputRows(rows.node, None, self.place_in(rows, records), copies),)
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

    def root(self, call: int, families: Sequence[RowKeys], variants: Variants) -> RootRows | None:
        """Return where the rows of a call's output are among those of its input, if the layer reads them; else None."""
        stages = self.stages
        if not stages.rooted[call]:
            return None
        rows, feeds = families[stages.family[call + 1]], stages.feeds[call]
        if not feeds:
            return RootRows(rows.node[:0], None)
        place = self._find(families[stages.family[feeds[0]]], rows.variant, rows.node, variants)
        of_rows = (place >= 0).nonzero().view(-1)
        return RootRows(of_rows, take_rows(place, of_rows))

    def _find(self, rows: RowKeys, variant: Tensor, node: Tensor, variants: Variants) -> Tensor:
        """Return the positions of the rows of variants and nodes, or of their bases; -1 if there is neither."""
        place, is_found = rows.find(variant, node, self.graph.num_nodes)
        place = torch.where(is_found, place, -1)
        if variants.base is None:
            return place
        missing = (~is_found).nonzero().view(-1)
        base = variants.base_of(take_rows(variant, missing))
        of_base, has_row = rows.find(base, take_rows(node, missing), self.graph.num_nodes)
        return place.index_copy_(0, missing, torch.where(has_row & (base >= 0), of_base, -1))

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
        self, families: Sequence[RowKeys], owner: Tensor, target: Tensor, variants: Variants
    ) -> tuple[Tensor, Tensor]:
        """Return the output row of each pair of a reduced edge and a target, and whether there is one."""
        if self._batch is not None:
            return owner, self._batch[self.graph.destination[variants.edge[owner]]] == target
        if self.ends is not None:
            return torch.arange(owner.numel(), device=owner.device), torch.ones_like(owner, dtype=torch.bool)
        if not self.stages.outputs:
            return owner, torch.zeros_like(owner, dtype=torch.bool)
        rows = families[self.stages.family[self.stages.outputs[0]]]
        rows = rows if self._node_type is None else self.of_type(rows, self._node_type)
        place = self._find(rows, owner, self._nodes_of(target), variants)
        return place, place >= 0

    def place_in(self, rows: RowKeys, records: RowKeys) -> Tensor | None:
        """Return the positions of `records` among `rows`; None if they are the same rows."""
        return None if rows is records else rows.find(records.variant, records.node, self.graph.num_nodes)[0]

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
