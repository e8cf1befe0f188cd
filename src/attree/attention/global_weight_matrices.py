"""Weights of attention over all nodes: a matrix, a product of two thin matrices, or a list of pairs.

A call of such attention works on a *dense batch*: B graphs with n places each, some of which are padding. The weights
are used in three ways, by the same three functions of each kind: `mix` adds up values with them, `pull` takes a row
vector r back through them (the step of GAtt), `rows` lists the weights of some queries. The matrix of a linear
attention is never built for `mix` and `pull`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reduced:
    """Pairs of attention over all nodes to reduce, as places in the dense batch, [R] each.

    Attributes:
        graph: The graph of each pair.
        query: The place that receives; -1 for all places.
        key: The place that is read.
    """

    graph: Tensor
    query: Tensor
    key: Tensor

    def mask(self, num_graphs: int, num_places: int) -> Tensor:
        """Return which pairs are reduced, [B, n, n]: query, then key."""
        reduced = torch.zeros(num_graphs, num_places, num_places, dtype=torch.bool, device=self.graph.device)
        everywhere = self.query < 0
        reduced[self.graph[~everywhere], self.query[~everywhere], self.key[~everywhere]] = True
        reduced.transpose(1, 2)[self.graph[everywhere], self.key[everywhere]] = True
        return reduced


class GlobalWeights(ABC):
    """Weights of one call, for every query, key and head; [B, n, heads, channels] is the shape of values."""

    @abstractmethod
    def mix(self, values: Tensor) -> Tensor:
        """Return, for each query, the sum of the keys' values with their weights."""

    @abstractmethod
    def pull(self, r: Tensor) -> Tensor:
        """Return the product of row vectors with the weights, averaged over heads: [T, B, n] for [T, B, n]."""

    @abstractmethod
    def rows(self, graph: int, queries: Tensor) -> Tensor:
        """Return the weights of some queries of one graph, averaged over heads, [queries, n]."""

    @abstractmethod
    def without(self, reduced: Reduced, deletes: bool) -> GlobalWeights:
        """Return the weights with some pairs reduced to 0; if they are deleted, the others add up to 1 again."""


@dataclass(frozen=True)
class DenseWeights(GlobalWeights):
    """A matrix of weights.

    Attributes:
        weights: [B, heads, n, n]: query, then key.
    """

    weights: Tensor

    def mix(self, values: Tensor) -> Tensor:
        return torch.einsum("bhij,bjhd->bihd", self.weights, values)

    def pull(self, r: Tensor) -> Tensor:
        return torch.einsum("tbi,bij->tbj", r, self.weights.mean(dim=1).to(r.dtype))

    def rows(self, graph: int, queries: Tensor) -> Tensor:
        return self.weights[graph, :, queries].mean(dim=0)

    def without(self, reduced: Reduced, deletes: bool) -> DenseWeights:
        if reduced.graph.unique().numel() == reduced.graph.numel() and bool((reduced.query >= 0).all()):
            return DenseWeights(self._without_one_each(reduced, deletes))
        mask = reduced.mask(self.weights.shape[0], self.weights.shape[2])
        weights = self.weights.masked_fill(mask.unsqueeze(1), 0.0)
        if not deletes:
            return DenseWeights(weights)
        total = self.weights.sum(dim=-1, keepdim=True)
        is_softmax = (total - 1).abs() < torch.finfo(total.dtype).eps ** 0.5
        is_touched = mask.any(dim=-1)[:, None, :, None] & is_softmax
        # Only the rows of these queries: a division would change the others by rounding.
        return DenseWeights(torch.where(is_touched, _divided(weights, weights.sum(dim=-1, keepdim=True)), weights))

    def _without_one_each(self, reduced: Reduced, deletes: bool) -> Tensor:
        """Return the weights with at most one pair of each graph reduced: many copies of a graph at once."""
        before = self.weights[reduced.graph, :, reduced.query]
        after = before.clone()
        after[torch.arange(reduced.key.numel(), device=after.device), :, reduced.key] = 0.0
        if deletes:
            total = before.sum(dim=-1, keepdim=True)
            is_softmax = (total - 1).abs() < torch.finfo(total.dtype).eps ** 0.5
            after = torch.where(is_softmax, _divided(after, after.sum(dim=-1, keepdim=True)), after)
        weights = self.weights.clone()
        weights[reduced.graph, :, reduced.query] = after
        return weights


@dataclass(frozen=True)
class KernelWeights(GlobalWeights):
    """Linear attention: weights (q_i . k_j + c [i = j]) / (q_i . sum of k + c + epsilon), never built as a matrix.

    The sum runs over all places that the module sums over, also over padding.

    Attributes:
        queries: [B, n, heads, m].
        keys: [B, n, heads, m].
        to_itself: The constant c that each place adds for itself.
        epsilon: Term of the denominator.
        changed: Pairs whose weight is 0; None if there are none.
        deletes: Whether these pairs also leave the denominators.
    """

    queries: Tensor
    keys: Tensor
    to_itself: float = 0.0
    epsilon: float = 0.0
    changed: Reduced | None = None
    deletes: bool = False

    def _denominators(self) -> Tensor:
        total = torch.einsum("bihm,bhm->bih", self.queries, self.keys.sum(dim=1)) + self.to_itself + self.epsilon
        if self.changed is not None and self.deletes:
            graph, query, _, products = self._changes()
            total = total.index_put((graph, query), -products, accumulate=True)
        return total

    def _changes(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return graph, query, key and q . k (with c) of all reduced pairs, one entry for each query."""
        assert self.changed is not None
        graph, query, key = _single_pairs(self.changed, self.queries.shape[1])
        products = torch.einsum("rhm,rhm->rh", self.queries[graph, query], self.keys[graph, key])
        return graph, query, key, products + self.to_itself * (query == key).unsqueeze(1)

    def mix(self, values: Tensor) -> Tensor:
        sums = torch.einsum("bjhm,bjhd->bhmd", self.keys, values)
        total = torch.einsum("bihm,bhmd->bihd", self.queries, sums) + self.to_itself * values
        if self.changed is not None:
            graph, query, key, products = self._changes()
            total = total.index_put((graph, query), -products.unsqueeze(-1) * values[graph, key], accumulate=True)
        return _divided(total, self._denominators().unsqueeze(-1))

    def pull(self, r: Tensor) -> Tensor:
        scaled = _divided(r.unsqueeze(-1), self._denominators().to(r.dtype))
        sums = torch.einsum("tbih,bihm->tbhm", scaled, self.queries.to(r.dtype))
        pulled = torch.einsum("tbhm,bjhm->tbjh", sums, self.keys.to(r.dtype))
        pulled = pulled + self.to_itself * scaled
        if self.changed is not None:
            graph, query, key, products = self._changes()
            row = torch.arange(r.shape[0], device=r.device).unsqueeze(1)
            lost = scaled[:, graph, query] * products.to(r.dtype)
            pulled = pulled.index_put((row, graph, key), -lost, accumulate=True)
        return pulled.mean(dim=-1)

    def rows(self, graph: int, queries: Tensor) -> Tensor:
        products = torch.einsum("ihm,jhm->ijh", self.queries[graph, queries], self.keys[graph])
        products[torch.arange(queries.numel(), device=queries.device), queries] += self.to_itself
        if self.changed is not None:
            graphs, query, key, _ = self._changes()
            row, place = (queries.unsqueeze(1) == query[graphs == graph]).nonzero().unbind(1)
            products[row, key[graphs == graph][place]] = 0.0
        return _divided(products, self._denominators()[graph, queries].unsqueeze(1)).mean(dim=-1)

    def without(self, reduced: Reduced, deletes: bool) -> KernelWeights:
        return KernelWeights(self.queries, self.keys, self.to_itself, self.epsilon, reduced, deletes)


@dataclass(frozen=True)
class ListedWeights(GlobalWeights):
    """Weights of listed pairs of places, as of attention along random or expander edges.

    Attributes:
        query: The place that receives, counted through all graphs, [P].
        key: The place that is read, [P].
        weights: [P, heads].
        num_places: Number of places n of each graph.
    """

    query: Tensor
    key: Tensor
    weights: Tensor
    num_places: int

    def mix(self, values: Tensor) -> Tensor:
        flat = values.flatten(0, 1)
        mixed = torch.zeros_like(flat).index_add_(0, self.query, self.weights.unsqueeze(-1) * flat[self.key])
        return mixed.view_as(values)

    def pull(self, r: Tensor) -> Tensor:
        flat = r.flatten(1)
        pulled = torch.zeros_like(flat)
        pulled.index_add_(1, self.key, flat[:, self.query] * self.weights.mean(dim=1).to(r.dtype))
        return pulled.view_as(r)

    def rows(self, graph: int, queries: Tensor) -> Tensor:
        first, count = graph * self.num_places, self.num_places
        inside = (self.query >= first) & (self.query < first + count)
        rows = self.weights.new_zeros(count, count)
        where = (self.query[inside] - first, self.key[inside] - first)
        return rows.index_put(where, self.weights[inside].mean(dim=1), accumulate=True)[queries]

    def without(self, reduced: Reduced, deletes: bool) -> ListedWeights:
        graph, query, key = _single_pairs(reduced, self.num_places)
        first, total_places = graph * self.num_places, int(self.query.max()) + 1 if self.query.numel() else 1
        stride = max(total_places, int(self.key.max()) + 1 if self.key.numel() else 1) + self.num_places
        is_reduced = torch.isin(self.query * stride + self.key, (first + query) * stride + first + key)
        weights = self.weights.masked_fill(is_reduced.unsqueeze(1), 0.0)
        if deletes:
            before, after = (_sums(values, self.query, stride) for values in (self.weights, weights))
            is_softmax = (before - 1).abs() < torch.finfo(before.dtype).eps ** 0.5
            touched = torch.zeros(stride, dtype=torch.bool, device=key.device)
            touched[self.query[is_reduced]] = True
            scaled = _divided(weights, after[self.query])
            weights = torch.where((is_softmax & touched.unsqueeze(1))[self.query], scaled, weights)
        return ListedWeights(self.query, self.key, weights, self.num_places)


def _sums(values: Tensor, index: Tensor, count: int) -> Tensor:
    return values.new_zeros(count, *values.shape[1:]).index_add_(0, index, values)


def _single_pairs(reduced: Reduced, num_places: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return graph, query and key of each pair, with one entry for each query where all queries are meant."""
    everywhere = reduced.query < 0
    graph, key = reduced.graph[everywhere], reduced.key[everywhere]
    queries = torch.arange(num_places, device=key.device).repeat(key.numel())
    parts = (
        torch.cat([reduced.graph[~everywhere], graph.repeat_interleave(num_places)]),
        torch.cat([reduced.query[~everywhere], queries]),
        torch.cat([reduced.key[~everywhere], key.repeat_interleave(num_places)]),
    )
    pairs = torch.stack(parts).unique(dim=1)
    return pairs[0], pairs[1], pairs[2]


def _divided(values: Tensor, total: Tensor) -> Tensor:
    """Return values / total; 0 where the total is 0, because a query without keys receives nothing."""
    return values / total.where(total != 0, 1.0)
