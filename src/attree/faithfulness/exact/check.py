"""Whether a model may be run on rows: found out before it is, never assumed.

1. Each convolution itself, on the edges that enter a few nodes, must return what its algebra recorded for them.
2. The model's forward on a few rows, without a reduction, must give the recorded inputs of every convolution and the
   recorded outputs, whatever stands in a decoy row among them.

What a model of other structure would show is found once a model; that its rows are independent is looked at again
with each recording, because it can depend on the weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.looped_graph import LoopedGraph
from attree.faithfulness.exact.layer_edges import ConvArguments
from attree.faithfulness.exact.lazy_rows import LazyRows
from attree.faithfulness.exact.recording import Recorder, Recording
from attree.faithfulness.exact.refusal import CannotTakeApartError
from attree.faithfulness.exact.stages import BATCH, EDGES, INPUT, StageError, StageMode, Wiring
from attree.faithfulness.exact.trace import LayerTrace
from attree.ragged import expand, group
from attree.subject import ModelInputs
from attree.subject.arguments import Kind

NODES = 24
"""Nodes that rows are compared at, if the model does not see several graphs."""

GRAPHS = 3
"""Graphs that rows are compared at otherwise, the smallest ones."""

ENTERING = 2048
"""Edges that a convolution itself runs on, about."""

_KNOWN: WeakKeyDictionary[nn.Module, tuple[Any, Wiring]] = WeakKeyDictionary()
"""What feeds what in models that have been looked at, with what they were made of."""


class Sample(NamedTuple):
    """Rows to compare; the last one is the decoy.

    Attributes:
        node: The node of each row.
        copy: The graph of each row, numbered from 0; None if the model does not see several graphs.
        graph: Which graph each of them is a copy of; the last has the decoy in it.
    """

    node: Tensor
    copy: Tensor | None
    graph: Tensor | None

    @classmethod
    def of(cls, inputs: ModelInputs, graph: LoopedGraph) -> Sample:
        """A few nodes, or all nodes of a few graphs if an argument could say which graph nodes are of."""
        batch = _graph_numbers(inputs)
        if batch is None:
            spread = torch.linspace(0, graph.num_nodes - 1, min(NODES, graph.num_nodes), device=graph.device)
            node = spread.round().long()
            return cls(torch.cat([node, node[:1]]), None, None)
        rows = group(batch, int(batch.max()) + 1)
        filled = rows.sizes.nonzero().view(-1)
        graphs = filled[rows.sizes[filled].argsort(stable=True)[:GRAPHS]]
        graphs = torch.cat([graphs, graphs[:1]])
        copy, place = expand(rows.ptr, graphs)
        return cls(rows.items[place], copy, graphs)


def _graph_numbers(inputs: ModelInputs) -> Tensor | None:
    """The argument that holds the graph of each node, or else could hold it."""
    for kind in (Kind.BATCH, Kind.NODE):
        for (_, value), own in zip(inputs.named(), inputs.kinds(), strict=True):
            if own is kind and value.dim() == 1 and value.dtype == torch.int64 and bool((value.diff() >= 0).all()):
                return value if int(value[0]) >= 0 else None
    return None


class Checker:
    """Makes recordings of models that have been found fit.

    Args:
        recorder: Records the model.
        graph: The looped graph.

    Raises:
        CannotTakeApartError: If there is nothing to look at.
    """

    def __init__(self, recorder: Recorder, graph: LoopedGraph) -> None:
        if graph.num_nodes == 0:
            raise CannotTakeApartError("its graph has no nodes")
        self.recorder = recorder
        self.graph = graph
        self.sample = Sample.of(recorder.inputs, graph)

    def recording(self) -> tuple[Recording, Wiring]:
        """Record a pass with the weights of now, and say what feeds what.

        Raises:
            CannotTakeApartError: If the model does not fit; the message says why.
        """
        inputs: list[Tensor] = []
        recorder, model = self.recorder, self.recorder.weights()
        made_of = [*((id(conv), type(conv)) for conv in model.convs), *recorder.inputs.kinds()]
        known = _KNOWN.get(recorder.model)
        wiring = known[1] if known is not None and known[0] == made_of else None

        def watch(trace: LayerTrace, given: ConvArguments, out: Tensor) -> None:
            inputs.append(_rows(given.x, self.sample.node))
            if wiring is None:
                _check_conv(trace, given, out, self.graph)

        with model.opened():
            recording = recorder.record(model, watch)
            found = self._compare(recording, inputs, wiring)
        _KNOWN[recorder.model] = made_of, found
        return recording, found

    def _compare(self, recording: Recording, inputs: list[Tensor], wiring: Wiring | None) -> Wiring:
        try:
            return _check_rows(recording, self.sample, inputs, wiring)
        except CannotTakeApartError:
            raise
        except StageError as error:
            raise CannotTakeApartError(str(error)) from error
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise CannotTakeApartError(f"its forward fails on rows ({type(error).__name__}: {reason})") from error


def _rows(x: Tensor, nodes: Tensor) -> Tensor:
    return x.at(nodes).read() if isinstance(x, LazyRows) else x[nodes]


def _check_conv(trace: LayerTrace, given: ConvArguments, out: Tensor, graph: LoopedGraph) -> None:
    """Compare a convolution's algebra with the convolution itself at a few nodes."""
    conv = trace.algebra.conv
    nodes = torch.linspace(0, graph.num_nodes - 1, min(NODES, graph.num_nodes), device=graph.device).round().long()
    nodes = nodes[graph.entering.sizes[nodes].cumsum(0) <= max(int(graph.entering.sizes[nodes[0]]), ENTERING)]
    enters = torch.isin(given.edge_index[1], nodes).nonzero().view(-1)
    edges = given.edge_index[:, enters]
    known = torch.cat([edges[0], nodes]).unique()
    features = {}
    if given.features is not None and trace.algebra.edge_argument is not None:
        features[trace.algebra.edge_argument] = _rows(given.features, enters)
    x = _rows(given.x, known)
    expected = type(conv).forward(conv, x, torch.searchsorted(known, edges), **features)
    place = torch.searchsorted(known, nodes)
    dtype = given.x.compact.dtype if isinstance(given.x, LazyRows) else x.dtype
    if not isinstance(expected, Tensor) or not _same(out[nodes], expected[place], dtype):
        raise CannotTakeApartError(f"its layer {type(conv).__name__} computes something else than that layer does")


def _check_rows(recording: Recording, sample: Sample, inputs: list[Tensor], wiring: Wiring | None) -> Wiring:
    """Run the model on rows without a reduction and compare; find what feeds what if that is not known."""
    graphs = recording.call.batch is not None
    if graphs and sample.copy is None:
        raise CannotTakeApartError("no argument of it says which graph each node is of")
    mode = StageMode(sample.node.numel()) if wiring is None else None
    calls = 0

    def answer(conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        nonlocal calls
        calls += 1
        layer = recording.layers[calls - 1] if calls <= len(recording.layers) else None
        if layer is None or layer.algebra.conv is not conv:
            raise CannotTakeApartError("its forward calls other layers on rows")
        given = ConvArguments.read(layer.algebra, args, kwargs)
        if mode is not None:
            _note_feeds(mode, given)
        feeds = (mode or wiring).feeds[calls - 1]
        # What no call feeds is as it was recorded, whatever is reduced.
        if feeds and not _same(given.x[:-1], inputs[calls - 1][:-1], inputs[calls - 1].dtype):
            raise CannotTakeApartError("what stands between its attention layers is not computed node by node")
        out = layer.output(sample.node)
        noise = torch.randn(out.shape[1:], generator=torch.Generator().manual_seed(calls), dtype=out.dtype)
        out[-1] = noise.to(out.device)
        if mode is not None:
            mode.mark(out, {calls})
        return out

    batch = sample.copy if graphs else None
    count = sample.graph.numel() if graphs and sample.graph is not None else None
    given = recording.inputs_at(sample.node, batch, count, lazy=False)
    if given.x.is_floating_point():
        given.x[-1] = torch.randn(given.x.shape[1:], generator=torch.Generator().manual_seed(0)).to(given.x)
    if mode is not None:
        _mark_inputs(mode, recording, given)
    with mode if mode is not None else nullcontext():
        output = recording.model(given, answer)
    if calls != len(recording.layers):
        raise CannotTakeApartError("its forward calls other layers on rows")
    expected = recording.call.logits[sample.graph if graphs and sample.graph is not None else sample.node]
    fits = isinstance(output, Tensor) and output.shape == expected.shape
    if not fits or not _same(output[:-1], expected[:-1], expected.dtype):
        where = "its readout does not treat each graph alone" if graphs else "what follows is not computed node by node"
        raise CannotTakeApartError(where)
    if wiring is not None:
        return wiring
    assert mode is not None
    if EDGES in mode.of(output):
        raise CannotTakeApartError("its output depends on edges outside its attention layers")
    return mode.wiring(output, graphs)


def _note_feeds(mode: StageMode, given: ConvArguments) -> None:
    stages = mode.of(given.x)
    feeds = tuple(sorted(stage for stage in stages if stage > 0))
    if feeds and EDGES in stages:
        raise CannotTakeApartError("the features of its nodes depend on edges outside its attention layers")
    if feeds and BATCH in stages:
        raise CannotTakeApartError("something between its attention layers sees whole graphs")
    if mode.of(given.features) - {EDGES}:
        raise CannotTakeApartError("its edge features depend on its nodes")
    mode.feeds.append(feeds)


def _mark_inputs(mode: StageMode, recording: Recording, given: Any) -> None:
    """Say which arguments are about nodes, graphs and edges."""
    mode.mark(given.x, {INPUT})
    mode.mark(given.edge_index, {EDGES})
    stage = {Kind.NODE: INPUT, Kind.EDGE: EDGES, Kind.BATCH: INPUT if recording.call.batch is None else BATCH}
    for kind, value in zip(recording.call.kinds, (*given.args, *given.kwargs.values()), strict=True):
        if kind in stage:
            mode.mark(value, {stage[kind]})


def _same(got: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether numbers are equal up to rounding in a type."""
    scale = max(float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max()) if expected.numel() else 0.0, 1.0)
    tolerance = torch.finfo(dtype).eps ** 0.5 * scale
    return got.shape == expected.shape and torch.allclose(got, expected, rtol=0.0, atol=tolerance, equal_nan=True)
