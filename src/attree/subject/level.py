"""Find out what each row of the output belongs to (a node, a pair of nodes, a graph), and what it reads.

If the number of rows does not decide this, an experiment finds the nodes that each row reads (`nodes_read`).

To find the nodes, the output of every convolution is replaced by noise that depends only on one number t_i per node i.
Row k of the output reads node i if the gradient of row k with respect to t_i is not 0.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from attree.attention.graph import Types, find_type, plain
from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attention.stand_ins import eval_mode
from attree.attention.wiring import is_plain_stack
from attree.errors import ArgumentError, expect
from attree.subject.arguments import Kind, parameters
from attree.subject.facts import facts_of
from attree.subject.model_call import ModelCall
from attree.subject.output_selection import Selections
from attree.subject.target_roots import Level, OutputLevel
from attree.tensors.precision import same

DRAWS = 4
"""Number of passes with different noise. A maximum reads other nodes in each pass, a selected row does not."""

DIFFERENTIABLE = ("cpu", "cuda", "xpu")
"""Device types that support gradients inside a model."""


def nodes_read(call: ModelCall, rows: list[int], draws: int = DRAWS, layer: int | None = None) -> Tensor | None:
    """Return which nodes some rows of the output read in each pass, [draws, rows, nodes]; None if unknown.

    Args:
        call: The call of the model.
        rows: The rows.
        draws: Number of passes.
        layer: The number of the call of a layer whose outputs are read; None for those of all layers.
    """
    if call.edge_index.device.type not in DIFFERENTIABLE:
        return None
    try:
        drawn = [_read_once(call, rows, draw, layer) for draw in range(draws)]
    except Exception:  # the model does not support gradients
        return None
    reads = [nodes for nodes in drawn if nodes is not None]
    return torch.stack(reads) if len(reads) == draws else None


def _read_once(call: ModelCall, rows: list[int], seed: int, layer: int | None) -> Tensor | None:
    """Return which nodes each of the output's rows reads, [rows, nodes]; None if the output has no gradients."""
    marks = _Marks(call, seed, layer)
    with torch.inference_mode(False), torch.enable_grad(), eval_mode(call.model), instrument(call.model, marks):
        output = call.changed(lambda _, value: _differentiable(value)).run()
        if not isinstance(output, Tensor) or not output.requires_grad or not marks.used:
            return None
        columns = output.reshape(output.shape[0], -1)
        mixed = columns @ marks.noise(columns.shape[1]).to(columns)
        reads = []
        for row in rows:
            (gradient,) = torch.autograd.grad(mixed[row], marks.value, retain_graph=True, allow_unused=True)
            reads.append(torch.zeros(call.num_nodes) if gradient is None else gradient.detach().cpu())
        return torch.stack(reads) != 0


class _Marks(Watcher):
    """One number per node, which every convolution, or one call of one, adds to its output, times a random vector."""

    def __init__(self, call: ModelCall, seed: int, layer: int | None) -> None:
        self._layer = layer
        self._generator = torch.Generator().manual_seed(seed)
        device = call.edge_index.device
        self.value = torch.randn(call.num_nodes, generator=self._generator).to(device).requires_grad_()
        self._graph = call.graph
        self.used = False

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)

    def end(self, call: LayerCall, returned: Any) -> Any:
        """Return a convolution's output with the marks of its nodes added; nested convolutions add none."""
        if call.is_inner or self._layer not in (None, call.number):
            return returned
        types = self._graph.types
        if types is None:
            return self._marked(returned, self.value)
        if isinstance(returned, dict):
            return {kind: self._marked(rows, self._of_type(types, kind)) for kind, rows in returned.items()}
        kind = find_type(self._graph, call.given_edges)
        return returned if kind is None else self._marked(returned, self._of_type(types, kind[2]))

    def _of_type(self, types: Types, node_type: str) -> Tensor:
        nodes = types.nodes(node_type)
        return self.value[nodes.start : nodes.stop]

    def _marked(self, returned: Any, value: Tensor) -> Any:
        first = returned[0] if isinstance(returned, tuple) else returned
        if not isinstance(first, Tensor) or first.shape[:1] != value.shape or not first.is_floating_point():
            return returned
        self.used = True
        marked = first.detach() + torch.tensordot(value.to(first.dtype), self.noise(*first.shape[1:]).to(first), 0)
        return (marked, *returned[1:]) if isinstance(returned, tuple) else marked


def _differentiable(value: Any) -> Any:
    """Return a copy of an argument that was made in inference mode, so that gradients can pass through it."""
    if isinstance(value, dict):
        return {kind: _differentiable(rows) for kind, rows in value.items()}
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def without_unread_ids(call: ModelCall, output: Any) -> ModelCall:
    """Return the call without node ids of the data that the model does not read.

    Such ids cannot be cut to a part of the graph.

    Args:
        call: The call of the model.
        output: The output of the call.
    """
    position = 0
    while call.convention is not None and position < len(call.values):
        if call.kinds[position] is Kind.IDS:
            without = call.without(position)
            if _returns(without, output):
                call = without
                continue
        position += 1
    return call


def add_batch(call: ModelCall, batch: Tensor, output: Any) -> ModelCall:
    """Return the call with an argument that holds the graph of each node, if the model takes one.

    Many copies of a graph can then run at once.

    Args:
        call: The call of the model, which has no such argument.
        batch: The graph of each node.
        output: The output of the call.
    """
    call = call.with_batch(batch)
    if call.batch is not None or call.convention is not None:
        return call
    free = [
        parameter.name
        for parameter in parameters(call.model)
        if "batch" in parameter.name and parameter.name not in call.names
    ]
    if not free or "size" in free[0]:
        return call
    extended = call.with_argument(free[0], batch)
    return extended if _returns(extended, output) else call


def _returns(call: ModelCall, output: Any) -> bool:
    """Whether a call succeeds and returns this output."""
    try:
        with eval_mode(call.model), torch.no_grad():
            again = call.run()
    except Exception:
        return False
    return isinstance(again, Tensor) and isinstance(output, Tensor) and same(again, output)


SAMPLED_ROWS = 6
"""Number of rows to examine if a sample is enough."""

CHOSEN_ROWS = 4096
"""Maximum number of rows if the node of every row must be found: each needs a backward pass from the last layer."""


def level_of(call: ModelCall, output: Any, level: Level | None = None) -> tuple[OutputLevel, ModelCall]:
    """Return what the rows of an output belong to, and the call in the form in which it runs on parts of the graph.

    Node ids that the model does not read leave the call. If the model takes the graph of each node, and the output
    belongs to graphs, the call gets it. Experiments run only if no call of the same structure was seen before.

    Args:
        call: The call of the model.
        output: The output of the call.
        level: The level given by the caller; None infers it.

    Raises:
        ArgumentError: If the level is ambiguous, or if the output does not fit the given level.
    """
    if level in (None, "node") and call.convention is None and (cached := facts_of(call).get("level")) is not None:
        return cached, call
    joined = call.with_joined_links(output.shape[0]) if isinstance(output, Tensor) and output.dim() else None
    if joined is not None and level in (None, "edge"):
        try:
            outputs = find_level(joined, output, level)
        except ArgumentError:
            pass
        else:
            if outputs.level == "edge":
                return outputs, joined
    call = without_unread_ids(call, output)
    outputs = find_level(call, output, level)
    _keep_level(call, outputs)
    if outputs.batch is not None and call.batch is None:
        call = add_batch(call, outputs.batch, output)
    return outputs, call


def _keep_level(call: ModelCall, outputs: OutputLevel) -> None:
    """Keep the level of a call for later calls, if it cannot depend on the values of the arguments.

    This holds for one row per node, in order, if all tensors but the edges hold real numbers: integers and masks can
    choose rows. A function that calls the model with a whole graph can choose rows too, so nothing is kept for it.
    """
    if call.convention is not None:
        return
    others = [value for kind, value in zip(call.kinds, call.values, strict=True) if kind is not Kind.EDGES]
    parts = [part for value in others for part in (value.values() if isinstance(value, dict) else [value])]
    fixed = all(
        part.is_floating_point() if isinstance(part, Tensor) else isinstance(part, bool | int | float | str | None)
        for part in parts
    )
    if fixed and outputs.level == "node" and outputs.nodes is None:
        facts_of(call)["level"] = outputs


def find_level(call: ModelCall, output: Any, level: Level | None = None) -> OutputLevel:
    """Find out what the rows of an output belong to.

    Args:
        call: The call of the model.
        output: The output of the call.
        level: The level given by the caller; None infers it.

    Raises:
        ArgumentError: If the level is ambiguous, or if the output does not fit the given level.
    """
    rows = output.shape[0] if isinstance(output, Tensor) and output.dim() else call.num_nodes
    if call.types is not None:
        return _typed_level(call, call.types, rows, level)
    pairs = [value.long() for value in call.of_kind(Kind.IDS) if value.shape == (2, rows)]
    edges = [plain(call.edge_index)] if call.edge_index.shape == (2, rows) else []
    if level == "edge":
        held = pairs or edges
        expect(len(held) == 1, "level", f"'edge' only if one argument holds {rows} pairs of nodes, [2, {rows}]", level)
        return OutputLevel("edge", ends=held[0])
    if level == "graph":
        return OutputLevel("graph", batch=_graph_of_nodes(call, rows))
    if level == "node":
        return OutputLevel("node") if rows == call.num_nodes else _chosen_nodes(call, rows)
    if rows == call.num_nodes and not pairs:
        return _of_nodes(call, edges)
    batch = call.batch
    if not pairs and batch is not None and rows == int(batch.max()) + 1:
        return OutputLevel("graph", batch=batch)
    numbering = [value for value in call.of_kind(Kind.NODE) if _numbers_graphs(value, rows)]
    if not pairs and rows > 1 and len(numbering) == 1:
        return OutputLevel("graph", batch=numbering[0])
    return _by_reading(call, rows, pairs + edges)


def _typed_level(call: ModelCall, types: Types, rows: int, level: Level | None) -> OutputLevel:
    """Find out what the rows belong to in a heterogeneous graph: nodes of one type, pairs of nodes, or graphs."""
    pairs = _typed_pairs(call, types, rows)
    if level == "edge" or (level is None and pairs and call.node_type is None):
        reads = nodes_read(call, _sampled(rows).tolist())
        fitting = pairs
        if reads is not None and bool(reads.any(dim=2).any()):
            union, sample = reads.any(dim=0), _sampled(rows)
            fitting = [ends for ends in pairs if not bool((union & ~_ends_of(ends, sample, union)).any())]
        if len(fitting) == 1:
            return OutputLevel("edge", ends=fitting[0])
        if level == "edge":
            raise _ask_typed(call, types, rows)
    batch = call.batch
    if level == "graph" or (level is None and call.node_type is None and batch is not None):
        expected = "'graph' only if an argument `batch_dict` holds the graph of each node"
        expect(batch is not None, "level", expected, level)
        assert batch is not None
        if rows == int(batch.max()) + 1:
            return OutputLevel("graph", batch=batch)
    fitting_types = [kind for kind in types.node_types if len(types.nodes(kind)) == rows]
    node_type = fitting_types[0] if call.node_type is None and len(fitting_types) == 1 else call.node_type
    if node_type is None:
        reads = nodes_read(call, _sampled(rows).tolist(), 1)
        if reads is not None:
            read = types.type_of_nodes(reads.any(dim=0).any(dim=0).nonzero().view(-1)).unique().tolist()
            node_type = types.node_types[read[0]] if len(read) == 1 else None
    if node_type is None:
        raise _ask_typed(call, types, rows)
    if rows == len(types.nodes(node_type)):
        return OutputLevel("node", node_type=node_type)
    outputs = _chosen_nodes(call, rows, types.nodes(node_type))
    assert outputs.nodes is not None
    return OutputLevel("node", nodes=types.local(outputs.nodes), node_type=node_type)


def _typed_pairs(call: ModelCall, types: Types, rows: int) -> list[Tensor]:
    """Return the ends of the pairs that the rows may belong to, as ids in the union of types."""
    pairs: list[Tensor] = []
    for value in call.of_kind(Kind.IDS):
        if isinstance(value, Tensor):
            held = [(value, first, second) for first, second in product(types.node_types, repeat=2)]
        else:
            held = [(ids, kind[0], kind[2]) for kind, ids in value.items()]
        for ids, first, second in held:
            if ids.shape != (2, rows) or rows == 0:
                continue
            if int(ids[0].max()) < len(types.nodes(first)) and int(ids[1].max()) < len(types.nodes(second)):
                pairs.append(torch.stack([types.union(first, ids[0].long()), types.union(second, ids[1].long())]))
    return pairs


def _ask_typed(call: ModelCall, types: Types, rows: int) -> ArgumentError:
    sizes = ", ".join(f"{len(types.nodes(kind))} of {kind!r}" for kind in types.node_types)
    return ArgumentError(
        f"Expected argument `node_type` to be the type of the nodes that {call.name} returns (or `level` to be 'edge' "
        "or 'graph', if rows belong to pairs of nodes in one argument, or to graphs), but got "
        f"{call.node_type!r}: it returned {rows} rows, and there are {sizes} nodes."
    )


def _of_nodes(call: ModelCall, edges: list[Tensor]) -> OutputLevel:
    """Find the level of an output with as many rows as nodes: node level, unless rows depend on other nodes or pairs.

    Args:
        call: The call of the model.
        edges: The edge list, if there are as many rows as edges; otherwise empty.
    """
    if is_plain_stack(call.model):
        return OutputLevel("node")
    rows = _sampled(call.num_nodes)
    reads = nodes_read(call, rows.tolist(), DRAWS if edges else 1)
    if reads is None or not bool(reads.any(dim=2).all()):
        return OutputLevel("node")
    union = reads.any(dim=0)
    counts, reads_own = union.sum(dim=1), bool(union[torch.arange(rows.numel()), rows].all())
    reads_ends = any(torch.equal(union, _ends_of(ends, rows, union)) for ends in edges)
    if bool((counts > 2).any()) or (reads_own and (not reads_ends or bool((counts == 1).all()))):
        return OutputLevel("node")
    return _by_reading(call, call.num_nodes, edges)


def _sampled(rows: int) -> Tensor:
    return torch.linspace(0, rows - 1, min(rows, SAMPLED_ROWS)).round().long().unique()


def _ends_of(pairs: Tensor, rows: Tensor, like: Tensor) -> Tensor:
    """Return a mask of the nodes that are the ends of each pair, [rows, nodes]."""
    return torch.zeros_like(like).scatter_(1, pairs[:, rows.to(pairs.device)].t().cpu(), True)


def _by_reading(call: ModelCall, rows: int, pairs: list[Tensor]) -> OutputLevel:
    """Find the level by the nodes that each row depends on."""
    sample = _sampled(rows)
    reads = nodes_read(call, sample.tolist())
    if reads is None or not bool(reads.any(dim=2).all()):  # no gradient, for example because of an argmax
        if rows == 1 and not pairs and not call.of_kind(Kind.IDS):
            return OutputLevel("graph", batch=_graph_of_nodes(call, rows))
        if reads is not None and bool(reads.any()) and not pairs:  # rows of zeros, behind a ReLU
            return _chosen_nodes(call, rows)
        raise _ask(call, rows)
    union = reads.any(dim=0)  # [rows, nodes]
    steady = bool((reads == reads[:1]).all())
    for ends in pairs:
        if not bool((union & ~_ends_of(ends, sample, union)).any()):
            return OutputLevel("edge", ends=ends)
    counts = union.sum(dim=1)
    if rows == call.num_nodes and bool((counts == 1).all()) and torch.equal(union.long().argmax(dim=1), sample):
        return OutputLevel("node")
    if steady and bool((counts == 1).all()) and call.num_nodes > 1:
        return _chosen_nodes(call, rows)
    if rows == 1 and (bool(union.all()) or not steady):
        return OutputLevel("graph", batch=_graph_of_nodes(call, rows))
    raise _ask(call, rows)


def _ask(call: ModelCall, rows: int) -> ArgumentError:
    names = ", ".join(f"`{name}`" for name in call.names if name) or "none"
    return ArgumentError(
        f"Expected {call.name} to return one row per node, per pair of nodes that an argument holds as [2, P], or per "
        f"graph of an argument `batch`, or argument `level` to say which, but got {rows} rows for {call.num_nodes} "
        f"nodes and arguments {names}."
    )


def _chosen_nodes(call: ModelCall, rows: int, nodes: range | None = None) -> OutputLevel:
    """Find the node of each row, if a model returns only some of its nodes.

    Args:
        call: The call of the model.
        rows: Number of rows.
        nodes: The nodes of the explained type; None for all.
    """
    nodes = range(call.num_nodes) if nodes is None else nodes
    row_nodes = _selected_nodes(call, rows, nodes)
    if row_nodes is None and rows > CHOSEN_ROWS:
        raise _ask(call, rows)
    if row_nodes is None:
        reads = nodes_read(call, list(range(rows)))
        if reads is None or not bool((reads.any(dim=0).sum(dim=1) == 1).all()):
            raise _ask(call, rows)
        row_nodes = reads.any(dim=0).long().argmax(dim=1).to(call.edge_index.device)
    if row_nodes.unique().numel() != rows:
        raise _ask(call, rows)
    return OutputLevel("node", nodes=row_nodes)


def _selected_nodes(call: ModelCall, rows: int, nodes: range) -> Tensor | None:
    """Return the node of each row if the model selects them by an index, and a few rows read these nodes.

    A step over all nodes between layers lets a row read what earlier layers return for any node. Then the last layer
    decides.
    """
    last = _LastLayer()
    with eval_mode(call.model), torch.no_grad(), instrument(call.model, last), Selections(len(nodes)) as selections:
        call.run()
    sample = _sampled(rows)
    for layer in (None, last.number):
        reads = nodes_read(call, sample.tolist(), layer=layer) if selections.nodes else None
        if reads is None:
            return None
        read = reads.any(dim=0)
        for selected in reversed(selections.nodes):
            row_nodes = selected + nodes.start
            if row_nodes.numel() != rows:
                continue
            others = read.scatter(1, row_nodes[sample.to(row_nodes.device)].cpu().view(-1, 1), False)
            if bool(read.any()) and not bool(others.any()):
                return row_nodes
    return None


class _LastLayer(Watcher):
    """Keeps the number of the last call of a layer."""

    def __init__(self) -> None:
        self.number: int | None = None

    def end(self, call: LayerCall, returned: Any) -> Any:
        """Note the number of a call; nested calls do not count."""
        self.number = self.number if call.is_inner else call.number
        return returned


def _graph_of_nodes(call: ModelCall, rows: int) -> Tensor:
    """Return the argument that holds the graph of each node; for one row, all nodes are in one graph."""
    batches = call.of_kind(Kind.BATCH) or [
        value for value in call.of_kind(Kind.NODE) if rows > 1 and _numbers_graphs(value, rows)
    ]
    if not batches and rows == 1:
        return torch.zeros(call.num_nodes, dtype=torch.int64, device=call.edge_index.device)
    if len(batches) != 1:
        names = ", ".join(name or "unnamed" for name in call.names) or "none"
        raise ArgumentError(
            f"Expected one argument to hold the graph of each node, one of {rows} (name it `batch`), but got "
            f"{len(batches) or 'none'} among the arguments: {names}."
        )
    return batches[0]


def _numbers_graphs(value: Tensor, num_graphs: int) -> bool:
    """Whether values can be the graph of each node: ascending from 0 to `num_graphs` - 1."""

    if value.dim() != 1 or value.dtype != torch.int64 or value.numel() == 0:
        return False
    return int(value[0]) == 0 and int(value[-1]) == num_graphs - 1 and bool((value.diff() >= 0).all())
