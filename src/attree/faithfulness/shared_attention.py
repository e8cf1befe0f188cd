"""Attention over all nodes in copies of graphs: each query's softmax is updated by the keys that changed.

`SharedAttention` holds one recorded call of `nn.MultiheadAttention` over dense batches of graphs. For copies of these
graphs, in which some rows changed or some pairs are cut, it returns the output in O(channels) per query and changed
key. With w_c = weight and x_c = value of key c before, w'_c = exp(new score - old log normaliser) and x'_c after,

    out' = (out - sum_c w_c x_c + sum_c w'_c x'_c) / (1 - sum_c w_c + sum_c w'_c).

A query that changed itself, or of which little is left, is computed in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attree.subject import Part
from attree.tensors.precision import same

MANY = 0.5
"""The share of changed rows from which a part of the model is computed in full."""

LITTLE = 1e-3
"""The share of a softmax below which what is left of it is computed from scores: a difference would be inexact."""


@dataclass(frozen=True)
class Removed:
    """At most one pair of attention over all nodes for each copy, which is cut from it.

    Attributes:
        copy: The copy, [K], ascending.
        query: The place that does not read the key; -1 for all places.
        key: The place that is not read.
        deletes: Whether the key leaves the softmax; otherwise its weight becomes 0.
    """

    copy: Tensor
    query: Tensor
    key: Tensor
    deletes: bool


@dataclass
class SharedAttention:
    """One recorded call of multi-head self-attention over dense batches of graphs.

    Attributes:
        module: The module.
        x: What it read, [B, n, channels].
        queries: The queries, multiplied by the scale of scores, [B, n, heads, d].
        keys: [B, n, heads, d].
        values: [B, n, heads, d].
        bias: What is added to scores, [B or 1, heads or 1, n or 1, n]; None for nothing.
        normaliser: Logarithm of the sum of exp(scores), [B, n, heads].
        weights: [B, heads, n, n].
        mixed: [B, n, heads, d].
        result: The output, [B, n, channels].
    """

    module: nn.MultiheadAttention
    x: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    bias: Tensor | None
    normaliser: Tensor
    weights: Tensor
    mixed: Tensor
    result: Tensor

    @classmethod
    def of(
        cls, module: nn.MultiheadAttention, args: Any, kwargs: Any, output: Tensor, part: Part
    ) -> SharedAttention | None:
        """Return the record of a call; None if it is no attention of the nodes of each graph to each other."""
        if module.bias_k is not None or module.add_zero_attn or module.in_proj_weight is None:
            return None
        named = _named(args, kwargs)
        x = named["query"]
        if x is not named["key"] or x is not named["value"] or x.dim() != 3:
            return None
        x = (x if module.batch_first else x.transpose(0, 1)).detach().clone()
        if x.shape[0] != part.count or x.shape[1] != int(part.bounds[0].diff().max()):
            return None
        queries, keys, values = _projected(module, x)
        bias = _bias(named.get("attn_mask"), named.get("key_padding_mask"), x.shape[0], module.num_heads, x.dtype)
        scores = torch.einsum("bihd,bjhd->bhij", queries, keys)
        scores = scores if bias is None else scores + bias
        normaliser = scores.logsumexp(dim=-1)
        weights = (scores - normaliser.unsqueeze(-1)).exp()
        mixed = torch.einsum("bhij,bjhd->bihd", weights, values)
        # Rows are compared number by number, so the result is what the module returned, without other rounding.
        result = (output if module.batch_first else output.transpose(0, 1)).detach().clone()
        if not same(module.out_proj(mixed.flatten(2)), result):
            return None
        return cls(
            module,
            x,
            queries,
            keys,
            values,
            bias,
            normaliser.transpose(1, 2).contiguous(),
            weights,
            mixed,
            result,
        )

    def input_of(self, args: Any, kwargs: Any, copies: Tensor, width: int) -> Tensor | None:
        """Return what the module reads in a pass over copies; None if it is called in another way than before."""
        named = _named(args, kwargs)
        x = named["query"]
        if x is not named["key"] or x is not named["value"] or x.dim() != 3:
            return None
        x = x if self.module.batch_first else x.transpose(0, 1)
        if x.shape[:2] != (copies.numel(), width):
            return None
        bias = _bias(named.get("attn_mask"), named.get("key_padding_mask"), x.shape[0], self.module.num_heads, x.dtype)
        before = self._bias_of(copies, width)
        if bias is None or before is None:
            other = before if bias is None else bias
            return x if other is None or not bool((other != 0).any()) else None
        return x if torch.equal(*torch.broadcast_tensors(before, bias)) else None

    def _bias_of(self, graph: Tensor, width: int) -> Tensor | None:
        """Return what is added to the scores of graphs, [R or 1, heads or 1, n or 1, n]; None for nothing."""
        if self.bias is None:
            return None
        bias = (self.bias[graph] if self.bias.shape[0] > 1 else self.bias)[..., :width]
        return bias[:, :, :width] if bias.shape[2] > 1 else bias

    def output(self, x: Tensor, changed: Tensor, copies: Tensor, removed: Removed | None) -> tuple[Tensor, Tensor]:
        """Return the output for copies, and the positions of the rows that may differ from the recorded ones.

        Args:
            x: What the module reads, [C, n, channels].
            changed: The positions of its rows that differ, among all rows.
            copies: The graph of each copy.
            removed: The pairs that are cut.
        """
        num_copies, width = x.shape[:2]
        copy, place = changed // width, changed % width
        counts = copy.bincount(minlength=num_copies)
        most = int(counts.max()) if changed.numel() else 0
        everyone = torch.arange(num_copies * width, device=x.device)
        if most > MANY * width:
            return self._in_full(x, copies, removed), everyone
        cuts = None if removed is None or not removed.copy.numel() else removed
        if not changed.numel() and (cuts is None or bool((cuts.query >= 0).all())):
            result = self.result[:, :width].index_select(0, copies)
            if cuts is None:
                return result, changed
            rows = self._rows(x, cuts.copy, cuts.query, copies, None, cuts)
            result[cuts.copy, cuts.query] = self.module.out_proj(rows.flatten(1))
            return result, cuts.copy * width + cuts.query
        changed_places = None
        if changed.numel():
            first = counts.cumsum(0) - counts
            rank = torch.arange(changed.numel(), device=x.device) - first[copy]
            changed_places = ChangedPlaces(copy, place, rank, most, *_projected(self.module, x.flatten(0, 1)[changed]))
        mixed, again = self._updated(x, copies, changed_places, cuts)
        rows = again if changed_places is None else torch.cat([again, changed]).unique()
        if rows.numel():
            of_copy, of_place = rows // width, rows % width
            mixed[of_copy, of_place] = self._rows(x, of_copy, of_place, copies, changed_places, cuts)
        return self.module.out_proj(mixed.flatten(2)), everyone

    def _updated(
        self, x: Tensor, copies: Tensor, changed_places: ChangedPlaces | None, cuts: Removed | None
    ) -> tuple[Tensor, Tensor]:
        """Return mixed values of all places, updated by the keys that changed, and the rows to compute in full."""
        num_copies, width = x.shape[:2]
        mixed = self.mixed[:, :width].index_select(0, copies)
        total = mixed.new_ones(mixed.shape[:3])
        for rank in range(0 if changed_places is None else changed_places.most):
            assert changed_places is not None
            number = (changed_places.rank == rank).nonzero().view(-1)
            copy, place = changed_places.copy[number], changed_places.place[number]
            graph = copies[copy]
            before = self.weights[graph, :, :width, place].transpose(1, 2)  # [R, n, heads]
            after = self._scores(self.queries[:, :width], graph, changed_places.keys[number])
            if self.bias is not None:
                after = after + self._bias_of_keys(graph, place, width)
            after = (after - self.normaliser[graph, :width]).exp()
            added = after
            if cuts is not None:
                added, after = _without(after, copy, place, cuts)
            everyone = copy.numel() == num_copies
            difference = after.unsqueeze(-1) * changed_places.values[number].unsqueeze(1)
            difference -= before.unsqueeze(-1) * self.values[graph, place].unsqueeze(1)
            if everyone:
                mixed += difference
                total += added - before
            else:
                mixed[copy] += difference
                total[copy] += added - before
        if cuts is not None:
            self._cut(mixed, total, copies, changed_places, cuts)
        is_little = (total < LITTLE).any(dim=2)
        mixed /= total.unsqueeze(-1)
        return mixed, is_little.flatten().nonzero().view(-1)

    def _cut(
        self, mixed: Tensor, total: Tensor, copies: Tensor, changed_places: ChangedPlaces | None, cuts: Removed
    ) -> None:
        """Take recorded entries of keys that did not change from sums."""
        width = mixed.shape[1]
        stays = torch.ones_like(cuts.copy, dtype=torch.bool)
        if changed_places is not None:
            stays = ~torch.isin(cuts.copy * width + cuts.key, changed_places.copy * width + changed_places.place)
        copy, key, query = cuts.copy[stays], cuts.key[stays], cuts.query[stays]
        single = (query >= 0).nonzero().view(-1)
        all_queries = (query < 0).nonzero().view(-1)
        for cut_ids, index in ((single, query[single]), (all_queries, None)):
            if not cut_ids.numel():
                continue
            where, graph, of_key = copy[cut_ids], copies[copy[cut_ids]], key[cut_ids]
            value = self.values[graph, of_key]
            if index is None:
                weight = self.weights[graph, :, :width, of_key].transpose(1, 2)
                mixed[where] -= weight.unsqueeze(-1) * value.unsqueeze(1)
                if cuts.deletes:
                    total[where] -= weight
            else:
                weight = self.weights[graph, :, index, of_key]
                mixed[where, index] -= weight.unsqueeze(-1) * value
                if cuts.deletes:
                    total[where, index] -= weight

    def _scores(self, queries: Tensor, graph: Tensor, keys: Tensor) -> Tensor:
        """Return the scores of the recorded queries of graphs with new keys, [R, n, heads]."""
        if not graph.numel():
            return queries.new_zeros(0, *queries.shape[1:3])
        graphs, counts = graph.unique_consecutive(return_counts=True)
        parts = [
            torch.einsum("nhd,rhd->rnh", queries[number], of_graph)
            for number, of_graph in zip(graphs.tolist(), keys.split(counts.tolist()), strict=True)
        ]
        return torch.cat(parts)

    def _bias_of_keys(self, graph: Tensor, place: Tensor, width: int) -> Tensor:
        """Return what is added to the scores of one key of each row, [R, n or 1, heads or 1]."""
        assert self.bias is not None
        bias = self.bias[graph if self.bias.shape[0] > 1 else torch.zeros_like(graph), :, :width, place]
        return bias.transpose(1, 2)

    def _bias_of_rows(self, graph: Tensor, place: Tensor, width: int) -> Tensor:
        """Return what is added to the scores of one query of each row, [R, heads or 1, n]."""
        assert self.bias is not None
        graph = graph if self.bias.shape[0] > 1 else torch.zeros_like(graph)
        return self.bias[graph, :, place if self.bias.shape[2] > 1 else torch.zeros_like(place), :width]

    def _rows(
        self,
        x: Tensor,
        copy: Tensor,
        place: Tensor,
        copies: Tensor,
        changed_places: ChangedPlaces | None,
        cuts: Removed | None,
    ) -> Tensor:
        """Return the mixed values of some places from their scores, [R, heads, d]."""
        width, graph = x.shape[1], copies[copy]
        queries = self.queries[graph, place]
        if changed_places is not None:
            number, is_new = changed_places.find(copy, place, width)
            queries[is_new] = changed_places.queries[number[is_new]]
        graphs, counts = graph.unique_consecutive(return_counts=True)
        split = list(zip(graphs.tolist(), counts.tolist(), strict=True))
        scores = torch.cat(
            [
                torch.einsum("rhd,nhd->rhn", part, self.keys[number, :width])
                for (number, _), part in zip(split, queries.split(counts.tolist()), strict=True)
            ]
        )
        joined = [] if changed_places is None else list(changed_places.of_copies(copy))
        for row, number in joined:
            assert changed_places is not None
            scores[row, :, changed_places.place[number]] = torch.einsum(
                "rhd,rhd->rh", queries[row], changed_places.keys[number]
            )
        if self.bias is not None:
            scores = scores + self._bias_of_rows(graph, place, width)
        is_cut = None if cuts is None else _is_cut(scores, copy, place, cuts)
        if is_cut is not None and cuts is not None and cuts.deletes:
            scores = scores.masked_fill(is_cut, -torch.inf)
        weights = scores.softmax(dim=-1).nan_to_num(0.0)  # a query without keys receives nothing
        if is_cut is not None and cuts is not None and not cuts.deletes:
            weights = weights.masked_fill(is_cut, 0.0)
        mixed = torch.cat(
            [
                torch.einsum("rhn,nhd->rhd", part, self.values[number, :width])
                for (number, _), part in zip(split, weights.split(counts.tolist()), strict=True)
            ]
        )
        for row, number in joined:
            assert changed_places is not None
            change = changed_places.values[number] - self.values[graph[row], changed_places.place[number]]
            mixed[row] += weights[row, :, changed_places.place[number]].unsqueeze(-1) * change
        return mixed

    def _in_full(self, x: Tensor, copies: Tensor, removed: Removed | None) -> Tensor:
        """Return the output computed from all queries and keys."""
        width = x.shape[1]
        queries, keys, values = (part.transpose(1, 2) for part in _projected(self.module, x))
        scores = queries @ keys.transpose(2, 3)
        bias = self._bias_of(copies, width)
        if bias is not None:
            scores += bias
        if removed is not None and removed.copy.numel():
            is_cut = torch.zeros(x.shape[0], width, width, dtype=torch.bool, device=x.device)
            single = removed.query >= 0
            is_cut[removed.copy[single], removed.query[single], removed.key[single]] = True
            is_cut.transpose(1, 2)[removed.copy[~single], removed.key[~single]] = True
            is_cut = is_cut.unsqueeze(1)
            if removed.deletes:
                weights = scores.masked_fill_(is_cut, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
            else:
                weights = scores.softmax(dim=-1).masked_fill(is_cut, 0.0)
        else:
            weights = scores.softmax(dim=-1)
        mixed: Tensor = self.module.out_proj((weights @ values).transpose(1, 2).flatten(2))
        return mixed


@dataclass(frozen=True)
class ChangedPlaces:
    """The places of copies whose inputs changed, ascending, with their new projections.

    Attributes:
        copy: The copy of each.
        place: Its place.
        rank: Its number among those of its copy.
        most: The largest number of them in a copy.
        queries: [R, heads, d], multiplied by the scale of scores.
        keys: [R, heads, d].
        values: [R, heads, d].
    """

    copy: Tensor
    place: Tensor
    rank: Tensor
    most: int
    queries: Tensor
    keys: Tensor
    values: Tensor

    def find(self, copy: Tensor, place: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the number of each place among them, and whether it is one of them."""
        keys, searched_keys = self.copy * width + self.place, copy * width + place
        number = torch.searchsorted(keys, searched_keys).clamp(max=keys.numel() - 1)
        return number, keys[number] == searched_keys

    def of_copies(self, copy: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, rank by rank, the rows of copies that have a changed place of this rank, and its number."""
        first = torch.searchsorted(self.copy, copy)
        counts = torch.searchsorted(self.copy, copy, right=True) - first
        for rank in range(self.most):
            row = (counts > rank).nonzero().view(-1)
            yield row, first[row] + rank


def _named(args: Any, kwargs: Any) -> dict[str, Any]:
    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _projected(module: nn.MultiheadAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, multiplied by the scale of scores, keys and values: [..., heads, d] each."""
    projected = F.linear(x, module.in_proj_weight, module.in_proj_bias)
    queries, keys, values = (part.unflatten(-1, (module.num_heads, -1)) for part in projected.chunk(3, dim=-1))
    return queries / math.sqrt(queries.shape[-1]), keys, values


def _bias(
    mask: Tensor | None, padding: Tensor | None, num_graphs: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Return the sum of the masks of a call as numbers that are added to scores; None if there are none."""
    total: Tensor | None = None
    if mask is not None:
        added = _added(mask, dtype)
        total = added.view(1, 1, *added.shape) if added.dim() == 2 else added.view(num_graphs, heads, *added.shape[1:])
    if padding is not None and (padding.dtype != torch.bool or bool(padding.any())):
        added = _added(padding, dtype)[:, None, None]
        total = added if total is None else total + added
    return total


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


def _without(weights: Tensor, copy: Tensor, place: Tensor, cuts: Removed) -> tuple[Tensor, Tensor]:
    """Return unnormalised weights of one new key each, [R, n, heads], as they count in the sum and in the values."""
    number = torch.searchsorted(cuts.copy, copy).clamp(max=cuts.copy.numel() - 1)
    is_cut = (cuts.copy[number] == copy) & (cuts.key[number] == place)
    if not bool(is_cut.any()):
        return weights, weights
    query = cuts.query[number]
    places = torch.arange(weights.shape[1], device=weights.device)
    where = is_cut.unsqueeze(1) & ((query.unsqueeze(1) == places) | (query < 0).unsqueeze(1))
    without = weights.masked_fill(where.unsqueeze(2), 0.0)
    return (without if cuts.deletes else weights), without


def _is_cut(scores: Tensor, copy: Tensor, place: Tensor, cuts: Removed) -> Tensor:
    """Return which scores of some rows, [R, heads, n], belong to pairs that are cut, [R, 1, n]."""
    number = torch.searchsorted(cuts.copy, copy).clamp(max=cuts.copy.numel() - 1)
    query = cuts.query[number]
    is_row = (cuts.copy[number] == copy) & ((query < 0) | (query == place))
    places = torch.arange(scores.shape[2], device=scores.device)
    return (is_row.unsqueeze(1) & (cuts.key[number].unsqueeze(1) == places)).unsqueeze(1)
