"""Attention reduction by exact row updates, for networks whose layers can be taken apart.

Reducing edge e = (i -> j) changes, in the first layer, only node j; in each later layer, only nodes that the changed
ones send to. The engine follows these (edge, node) records layer by layer for all reduced edges at once. A record
whose own features are unchanged is updated from the layer's kept sums,

    out' = (out - sum_c alpha_c x_c + sum_c beta_c x'_c) / (1 - sum_c alpha_c + sum_c beta_c),

over its changed entries c, with alpha the old weights and beta = exp(new score - log normaliser); a record whose own
features changed has its whole row recomputed. What happens to an edge does not depend on the target, so targets share
all records but the last layer's; only records on a way to some target are made.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.looped_graph import LoopedGraph, Rows, expand_rows
from attree.attribution.flows import chunk_bounds
from attree.attribution.pairs import Pairs
from attree.faithfulness.layer_algebra import States
from attree.faithfulness.protocol import Protocol
from attree.faithfulness.reduction import DEFAULT_MEMORY, Progress, Reduction
from attree.faithfulness.trace import LayerTrace, trace_network
from attree.models.attention_net import AttentionNet

SMALLEST_NORM = 1e-6
"""Where less than this is left of a softmax's denominator, its row is recomputed: a difference would lose digits."""


@dataclass(frozen=True)
class Records:
    """Changed nodes: record r says that reducing edge `edge[r]` changes node `node[r]`; sorted by (edge, node).

    Attributes:
        edge: Position of the reduced edge in the chunk.
        node: The changed node.
    """

    edge: Tensor
    node: Tensor

    def find(self, edge: Tensor, node: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Positions of given (edge, node) records, and whether each exists."""
        own, asked = self.edge * num_nodes + self.node, edge * num_nodes + node
        if own.numel() == 0:
            return torch.zeros_like(asked), torch.zeros_like(asked, dtype=torch.bool)
        place = torch.searchsorted(own, asked).clamp_(max=own.numel() - 1)
        return place, own[place] == asked


@dataclass(frozen=True)
class Changes:
    """Changed entries of one layer's rows: entry c says that `edge[c]` enters row `row[c]` from record `sender[c]`.

    `states` are the new states of the senders.
    """

    row: Tensor
    edge: Tensor
    sender: Tensor
    states: States


class ExactReducer:
    """Reduces edges of one forward pass of a network that can be taken apart (see `can_trace`).

    Args:
        net: The network.
        x: Node features.
        graph: The looped graph.
        memory: Bytes of working memory.

    Attributes:
        attention: What the network attended to in that forward pass.
    """

    def __init__(self, net: AttentionNet, x: Tensor, graph: LoopedGraph, memory: int = DEFAULT_MEMORY) -> None:
        self.net = net
        self.graph = graph
        self.memory = memory
        self.trace = trace_network(net, x, graph)
        self.attention = self.trace.attention

    @torch.no_grad()
    def reduce(
        self, pairs: Pairs, protocol: Protocol, with_probability: bool = False, progress: Progress | None = None
    ) -> Reduction:
        """Reduce every pair's edge, one at a time; pairs whose edge carries no flow change nothing."""
        graph, logits = self.graph, self.trace.logits
        flow = pairs.flow.nonzero().view(-1)
        target, edge = pairs.targets[pairs.owner[flow]], pairs.edges[flow]
        # Records come out sorted by (edge, target); so are the pairs taken.
        order = (edge * graph.num_nodes + target).argsort()
        flow, target, edge = flow[order], target[order], edge[order]

        result = Reduction.unchanged(pairs, logits, with_probability)
        unique_edges, first = _runs(edge)
        ways = self._ways(pairs.targets)
        for begin, end in chunk_bounds(self._cost(ways, unique_edges), self.memory):
            part = slice(int(first[begin]), int(first[end]))
            records, reduced = self._follow(unique_edges[begin:end], ways, protocol)
            place, found = records.find(
                torch.searchsorted(unique_edges[begin:end], edge[part]), target[part], graph.num_nodes
            )
            place, found = place[found], part.start + found.nonzero().view(-1)
            result.fill(flow[found], logits[target[found]], reduced[place])
            if progress is not None:
                progress(part.stop, flow.numel())
        return result

    def _ways(self, targets: Tensor) -> list[Rows]:
        """Per layer after the first, the edges that lead on towards some target, grouped by the node they leave."""
        graph, needed, ways = self.graph, targets.unique(), []
        for _ in range(len(self.trace.layers) - 1):
            _, place = expand_rows(graph.entering, needed)
            edges = graph.entering.edges[place]
            source = graph.source[edges]
            edges = edges[source.argsort(stable=True)]
            ptr = targets.new_zeros(graph.num_nodes + 1)
            torch.cumsum(source.bincount(minlength=graph.num_nodes), dim=0, out=ptr[1:])
            ways.append(Rows(ptr, edges))
            needed = source.unique()
        return ways[::-1]

    def _cost(self, ways: list[Rows], edges: Tensor) -> Tensor:
        """Bytes that following each reduced edge takes: its changed entries, each a few vectors wide."""
        entries = torch.ones(self.graph.num_nodes, dtype=torch.float64, device=self.graph.device)
        for rows in reversed(ways):
            onward = torch.zeros_like(entries)
            onward.index_add_(0, self.graph.source[rows.edges], entries[self.graph.destination[rows.edges]])
            entries = onward.clamp_(max=float(self.graph.num_edges)) + 1
        width = max(layer.states.value[0].numel() for layer in self.trace.layers)
        return entries[self.graph.destination[edges]] * (width * 8 * 6 + 128)

    def _follow(self, edges: Tensor, ways: list[Rows], protocol: Protocol) -> tuple[Records, Tensor]:
        """The last layer's records of some reduced edges, and the class scores there."""
        graph, layers = self.graph, self.trace.layers
        records = Records(torch.arange(edges.numel(), device=graph.device), graph.destination[edges])
        out = _LayerUpdate(graph, layers[0], edges, protocol, self.memory).first(records)
        for before, layer, rows in zip(layers, layers[1:], ways, strict=False):
            senders, states = records, layer.algebra.project(self.net.activation(before.algebra.finish(out)))
            sender, place = expand_rows(rows, senders.node)
            entered = rows.edges[place]
            key = senders.edge[sender] * graph.num_nodes + graph.destination[entered]
            key, row = key.unique(return_inverse=True)
            records = Records(key // graph.num_nodes, key % graph.num_nodes)
            update = _LayerUpdate(graph, layer, edges, protocol, self.memory)
            out = update.later(records, senders, Changes(row, entered, sender, states))
        return records, layers[-1].algebra.finish(out)


class _LayerUpdate:
    """New weighted sums of one layer's changed rows."""

    def __init__(self, graph: LoopedGraph, layer: LayerTrace, edges: Tensor, protocol: Protocol, memory: int) -> None:
        self.graph = graph
        self.layer = layer
        self.edges = edges
        self.protocol = protocol
        self.memory = memory

    def first(self, records: Records) -> Tensor:
        """First layer: the reduced edge is the only change, and its row's own features are as they were."""
        layer, edge = self.layer, self.edges
        out, alpha = layer.aggregated[records.node], layer.weights[edge]
        value = layer.states.value[self.graph.source[edge]]
        if self.protocol is Protocol.WEIGHT:
            return out - alpha.unsqueeze(-1) * value
        if self.protocol is Protocol.COEFFICIENT:
            beta = (-layer.log_norm[records.node]).exp()
        else:
            beta = torch.zeros_like(alpha)
        norm = 1 - alpha + beta
        out = (out + (beta - alpha).unsqueeze(-1) * value) / norm.unsqueeze(-1)
        lost = (norm < SMALLEST_NORM).any(dim=-1).nonzero().view(-1)
        if lost.numel():
            target = layer.states.target[records.node[lost]]
            out[lost] = self._rows(records, lost, target, None)
        return out

    def later(self, records: Records, senders: Records, changes: Changes) -> Tensor:
        """Later layers: rows whose own features changed are recomputed, the others are updated."""
        layer, graph, states = self.layer, self.graph, changes.states
        own, is_own = senders.find(records.edge, records.node, graph.num_nodes)
        target = layer.states.target[records.node]
        target[is_own] = states.target[own[is_own]]

        light = (~is_own)[changes.row]
        row, edge, sender = changes.row[light], changes.edge[light], changes.sender[light]
        alpha = layer.weights[edge]
        node = records.node[row]
        score = layer.algebra.score(states.source[sender], layer.states.target[node])
        beta = (score - layer.log_norm[node]).exp()
        shift = beta.unsqueeze(-1) * states.value[sender]
        shift -= alpha.unsqueeze(-1) * layer.states.value[graph.source[edge]]
        out = layer.aggregated[records.node].index_add_(0, row, shift)
        norm = torch.ones_like(out[..., 0]).index_add_(0, row, beta - alpha)
        heavy = (is_own | (norm < SMALLEST_NORM).any(dim=-1)).nonzero().view(-1)
        out /= norm.unsqueeze(-1)
        for begin, end in chunk_bounds(self._row_cost(records.node[heavy]), self.memory):
            chosen = heavy[begin:end]
            out[chosen] = self._rows(records, chosen, target[chosen], changes)
        return out

    def _row_cost(self, nodes: Tensor) -> Tensor:
        width = self.layer.states.value[0].numel()
        return self.graph.entering.degree[nodes].double() * (width * 8 * 4 + 64)

    def _rows(self, records: Records, chosen: Tensor, target: Tensor, changes: Changes | None) -> Tensor:
        """Whole rows of the chosen records, from their (possibly new) target states and changed senders."""
        layer, graph = self.layer, self.graph
        node, rows = records.node[chosen], graph.entering
        row, place = expand_rows(rows, node)
        source = graph.entering_source[place]
        degree = rows.degree[node]
        begin = degree.cumsum(0) - degree
        score = layer.algebra.score(layer.states.source[source], target[row])

        if changes is not None:
            position = torch.full_like(records.node, -1)
            position[chosen] = torch.arange(chosen.numel(), device=graph.device)
            mine = position[changes.row]
            kept = mine >= 0
            slot, sender = self._slot(begin, mine[kept], changes.edge[kept]), changes.sender[kept]
            score[slot] = layer.algebra.score(changes.states.source[sender], target[mine[kept]])

        reduced_edge = self.edges[records.edge[chosen]]
        enters = (graph.destination[reduced_edge] == node).nonzero().view(-1)
        reduced = self._slot(begin, enters, reduced_edge[enters])
        if self.protocol is Protocol.COEFFICIENT:
            score[reduced] = 0.0
        elif self.protocol is Protocol.REMOVAL:
            score[reduced] = -torch.inf
        weights = _row_softmax(score, row, chosen.numel())
        if self.protocol is Protocol.WEIGHT:
            weights[reduced] = 0.0

        out = layer.aggregated.new_zeros(chosen.numel(), *layer.aggregated.shape[1:])
        out.index_add_(0, row, weights.unsqueeze(-1) * layer.states.value[source])
        if changes is not None:
            moved = changes.states.value[sender] - layer.states.value[source[slot]]
            out.index_add_(0, row[slot], weights[slot].unsqueeze(-1) * moved)
        return out

    def _slot(self, begin: Tensor, row: Tensor, edge: Tensor) -> Tensor:
        """Where an edge that enters a row stands in the list of all rows' entries."""
        return begin[row] + self.graph.entering_rank[edge]


def _row_softmax(score: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """Softmax over each row's entries; a row whose every score is -inf gets zeros."""
    peak = score.new_full((num_rows, score.shape[1]), -torch.inf)
    peak.scatter_reduce_(0, row.unsqueeze(-1).expand_as(score), score, "amax")
    peak = torch.where(peak.isinf(), torch.zeros_like(peak), peak)
    raised = (score - peak[row]).exp()
    norm = torch.zeros_like(peak).index_add_(0, row, raised)
    return raised / torch.where(norm > 0, norm, torch.ones_like(norm))[row]


def _runs(ascending: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct values of a sorted tensor, and where each one's run begins, with the total at the end."""
    values, counts = ascending.unique_consecutive(return_counts=True)
    first = counts.new_zeros(counts.numel() + 1)
    torch.cumsum(counts, dim=0, out=first[1:])
    return values, first
