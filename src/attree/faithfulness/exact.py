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

import torch
from torch import Tensor

from attree.attention.looped_graph import LoopedGraph, Rows, expand_rows, group_edges
from attree.attribution.flows import chunk_bounds
from attree.attribution.pairs import Pairs
from attree.errors import expect
from attree.faithfulness.protocol import Protocol
from attree.faithfulness.recompute import ChangedRows, RowRecompute
from attree.faithfulness.records import Changes, Records
from attree.faithfulness.reduction import DEFAULT_MEMORY, Progress, Reduction
from attree.faithfulness.trace import LayerTrace, trace_network
from attree.models.attention_net import AttentionNet


class ExactReducer:
    """Reduces edges of one forward pass of a network that can be taken apart (see `can_trace`).

    Args:
        net: The network.
        x: Node features.
        graph: The looped graph.
        memory: Bytes of working memory; what one reduced edge changes is never cut.

    Attributes:
        attention: What the network attended to in that forward pass.
    """

    def __init__(self, net: AttentionNet, x: Tensor, graph: LoopedGraph, memory: int = DEFAULT_MEMORY) -> None:
        expect(memory > 0, "memory", "a number of bytes > 0", memory)
        self.net = net
        self.graph = graph
        self.memory = memory
        self.trace = trace_network(net, x, graph, memory)
        self.attention = self.trace.attention

    @torch.no_grad()
    def reduce(
        self, pairs: Pairs, protocol: Protocol, with_probability: bool = False, progress: Progress | None = None
    ) -> Reduction:
        """Reduce every pair's edge, one at a time; pairs whose edge carries no flow change nothing."""
        graph, logits = self.graph, self.trace.logits
        flow = pairs.flow.nonzero().view(-1)
        target, edge = pairs.targets[pairs.owner[flow]], pairs.edges[flow]
        # By the node that edges enter: rows of one node are then computed together.
        place = graph.entering.ptr[graph.destination[edge]] + graph.entering_rank[edge]
        order = (place * graph.num_nodes + target).argsort()
        flow, target, place = flow[order], target[order], place[order]

        result = Reduction.unchanged(pairs, logits, with_probability)
        places, first = _runs(place)
        edges = graph.entering.edges[places]
        ways = self._ways(pairs.targets)
        for begin, end in chunk_bounds(self._cost(ways, edges), self.memory):
            part = slice(int(first[begin]), int(first[end]))
            records, reduced = self._follow(edges[begin:end], ways, protocol)
            owner = torch.searchsorted(places[begin:end], place[part])
            found_at, found = records.find(owner, target[part], graph.num_nodes)
            found_at, found = found_at[found], part.start + found.nonzero().view(-1)
            result.fill(flow[found], logits[target[found]], reduced[found_at])
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
            by_source = group_edges(source, graph.num_nodes)
            ways.append(Rows(by_source.ptr, edges[by_source.edges]))
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
        self.recompute = RowRecompute(graph, layer, protocol, memory)

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
        self._restore(out, _unsafe(norm), records, layer.states.target[records.node], None)
        return out

    def later(self, records: Records, senders: Records, changes: Changes) -> Tensor:
        """Later layers: rows whose own features changed are recomputed, the others are updated."""
        layer, graph, states = self.layer, self.graph, changes.states
        own, is_own = senders.find(records.edge, records.node, graph.num_nodes)
        target = layer.states.target[records.node]
        target[is_own] = states.target[own[is_own]]

        light = changes.where(~is_own[changes.row])
        node = records.node[light.row]
        alpha = layer.weights[light.edge]
        score = layer.algebra.score(states.source[light.sender], layer.states.target[node])
        beta = (score - layer.log_norm[node]).exp()
        shift = beta.unsqueeze(-1) * states.value[light.sender]
        shift -= alpha.unsqueeze(-1) * layer.states.value[graph.source[light.edge]]
        out = layer.aggregated[records.node].index_add_(0, light.row, shift)
        norm = torch.ones_like(out[..., 0]).index_add_(0, light.row, beta - alpha)
        out /= norm.unsqueeze(-1)
        self._restore(out, is_own | _unsafe(norm), records, target, changes)
        return out

    def _restore(self, out: Tensor, stale: Tensor, records: Records, target: Tensor, changes: Changes | None) -> None:
        """Compute the stale ones among the rows `out` anew."""
        chosen = stale.nonzero().view(-1)
        if chosen.numel() == 0:
            return
        if changes is not None:
            place = torch.full_like(records.node, -1)
            place[chosen] = torch.arange(chosen.numel(), device=chosen.device)
            kept = changes.where(stale[changes.row])
            changes = Changes(place[kept.row], kept.edge, kept.sender, kept.states)
        reduced = self.edges[records.edge[chosen]]
        out[chosen] = self.recompute(ChangedRows(records.node[chosen], target[chosen], reduced, changes))


def _unsafe(norm: Tensor) -> Tensor:
    """Rows [n] that an update gets wrong, in some head: where little is left of a denominator, a difference loses
    digits (10 of 16 are kept); where it has grown by as much, old and new sums may overflow.
    """
    least = torch.finfo(norm.dtype).eps ** 0.375
    return ~((norm > least) & (norm < 1 / least)).all(dim=-1)


def _runs(ascending: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct values of a sorted tensor, and where each one's run begins, with the total at the end."""
    values, counts = ascending.unique_consecutive(return_counts=True)
    first = counts.new_zeros(counts.numel() + 1)
    torch.cumsum(counts, dim=0, out=first[1:])
    return values, first
