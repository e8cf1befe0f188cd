"""Copies of graphs compute what differs between them, and look up the rest.

An engine that cuts one thing out of each copy of a graph runs the model on many copies at once. Most rows of most
layers are then the same as in the graph that was copied. `SharedRows` records one pass over the graphs, one copy of
each. In the passes over copies, it answers for the parts of the model that cost most, and computes only what differs:

- a *linear part* (a linear layer, or a sequence with one) computes the rows whose inputs differ from the recorded ones;
- a *layer along edges* computes the rows that such rows, changed edges or deleted edges lead to;
- *multi-head attention over all nodes* updates each query's softmax by the keys that changed (`shared_attention`).

Rows are compared number by number, so a row counts as unchanged only if it is. All else of the model (sums, norms,
activations, the readout) runs as it is. A layer along edges is computed in full in the first pass, and in part later
only if both agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear, MessagePassing

from attree.attention.instruments import is_edge_index
from attree.faithfulness.protocol import ReducedRun
from attree.faithfulness.shared_attention import MANY, Removed, SharedAttention
from attree.subject import ModelCall, Part
from attree.tensors.arrays import expand
from attree.tensors.precision import same

HOPS = "hops that a layer's rows need in copies"
"""The fact, for each layer along edges, from how many hops of edges its rows can be computed; 0 if it is not known."""

SHARES = "copies share rows"
"""The fact, for each kind of cut, whether copies which share rows give the outputs of copies that do not."""

SAMPLE = 16
"""The number of cuts for which both are compared."""

_ROWWISE = (
    *(nn.Linear, Linear, nn.Identity, nn.Dropout, nn.LayerNorm, nn.BatchNorm1d),
    *(nn.ReLU, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid),
)
"""Modules that treat each row on its own outside training; classes derived from them may not."""


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
            self._records[module].append(SharedAttention.of(module, args, kwargs, attended[0], self._part))
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
