"""Copies of graphs compute what differs between them, and look up the rest.

An engine that cuts one thing out of each copy of a graph runs the model on many copies at once. Most rows of most
layers are then the same as in the graph that was copied. `SharedRows` records one pass over the graphs, one copy of
each. In the passes over copies, it answers for the parts of the model that cost most, and computes only what differs:

- a *linear part* (a linear layer, or a sequence with one) computes the rows whose inputs differ from the recorded ones;
- a *layer along edges* computes the rows that such rows, changed edges or deleted edges lead to;
- *multi-head attention over all nodes* updates each query's softmax by the keys that changed, in O(channels) each.
  With w_c = weight and x_c = value of key c before, w'_c = exp(new score - old log normaliser) and x'_c after,

      out' = (out - sum_c w_c x_c + sum_c w'_c x'_c) / (1 - sum_c w_c + sum_c w'_c).

  A query that changed itself, or of which little is left, is computed in full.

Rows are compared number by number, so a row counts as unchanged only if it is. All else of the model (sums, norms,
activations, the readout) runs as it is. A layer along edges is computed in full in the first pass, and in part later
only if both agree.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import Linear, MessagePassing

from attree.attention.instruments import is_edge_index
from attree.faithfulness.protocol import ReducedRun
from attree.subject import ModelCall, Part
from attree.tensors.arrays import expand
from attree.tensors.precision import same

HOPS = "hops that a layer's rows need in copies"
"""The fact, for each layer along edges, from how many hops of edges its rows can be computed; 0 if it is not known."""

SHARES = "copies share rows"
"""The fact, for each kind of cut, whether copies which share rows give the outputs of copies that do not."""

SAMPLE = 16
"""The number of cuts for which both are compared."""

MANY = 0.5
"""The share of changed rows from which a part of the model is computed in full."""

LITTLE = 1e-3
"""The share of a softmax below which what is left of it is computed from scores: a difference would be inexact."""

_ROWWISE = (
    *(nn.Linear, Linear, nn.Identity, nn.Dropout, nn.LayerNorm, nn.BatchNorm1d),
    *(nn.ReLU, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid),
)
"""Modules that treat each row on its own outside training; classes derived from them may not."""


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


class SharedRows:
    """Answers for parts of a model in passes over copies of graphs.

    Args:
        call: The call of the model on the whole graph; its model is a stand-in of the engine.
        part: A part with one graph per target, of which copies are taken.
        run: The run that reduces edges.
        facts: What is known of calls of this structure.
    """

    def __init__(self, call: ModelCall, part: Part, run: ReducedRun, facts: dict[Hashable, Any]) -> None:
        self._call, self._part, self._run = call, part, run
        self._is_recording, self._is_inside = False, False
        self._hops: dict[Hashable, int] = facts.setdefault(HOPS, {})
        self._names = {module: name for name, module in call.model.named_modules()}
        self._records: dict[nn.Module, list[Any]] = defaultdict(list)
        self._counts: dict[nn.Module, int] = defaultdict(int)
        self._noted: dict[int, tuple[Tensor, int, Tensor]] = {}
        self._rows = self._copies = self._edge_rows = self._edges = part.node[:0]
        self._touched = part.node[:0]
        self._width = 0
        self._removed: Removed | None = None

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Record a pass over the graphs, then answer in all passes while this is open."""
        with ExitStack() as stack:
            for module, answer in _parts_of(self._call.model):
                forward, had = module.forward, "forward" in vars(module)
                vars(module)["forward"] = partial(getattr(self, answer), module, forward)
                stack.callback(_restore, module, had, forward)
            self._is_recording, call = True, self._call.on(self._part)
            self._run(call, call.graph, self._part.node[:0])
            self._is_recording = False
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Answer for nothing while this is open."""
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    def take(self, which: Tensor, columns: Tensor | None = None, removed: Removed | None = None) -> None:
        """Set which graphs are copied in the next pass.

        Args:
            which: The graph of each copy.
            columns: Positions of the copies' edges that are deleted.
            removed: The pairs that are cut.
        """
        nodes, edges = self._part.bounds
        self._rows = expand(nodes, which)[1]
        edge_copy, edge_place = expand(edges, which)
        sizes = nodes.diff()[which]
        shift = sizes.cumsum(0) - sizes - nodes[which]
        ends = self._part.edge_index[:, edge_place] + shift[edge_copy]
        self._touched = which[:0]
        if columns is not None and columns.numel():
            stays = torch.ones_like(edge_place, dtype=torch.bool).index_fill(0, columns, False)
            self._touched = ends[1, columns]
            ends, edge_place = ends[:, stays], edge_place[stays]
        self._edges, self._edge_rows = ends, edge_place
        self._copies, self._width = which, int(sizes.max()) if sizes.numel() else 0
        self._removed = removed
        self._counts.clear()
        self._noted.clear()

    def _next(self, module: nn.Module) -> Any:
        """Return the record of the module's call with the number of the running one; None if there is none."""
        number = self._counts[module]
        self._counts[module] = number + 1
        records = self._records[module]
        return records[number] if number < len(records) else None

    def _expanded(self, recorded: Tensor, shape: torch.Size) -> Tensor | None:
        """Return recorded values for the rows of the copies; None if they are no rows of nodes or dense batches."""
        if recorded.dim() == 2 and recorded.shape[0] == self._part.node.numel() and shape[0] == self._rows.numel():
            return recorded.index_select(0, self._rows)
        is_dense = recorded.dim() == 3 and recorded.shape[0] == self._part.count and shape[0] == self._copies.numel()
        if is_dense and len(shape) == 3 and shape[1] == self._width:
            return recorded[:, : self._width].index_select(0, self._copies)
        return None

    def _changed(self, x: Tensor, recorded: Tensor) -> Tensor | None:
        """Return the positions of the rows of x that differ from the recorded ones; None if they are no such rows."""
        if id(x) in self._noted:
            noted, version, changed = self._noted[id(x)]
            if noted is x and version == x._version:
                return changed
        before = self._expanded(recorded, x.shape)
        if before is None or before.shape != x.shape:
            return None
        changed = (x != before).flatten(0, -2).any(dim=1).nonzero().view(-1)
        self._note(x, changed)
        return changed

    def _note(self, x: Tensor, changed: Tensor) -> None:
        self._noted[id(x)] = x, x._version, changed

    def rowwise(self, module: nn.Module, forward: Callable[..., Any], x: Tensor) -> Tensor:
        """Answer for a module that treats each row on its own."""
        if self._is_recording:
            output: Tensor = forward(x)
            is_full = x.dim() > 2 and any(isinstance(norm, nn.BatchNorm1d) for norm in module.modules())
            self._records[module].append(_Rows(x.detach().clone(), output.detach().clone(), is_full))
            return output
        record = None if self._is_inside else self._next(module)
        changed = None if record is None or record.is_full else self._changed(x, record.input)
        if record is not None and changed is not None and changed.numel() > MANY * x.shape[:-1].numel():
            record.is_full = True
        if record is None or changed is None or record.is_full:
            full: Tensor = forward(x)
            return full
        answer = self._expanded(record.output, x.shape)
        assert answer is not None
        if changed.numel():
            answer.flatten(0, -2)[changed] = forward(x.flatten(0, -2)[changed])
        self._note(answer, changed)
        return answer

    def layer(self, conv: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Answer for a layer along edges."""
        if self._is_recording:
            output = forward(*args, **kwargs)
            self._records[conv].append(_Layer.of(args, kwargs, output, self._part))
            return output
        key = self._names[conv], self._counts[conv], self._run.protocol.deletes
        record = None if self._is_inside else self._next(conv)
        is_known = record is not None and not self._run.is_reducing and self._hops.get(key) != 0
        affected = self._affected(record, args, kwargs) if record is not None and is_known else None
        if record is None or affected is None:
            return self._inside(forward, args, kwargs)
        if key in self._hops:
            return self._of_rows(record, forward, args, kwargs, affected, self._hops[key])
        full = self._inside(forward, args, kwargs)
        agrees = (same(self._of_rows(record, forward, args, kwargs, affected, hops), full) for hops in (1, 2))
        self._hops[key] = next((hops for hops, agree in zip((1, 2), agrees, strict=True) if agree), 0)
        return full

    def _inside(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        before, self._is_inside = self._is_inside, True
        try:
            return forward(*args, **kwargs)
        finally:
            self._is_inside = before

    def _affected(self, record: _Layer, args: Any, kwargs: Any) -> Tensor | None:
        """Return a mask of the rows that a layer may compute differently; None if that is not known."""
        values = (*args, *kwargs.values())
        if record.output is None or len(values) != len(record.values):
            return None
        num_rows = self._rows.numel()
        changed = torch.zeros(num_rows, dtype=torch.bool, device=self._rows.device)
        source, destination = self._edges
        late = changed.clone().index_fill_(0, self._touched, True)
        for value, (kind, before) in zip(values, record.values, strict=True):
            match kind:
                case "edges":
                    if value.shape != self._edges.shape or not torch.equal(value, self._edges):
                        return None
                case "node":
                    rows = self._changed(value, before) if isinstance(value, Tensor) else None
                    if rows is None:
                        return None
                    changed[rows] = True
                case "edge":
                    of_edges = before.index_select(0, self._edge_rows)
                    if not isinstance(value, Tensor) or value.shape != of_edges.shape:
                        return None
                    late[destination[(value != of_edges).flatten(1).any(dim=1)]] = True
                case _:
                    if isinstance(value, Tensor) or value is not before:
                        return None
        late[destination[changed[source] | late[source]]] = True  # degrees of a late source are in what it sends
        return changed | late

    def _of_rows(
        self, record: _Layer, forward: Callable[..., Any], args: Any, kwargs: Any, affected: Tensor, hops: int
    ) -> Tensor:
        """Return the output of a layer: recorded rows, and those of affected rows from the edges that enter them."""
        assert record.output is not None
        output = record.output.index_select(0, self._rows)
        at = affected.nonzero().view(-1)
        self._note(output, at)
        if not at.numel():
            return output
        source, destination = self._edges
        needed, among = affected, affected
        for _ in range(hops):
            among = needed
            needed = needed.clone().index_fill_(0, source[needed[destination]], True)
        edges, nodes = among[destination].nonzero().view(-1), needed.nonzero().view(-1)
        place = needed.long().cumsum(0) - 1
        ends = place[self._edges[:, edges]]

        def cut(number: int, value: Any) -> Any:
            kind = record.values[number][0]
            if kind == "edges":
                return ends
            return value[nodes if kind == "node" else edges] if kind in ("node", "edge") else value

        new_args = [cut(number, value) for number, value in enumerate(args)]
        new_kwargs = {name: cut(len(args) + number, value) for number, (name, value) in enumerate(kwargs.items())}
        computed = self._inside(forward, new_args, new_kwargs)
        output[at] = computed[place[at]]
        self._note(output, at)
        return output

    def attention(self, module: nn.MultiheadAttention, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Answer for multi-head attention over all nodes; without weights, so that nobody else changes the answer."""
        if self._is_recording:
            attended = forward(*args, **kwargs)
            self._records[module].append(_Attended.of(module, args, kwargs, attended[0], self._part))
            return attended
        record = None if self._is_inside else self._next(module)
        x = None if record is None else record.input_of(args, kwargs, self._copies, self._width)
        changed = None if record is None or x is None else self._changed(x, record.x)
        if record is None or x is None or changed is None:
            return forward(*args, **kwargs)
        values, rows = record.output(x, changed, self._copies, self._removed)
        if module.batch_first:
            self._note(values, rows)
            return values, None
        return values.transpose(0, 1), None


@dataclass
class _Rows:
    """One recorded call of a module that treats each row on its own."""

    input: Tensor
    output: Tensor
    is_full: bool = False


@dataclass
class _Layer:
    """One recorded call of a layer along edges.

    Attributes:
        values: What each argument is (`node`, `edge`, `edges` or `other`), and its value.
        output: One row per node; None if the call cannot be answered for.
    """

    values: list[tuple[str, Any]]
    output: Tensor | None

    @classmethod
    def of(cls, args: Any, kwargs: Any, output: Any, part: Part) -> _Layer:
        num_nodes, num_edges = part.node.numel(), part.edge_index.shape[1]
        values: list[tuple[str, Any]] = []
        is_known = isinstance(output, Tensor) and output.dim() == 2 and output.shape[0] == num_nodes
        for value in (*args, *kwargs.values()):
            if is_edge_index(value):
                is_known = is_known and torch.equal(value, part.edge_index)
                values.append(("edges", None))
            elif isinstance(value, Tensor) and value.dim() > 0 and num_nodes != num_edges:
                kind = {num_nodes: "node", num_edges: "edge"}.get(value.shape[0], "other")
                is_known = is_known and kind != "other" and (kind == "edge" or value.dim() == 2)
                values.append((kind, value.detach().clone()))
            else:
                is_known = is_known and (value is None or isinstance(value, bool | int | float | str))
                values.append(("other", value))
        is_known = is_known and {"node", "edges"} <= {kind for kind, _ in values}
        return cls(values, output.detach().clone() if is_known else None)


@dataclass
class _Attended:
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
    def of(cls, module: nn.MultiheadAttention, args: Any, kwargs: Any, output: Tensor, part: Part) -> _Attended | None:
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
        news = None
        if changed.numel():
            first = counts.cumsum(0) - counts
            rank = torch.arange(changed.numel(), device=x.device) - first[copy]
            news = _News(copy, place, rank, most, *_projected(self.module, x.flatten(0, 1)[changed]))
        mixed, again = self._updated(x, copies, news, cuts)
        rows = again if news is None else torch.cat([again, changed]).unique()
        if rows.numel():
            of_copy, of_place = rows // width, rows % width
            mixed[of_copy, of_place] = self._rows(x, of_copy, of_place, copies, news, cuts)
        return self.module.out_proj(mixed.flatten(2)), everyone

    def _updated(self, x: Tensor, copies: Tensor, news: _News | None, cuts: Removed | None) -> tuple[Tensor, Tensor]:
        """Return mixed values of all places, updated by the keys that changed, and the rows to compute in full."""
        num_copies, width = x.shape[:2]
        mixed = self.mixed[:, :width].index_select(0, copies)
        total = mixed.new_ones(mixed.shape[:3])
        for rank in range(0 if news is None else news.most):
            assert news is not None
            number = (news.rank == rank).nonzero().view(-1)
            copy, place = news.copy[number], news.place[number]
            graph = copies[copy]
            before = self.weights[graph, :, :width, place].transpose(1, 2)  # [R, n, heads]
            after = self._scores(self.queries[:, :width], graph, news.keys[number])
            if self.bias is not None:
                after = after + self._bias_of_keys(graph, place, width)
            after = (after - self.normaliser[graph, :width]).exp()
            added = after
            if cuts is not None:
                added, after = _without(after, copy, place, cuts)
            everyone = copy.numel() == num_copies
            difference = after.unsqueeze(-1) * news.values[number].unsqueeze(1)
            difference -= before.unsqueeze(-1) * self.values[graph, place].unsqueeze(1)
            if everyone:
                mixed += difference
                total += added - before
            else:
                mixed[copy] += difference
                total[copy] += added - before
        if cuts is not None:
            self._cut(mixed, total, copies, news, cuts)
        is_little = (total < LITTLE).any(dim=2)
        mixed /= total.unsqueeze(-1)
        return mixed, is_little.flatten().nonzero().view(-1)

    def _cut(self, mixed: Tensor, total: Tensor, copies: Tensor, news: _News | None, cuts: Removed) -> None:
        """Take recorded entries of keys that did not change from sums."""
        width = mixed.shape[1]
        stays = torch.ones_like(cuts.copy, dtype=torch.bool)
        if news is not None:
            stays = ~torch.isin(cuts.copy * width + cuts.key, news.copy * width + news.place)
        copy, key, query = cuts.copy[stays], cuts.key[stays], cuts.query[stays]
        single = (query >= 0).nonzero().view(-1)
        all_queries = (query < 0).nonzero().view(-1)
        for chosen, index in ((single, query[single]), (all_queries, None)):
            if not chosen.numel():
                continue
            where, graph, of_key = copy[chosen], copies[copy[chosen]], key[chosen]
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
        self, x: Tensor, copy: Tensor, place: Tensor, copies: Tensor, news: _News | None, cuts: Removed | None
    ) -> Tensor:
        """Return the mixed values of some places from their scores, [R, heads, d]."""
        width, graph = x.shape[1], copies[copy]
        queries = self.queries[graph, place]
        if news is not None:
            number, is_new = news.find(copy, place, width)
            queries[is_new] = news.queries[number[is_new]]
        graphs, counts = graph.unique_consecutive(return_counts=True)
        split = list(zip(graphs.tolist(), counts.tolist(), strict=True))
        scores = torch.cat(
            [
                torch.einsum("rhd,nhd->rhn", part, self.keys[number, :width])
                for (number, _), part in zip(split, queries.split(counts.tolist()), strict=True)
            ]
        )
        joined = [] if news is None else list(news.of_copies(copy))
        for row, number in joined:
            assert news is not None
            scores[row, :, news.place[number]] = torch.einsum("rhd,rhd->rh", queries[row], news.keys[number])
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
            assert news is not None
            change = news.values[number] - self.values[graph[row], news.place[number]]
            mixed[row] += weights[row, :, news.place[number]].unsqueeze(-1) * change
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
class _News:
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
        keys, wanted = self.copy * width + self.place, copy * width + place
        number = torch.searchsorted(keys, wanted).clamp(max=keys.numel() - 1)
        return number, keys[number] == wanted

    def of_copies(self, copy: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, rank by rank, the rows of copies that have a changed place of this rank, and its number."""
        first = torch.searchsorted(self.copy, copy)
        counts = torch.searchsorted(self.copy, copy, right=True) - first
        for rank in range(self.most):
            row = (counts > rank).nonzero().view(-1)
            yield row, first[row] + rank


Outputs = Callable[[Tensor, "SharedRows | None"], Tensor]
"""Returns the outputs of the targets of some cuts, by copies that share rows, or that share none."""


@contextmanager
def sharing(
    call: ModelCall,
    part: Part,
    run: ReducedRun,
    facts: dict[Hashable, Any],
    num_cuts: int,
    outputs: Outputs,
    kind: Hashable = None,
) -> Iterator[SharedRows | None]:
    """Context with the rows that copies share; None if they cannot: it is compared once for each structure of a call.

    Args:
        call: The call of the model on the whole graph.
        part: A part with one graph per target, of which copies are taken.
        run: The run that reduces edges.
        facts: What is known of calls of this structure.
        num_cuts: The number of cuts.
        outputs: Returns the outputs of the targets of some cuts.
        kind: What is cut.
    """
    verdicts, kind = facts.setdefault(SHARES, {}), (kind, run.protocol)
    has_attention = any(type(module) is nn.MultiheadAttention for module in call.model.modules())
    if not has_attention or call.types is not None or not num_cuts or not verdicts.get(kind, True):
        yield None
        return
    with ExitStack() as stack:
        shared: SharedRows | None = SharedRows(call, part, run, facts)
        try:
            assert shared is not None
            stack.enter_context(shared.attached())
            if kind not in verdicts:
                count = min(SAMPLE, num_cuts)
                sample = torch.arange(count, device=call.edge_index.device) * num_cuts // count
                with shared.paused():
                    expected = outputs(sample, None)
                outputs(sample, shared)  # layers along edges are compared in the first pass
                verdicts[kind] = same(outputs(sample, shared), expected)
        except Exception:  # the model's own code may need what is not computed here, such as weights
            verdicts[kind] = False
        if not verdicts[kind]:
            stack.close()
            shared = None
        yield shared


def _parts_of(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the parts of a model that are answered for, outermost first, and the method that does so."""
    if isinstance(model, nn.MultiheadAttention) and type(model) is nn.MultiheadAttention:
        yield model, "attention"
    elif isinstance(model, MessagePassing):
        yield model, "layer"
    elif _is_rowwise(model):
        if any(isinstance(module, nn.Linear | Linear) for module in model.modules()):
            yield model, "rowwise"
    else:
        for child in model.children():
            yield from _parts_of(child)


def _is_rowwise(module: nn.Module) -> bool:
    if type(module) is nn.Sequential:
        return all(map(_is_rowwise, module))
    return type(module) in _ROWWISE


def _restore(module: nn.Module, had: bool, forward: Any) -> None:
    if had:
        vars(module)["forward"] = forward
    else:
        vars(module).pop("forward", None)


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
