"""Pairs of nodes that a prediction takes through attention over all nodes: the strongest, and how far they reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attree.attention.global_attention import GlobalCall
from attree.attribution.global_walk import stream_global_walks
from attree.subject import Subject
from attree.subject.global_trace import GlobalTrace, global_trace
from attree.tensors.limits import WALK_MEMORY

if TYPE_CHECKING:
    import pandas as pd

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
    trace = global_trace(subject)
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
