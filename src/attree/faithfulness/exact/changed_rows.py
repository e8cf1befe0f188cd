"""The rows that a reduced edge changes in each call, and the rows on which the model runs for them.

A row is a pair (reduced edge, node). Nothing here depends on the network's weights.

The forward gets one list of rows for each family of stages. An operation combines the stages of a family, so they need
the same rows: all rows that change in any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.faithfulness.exact.layer_graph import LayerGraph, LayerShape
from attree.faithfulness.exact.stages import Stages
from attree.subject.roots import OutputLevel
from attree.tensors.arrays import Rows, expand, find, group, pointers, take_rows
from attree.tensors.memory import chunk_bounds


@dataclass(frozen=True)
class RowKeys:
    """Rows, sorted by (variant, node): row r is node `node[r]` in the variant `variant[r]` of the network.

    Attributes:
        variant: The variant, see `Variants`: as a rule the network with one edge reduced.
        node: The node.
    """

    variant: Tensor
    node: Tensor

    @classmethod
    def union(cls, parts: Sequence[RowKeys], num_nodes: int) -> RowKeys:
        """Return all rows of several lists, without duplicates; a single list is returned unchanged."""
        if len(parts) == 1:
            return parts[0]
        return cls.of_keys(torch.cat([part.keys(num_nodes) for part in parts]).unique(), num_nodes)

    @classmethod
    def of_keys(cls, keys: Tensor, num_nodes: int) -> RowKeys:
        """Return the rows of some keys; see `keys`."""
        variant = keys.div(num_nodes, rounding_mode="floor")
        return cls(variant, keys - variant * num_nodes)

    def keys(self, num_nodes: int) -> Tensor:
        """Return one number for each row, ascending."""
        return self.variant * num_nodes + self.node

    def at(self, positions: Tensor | slice) -> RowKeys:
        """Return some of the rows."""
        return RowKeys(self.variant[positions], self.node[positions])

    def find(self, variant: Tensor, node: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Return the positions of the rows of variants and nodes, and whether each exists."""
        return find(self.keys(num_nodes), variant * num_nodes + node)


@dataclass(frozen=True)
class Variants:
    """Variants of the network whose rows are computed together: one for each reduced edge, and bases.

    Deleting an edge (i -> j) of a GCN changes all messages into and out of j by one factor, the same for all edges that
    enter j. The network with this change alone is the *base* of these edges: their rows start from the base's rows, and
    only what follows from the lost message is computed for each edge. Bases come first, then variants without a base,
    then those with one.

    Attributes:
        edge: The reduced edge of each variant; for a base, one of its edges.
        of_edge: The variant of each edge of the chunk.
        num_bases: Number of bases.
        base: The base of each variant; -1 for none. None if there are no bases.
        first_copy: The first variant with a base.
    """

    edge: Tensor
    of_edge: Tensor
    num_bases: int = 0
    base: Tensor | None = None
    first_copy: int = 0

    @classmethod
    def alone(cls, edges: Tensor) -> Variants:
        """Return one variant for each edge, without bases."""
        return cls(edges, torch.arange(edges.numel(), device=edges.device), first_copy=edges.numel())

    @classmethod
    def with_bases(cls, edges: Tensor, node: Tensor, is_alone: Tensor) -> Variants:
        """Return variants of edges with one base for each node.

        Args:
            edges: The edges.
            node: The node that each edge enters.
            is_alone: Mask of the edges that need no base.
        """
        alone, others = is_alone.nonzero().view(-1), (~is_alone).nonzero().view(-1)
        of_base, base = node[others].unique(return_inverse=True)
        first = torch.empty_like(of_base).index_copy_(0, base, others)
        num_bases, first_copy = of_base.numel(), of_base.numel() + alone.numel()
        order = torch.cat([alone, others])
        of_edge = torch.empty_like(order)
        of_edge[order] = torch.arange(order.numel(), device=order.device) + num_bases
        bases = torch.cat([base.new_full((first_copy,), -1), base])
        return cls(torch.cat([edges[first], edges[order]]), of_edge, num_bases, bases, first_copy)

    def base_of(self, variant: Tensor) -> Tensor:
        """Return the base of each variant; -1 for none."""
        return torch.full_like(variant, -1) if self.base is None else take_rows(self.base, variant)


@dataclass(frozen=True)
class Changes:
    """Changed entries of a call's rows: edge `edge[c]` enters row `row[c]` and comes from record `sender[c]`.

    Attributes:
        row: Position of the row among the call's records.
        edge: The edge.
        source: The edge's source node.
        sender: The record of the source node in the previous call.
    """

    row: Tensor
    edge: Tensor
    source: Tensor
    sender: Tensor

    @property
    def num_entries(self) -> int:
        """Number of changed entries."""
        return self.row.numel()

    def at(self, positions: Tensor | slice) -> Changes:
        """Return some of the entries."""
        values = self.row, self.edge, self.source, self.sender
        if isinstance(positions, slice):
            return Changes(*(entries[positions] for entries in values))
        return Changes(*(take_rows(entries, positions) for entries in values))


DENSE_ENTRIES = 4096
"""Minimum number of entries for which the rows of one node are computed as dense blocks, which have a fixed cost."""

DENSE_DEGREE = 8
"""Minimum number of sources of a dense row, so that a reduction never removes all of them."""

BLOCK_BYTES = 4 * 2**20
"""Bytes of the scores of one dense block; blocks that fit into the CPU cache are several times faster."""


@dataclass(frozen=True)
class ChangedRows:
    """Rows to compute.

    Attributes:
        node: The node of each row.
        reduced: The reduced edge of each row.
        changes: The rows' changed entries, sorted by row; rows are positions in `node`.
    """

    node: Tensor
    reduced: Tensor
    changes: Changes

    def at(self, order: Tensor) -> ChangedRows:
        """Return some of the rows, with their changed entries."""
        place = torch.full_like(self.node, -1)
        place[order] = torch.arange(order.numel(), device=order.device)
        moved = take_rows(place, self.changes.row)
        entries = (moved >= 0).nonzero().view(-1)
        row, by_row = take_rows(moved, entries).sort(stable=True)
        changes = replace(self.changes.at(take_rows(entries, by_row)), row=row)
        return ChangedRows(take_rows(self.node, order), take_rows(self.reduced, order), changes)

    def slice(self, begin: int, end: int) -> ChangedRows:
        """Return the rows `begin` to `end`."""
        row = self.changes.row
        first, last = torch.searchsorted(row, row.new_tensor([begin, end])).tolist()
        changes = self.changes.at(slice(first, last))
        return ChangedRows(self.node[begin:end], self.reduced[begin:end], replace(changes, row=changes.row - begin))


@dataclass(frozen=True)
class RowGroup:
    """Rows that are computed together; their entries are numbered row by row.

    Attributes:
        rows: Positions of the rows among all rows to compute.
        ptr: The entries of row r are `ptr[r]:ptr[r + 1]`.
        entry_row: The row of each entry; None for a dense block, whose rows all have the same sources.
        source: The source node of each entry; for a dense block, of one row's entries.
        edge: The edge of each entry, likewise; None if only sources are needed.
        changes: Changed entries; rows are positions in the group.
        slot: The number of each changed entry.
        reduced: The numbers of the reduced entries.
    """

    rows: Tensor
    ptr: Tensor
    entry_row: Tensor | None
    source: Tensor
    edge: Tensor | None
    changes: Changes
    slot: Tensor
    reduced: Tensor


def row_groups(graph: LayerGraph, rows: ChangedRows, shape: LayerShape, memory: int) -> Iterator[RowGroup]:
    """Split rows into groups that take at most `memory` bytes each to compute; a single row may take more.

    Args:
        graph: The call's edges.
        rows: The rows.
        shape: The layer's shape.
        memory: Bytes of working memory.
    """
    degree = graph.entering.sizes[rows.node]
    _, inverse, count = rows.node.unique(return_inverse=True, return_counts=True)
    dense = (count[inverse] * degree >= DENSE_ENTRIES) & (degree >= DENSE_DEGREE)
    order = (rows.node + dense * graph.num_nodes).argsort(stable=True)
    rows, num_listed = rows.at(order), int((~dense).sum())

    for begin, end in chunk_bounds(degree[order[:num_listed]] * float(shape.width * 8 * 4 + 64), memory):
        part = rows.slice(begin, end)
        entry_row, place = expand(graph.entering.ptr, part.node)
        ptr, edge = pointers(graph.entering.sizes[part.node]), graph.entering.items[place] if shape.by_edge else None
        yield _group(graph, part, order[begin:end], ptr, entry_row, graph.entering_source[place], edge)
    nodes, sizes = rows.node[num_listed:].unique_consecutive(return_counts=True)
    first = num_listed
    for node, size in zip(nodes.tolist(), sizes.tolist(), strict=True):
        entering = slice(int(graph.entering.ptr[node]), int(graph.entering.ptr[node + 1]))
        source = graph.entering_source[entering]
        edge = graph.entering.items[entering] if shape.by_edge else None
        step = max(int(min(BLOCK_BYTES, memory) // (8 * shape.heads * source.numel())), 1)
        for begin in range(first, first + size, step):
            end = min(begin + step, first + size)
            ptr = torch.arange(end - begin + 1, device=graph.device) * source.numel()
            yield _group(graph, rows.slice(begin, end), order[begin:end], ptr, None, source, edge)
        first += size


def _group(
    graph: LayerGraph,
    rows: ChangedRows,
    positions: Tensor,
    ptr: Tensor,
    entry_row: Tensor | None,
    source: Tensor,
    edge: Tensor | None,
) -> RowGroup:
    """Return a group of rows, with the numbers of their changed and reduced entries."""
    slot = ptr[rows.changes.row] + graph.entering_rank[rows.changes.edge]
    enters = graph.enters(rows.reduced, rows.node).nonzero().view(-1)
    reduced = ptr[enters] + graph.entering_rank[rows.reduced[enters]]
    return RowGroup(positions, ptr, entry_row, source, edge, rows.changes, slot, reduced)


@dataclass(frozen=True)
class LaterPlan:
    """Update plan for a convolution whose input comes from earlier convolutions.

    *Senders* are the changed rows of its inputs, one input after another. For a heterogeneous graph, the senders that
    are sources are ordered by block, and the senders that are destinations by type (see `LayerGraph`).

    Attributes:
        senders: Positions of each input's changed rows among its rows; None if all of them changed.
        changes: The changed entries of the call's rows; their senders are positions among the senders that are sources.
        light: The changed entries of the rows that are updated.
        recomputed: Rows that are recomputed: their own features changed, or the reduced edge enters them.
        recomputed_sender: Position of the node of each such row among the senders that are destinations.
        unchanged: Mask of the recomputed rows whose own features did not change; their `recomputed_sender` is not
            read. None if all changed.
        groups: The recomputed rows in groups; None if the groups are formed when they are needed.
    """

    senders: tuple[Tensor | None, ...]
    changes: Changes
    light: Changes
    recomputed: Tensor
    recomputed_sender: Tensor
    unchanged: Tensor | None
    groups: list[RowGroup] | None


@dataclass(frozen=True)
class MessagePlan:
    """Update plan for a layer without attention that changed rows send messages to.

    Attributes:
        senders: Positions of the changed rows of the sources among their rows; None if all of them changed.
        has_new_features: Whether the features of senders changed; if not, only the weights of their messages did.
        sender_is_reached: Mask of the senders that the reduced edge enters.
        changes: The changed entries of the call's rows.
        moved: Rows whose own features changed.
        moved_sender: Position of the node of each such row among the changed rows of the destinations.
        targets: Like `senders`, for the destinations.
        first_copy: The first of the call's rows whose variant has a base.
        first_copied_entry: The first changed entry of such a row.
        reference: For each of these entries, the sender of the same node in the base; -1 if there is none. None if no
            variant has a base.
        reduced_reference: The same for the source of the reduced edge of each such row.
    """

    senders: Tensor | None
    has_new_features: bool
    sender_is_reached: Tensor
    changes: Changes
    moved: Tensor
    moved_sender: Tensor
    targets: Tensor | None
    first_copy: int
    first_copied_entry: int
    reference: Tensor | None = None
    reduced_reference: Tensor | None = None


class CopiedRows(NamedTuple):
    """Rows of a tensor that start from those of their base.

    Attributes:
        row: The rows.
        source: The row of the base for each of them.
    """

    row: Tensor
    source: Tensor


@dataclass(frozen=True)
class OutputRows:
    """Rows of one tensor that a call returns.

    Attributes:
        node: The destination of each row, in the call's numbering.
        among_records: Positions of the tensor's changed rows in the call's `records`; None if these are all records.
        place: Positions of these changed rows among all rows of the tensor; None if all rows change.
        copies: The rows of variants with a base; None if there are none.
    """

    node: Tensor
    among_records: Tensor | None
    place: Tensor | None
    copies: CopiedRows | None = None


@dataclass(frozen=True)
class RootRows:
    """Where the rows of a call's output find their nodes' own features among the rows of its input.

    Attributes:
        place: The rows that do; all others have recorded features.
        sender: The row of the input for each of these; None if no earlier call feeds it.
    """

    place: Tensor
    sender: Tensor | None


@dataclass(frozen=True)
class CallPlan:
    """Update plan for one call of a convolution.

    Attributes:
        records: The rows that change, with nodes in the call's numbering.
        outputs: The rows of each tensor that the call returns.
        later: The rest of the plan if the input comes from earlier convolutions; None if it is the model's input.
        messages: The same for a layer without attention.
        root: For a layer that reads its nodes' own features after its messages; else None.
    """

    records: RowKeys
    outputs: tuple[OutputRows, ...]
    later: LaterPlan | None
    messages: MessagePlan | None = None
    root: RootRows | None = None


@dataclass(frozen=True)
class ChunkPlan:
    """Update plan for a chunk of reduced edges.

    Attributes:
        variants: The variants of the network.
        calls: The plan of each call.
        rows: The rows of each family of stages.
        pairs: The pairs (target, edge) whose target changes.
        output_rows: The output row of each of these pairs.
        queries: For link outputs: the two ends of each pair's target as rows of the family that outputs read,
            [2, pairs], numbered within their types if there are several; else None.
        done: Number of finished pairs after this chunk.
    """

    variants: Variants
    calls: list[CallPlan]
    rows: list[RowKeys]
    pairs: Tensor
    output_rows: Tensor
    queries: Tensor | None
    done: int


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

    def entries(self, edges: Tensor, with_degrees: bool = True) -> Tensor:
        """Return an upper bound on the number of entries that change, over all calls, when each edge is reduced.

        Args:
            edges: The edges.
            with_degrees: Whether messages change that the destination of the edge sends in a call on the model's input.
        """
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
                if not feeds[call] and with_degrees:
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
