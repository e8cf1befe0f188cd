"""Checks that a model may be run on rows, before it is.

1. Each convolution, run on the edges that enter a few nodes, must return what its algebra computed for these nodes.
2. The model's forward on rows in another order, with nothing reduced, must give the recorded inputs of every
   convolution and the recorded outputs, whatever the decoy rows among them hold.

A model seen for the first time is checked on as many rows as there are nodes, and its wiring is found. With each
later recording a few rows are checked again, because independence can depend on the weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.graph import Graph
from attree.attention.locality import loud_noise, same
from attree.faithfulness.exact.lazy_rows import LazyRows
from attree.faithfulness.exact.recording import Recorder, Recording, RowModel
from attree.faithfulness.exact.sample import Sample, spread_nodes
from attree.faithfulness.exact.trace import ConvArguments, LayerTrace
from attree.faithfulness.exact.wiring import EDGES, INPUT, READOUT, Reads, StageError, StageMode, Wiring
from attree.subject import ModelCall
from attree.subject.arguments import Kind
from attree.subject.level import OutputLevel
from attree.subject.locality import NotRowwiseError

ENTERING = 2048
"""Edges that a convolution itself runs on, about."""


def check_conv(trace: LayerTrace, given: ConvArguments, out: Tensor, graph: Graph) -> None:
    """Compare a convolution's algebra with the convolution itself, on the edges that enter a few nodes.

    Args:
        trace: What the algebra computed.
        given: What the convolution was called with.
        out: What it is said to return.
        graph: The looped graph.
    """
    conv, nodes = trace.algebra.conv, spread_nodes(graph)
    total = graph.entering.sizes[nodes].cumsum(0)
    nodes = nodes[total <= max(int(total[0]), ENTERING)]
    enters = torch.isin(given.edge_index[1], nodes).nonzero().view(-1)
    edges = given.edge_index[:, enters]
    known = torch.cat([edges[0], nodes]).unique()
    features = {}
    if given.features is not None and trace.algebra.edge_argument is not None:
        features[trace.algebra.edge_argument] = rows_of(given.features, enters)
    x = rows_of(given.x, known)
    expected = type(conv).forward(conv, x, torch.searchsorted(known, edges), **features)
    dtype = given.x.compact.dtype if isinstance(given.x, LazyRows) else x.dtype
    place = torch.searchsorted(known, nodes)
    if not isinstance(expected, Tensor) or not same(out[nodes], expected[place], dtype):
        raise NotRowwiseError(f"its layer {type(conv).__name__} computes something else than that layer does")


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """Some rows, as an ordinary tensor."""
    return x.at(index).read() if isinstance(x, LazyRows) else x[index]


_KNOWN: WeakKeyDictionary[nn.Module, tuple[Any, Wiring]] = WeakKeyDictionary()
"""The wiring of models that were checked before, with everything that it depends on."""

Traces = list[tuple[Tensor, Tensor]]
"""For each call, the inputs and outputs that were recorded, of all nodes."""


class Checker:
    """Records passes of a model that has passed the checks.

    Args:
        recorder: Records the model.
        graph: The looped graph.
        outputs: What the rows of the output are those of.

    Raises:
        NotRowwiseError: If there is nothing to look at.
    """

    def __init__(self, recorder: Recorder, graph: Graph, outputs: OutputLevel) -> None:
        if graph.num_nodes == 0:
            raise NotRowwiseError("its graph has no nodes")
        if outputs.nodes is not None:
            raise NotRowwiseError("its outputs are those of chosen nodes")
        ids = len(recorder.call.of_kind(Kind.IDS))
        if outputs.ends is not None and (ids == 0 or outputs.ends.numel() == 0):
            raise NotRowwiseError("its outputs are those of the edges that it runs on")
        if ids > int(outputs.ends is not None):
            raise NotRowwiseError("one of its arguments holds ids of nodes")
        self._recorder = recorder
        self._graph = graph
        self._outputs = outputs
        self._told_apart = recorder.call.batch is not None
        self._sample = Sample.of(outputs, graph, self._told_apart)

    def recording(self) -> tuple[Recording, Wiring]:
        """Record a pass with the current weights, and say which call feeds which.

        Raises:
            NotRowwiseError: If the model does not fit; the message says why.
        """
        recorder, model = self._recorder, self._recorder.weights()
        made_of = (
            tuple((id(module), type(module)) for module in recorder.model.modules()),
            (recorder.call.kinds, self._outputs.level, self._told_apart),
        )
        known = _KNOWN.get(recorder.model)
        wiring = known[1] if known is not None and known[0] == made_of else None
        with model.opened():
            recording, traces = self._record(model, wiring is None)
            wiring = self._compare(recording, traces, wiring)
        _KNOWN[recorder.model] = made_of, wiring
        return recording, wiring

    def _record(self, model: RowModel, check: bool) -> tuple[Recording, Traces]:
        traces: Traces = []

        def watch(trace: LayerTrace, given: ConvArguments, out: Tensor) -> None:
            # Code that follows may change inputs and outputs in place.
            whole = check and self._outputs.batch is None
            node = None if whole else self._sample.node
            before = rows_of(given.x, node) if node is not None else given.x
            if node is None and not isinstance(before, LazyRows):
                before = before.clone()
            traces.append((before, out.clone() if node is None else out[node]))
            if check:
                check_conv(trace, given, out, self._graph)

        return self._recorder.record(model, watch), traces

    def _compare(self, recording: Recording, traces: Traces, wiring: Wiring | None) -> Wiring:
        sample = self._sample
        try:
            if wiring is not None:
                for one in sample.with_noise() if sample.whole else []:
                    _RowCheck(recording, one, traces, wiring).run()
                return _RowCheck(recording, sample, traces, wiring).run()
            if self._outputs.batch is None:
                few = [(rows_of(before, sample.node), after[sample.node]) for before, after in traces]
                wiring = _RowCheck(recording, sample, few, None).run()
                many = Sample.many(self._outputs, self._graph)
                lots = [(rows_of(before, many.node), after[many.node]) for before, after in traces]
                for one in (many, *many.with_noise()):
                    _RowCheck(recording, one, lots, wiring).run()
                return wiring
            wiring = _RowCheck(recording, sample, traces, None).run()
            for one in sample.with_noise() if sample.whole else []:
                _RowCheck(recording, one, traces, wiring).run()
            return wiring
        except NotRowwiseError:
            raise
        except StageError as error:
            raise NotRowwiseError(str(error)) from error
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise NotRowwiseError(f"its forward fails on rows ({type(error).__name__}: {reason})") from error


_MIXES: dict[Reads | None, str] = {
    None: "what follows them is not computed node by node",
    "links": "what follows them does not treat each link alone",
    "graphs": "its readout does not treat each graph alone",
    "one graph": "its readout does not treat each graph alone",
}
"""Why outputs differ on rows."""


class _RowCheck:
    """One run on rows with nothing reduced, compared with the recorded pass.

    Args:
        recording: The recorded pass.
        sample: The rows.
        rows: What was recorded for them.
        wiring: Which call feeds which, if known.
    """

    def __init__(self, recording: Recording, sample: Sample, rows: Traces, wiring: Wiring | None) -> None:
        self.recording = recording
        self.sample = sample
        self.rows = rows
        self.wiring = wiring
        self._mode = StageMode(sample.node.numel()) if wiring is None else None
        self._calls = 0

    def run(self) -> Wiring:
        """Compare inputs of convolutions and outputs; find which call feeds which if that is not known."""
        recording, sample, mode = self.recording, self.sample, self._mode
        given = recording.call_on(sample.part(recording.graph.original_edge_index), lazy=False)
        if given.has_features and given.x.is_floating_point():
            given = given.with_features(self._noisy(given.x, 0))
        if mode is not None:
            self._mark(mode, given)
        with nullcontext() if mode is None else mode:
            output = recording.model(given, self._answer)
        if self._calls != len(recording.layers):
            raise NotRowwiseError("its forward calls other layers on rows")
        expected, kept = recording.output[sample.outputs], sample.kept
        if not isinstance(output, Tensor) or output.shape != expected.shape:
            raise NotRowwiseError("its forward returns something else on rows")
        if not same(output[kept], expected[kept], expected.dtype):
            raise NotRowwiseError(_MIXES[sample.reads])
        if self.wiring is not None:
            return self.wiring
        assert mode is not None
        if EDGES in mode.marks(output):
            raise NotRowwiseError("its output depends on edges outside its attention layers")
        return mode.wiring(output, sample.reads)

    def _noisy(self, rows: Tensor, seed: int) -> Tensor:
        """The rows with noise in those of decoys."""
        out = rows.clone()
        out[self.sample.decoy] = loud_noise(rows[self.sample.decoy], rows, seed)
        return out

    def _answer(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a convolution returned for the rows in the recorded pass, if its input is the recorded one."""
        self._calls += 1
        layers = self.recording.layers
        layer = layers[self._calls - 1] if self._calls <= len(layers) else None
        if layer is None or layer.algebra.conv is not conv:
            raise NotRowwiseError("its forward calls other layers on rows")
        given, (before, after) = ConvArguments.read(layer.algebra, args, kwargs), self.rows[self._calls - 1]
        feeds = self._feeds(given)
        kept = ~self.sample.decoy
        # What no call feeds is as it was recorded, whatever is reduced.
        if feeds and (given.x.shape != before.shape or not same(given.x[kept], before[kept], before.dtype)):
            raise NotRowwiseError("what stands between its attention layers is not computed node by node")
        out = self._noisy(after, self._calls)
        answer = given.answer(out, layer.weights, self.recording.graph)
        if self._mode is not None:
            self._mode.mark(answer, EDGES)  # attention that is returned is of edges, and of all of them
            self._mode.mark(out, self._calls)
        return answer

    def _feeds(self, given: ConvArguments) -> tuple[int, ...]:
        if self.wiring is not None:
            return self.wiring.feeds[self._calls - 1]
        mode = self._mode
        assert mode is not None
        stages = mode.marks(given.x)
        feeds = tuple(sorted(stage for stage in stages if stage > 0))
        if feeds and EDGES in stages:
            raise NotRowwiseError("the features of its nodes depend on edges outside its attention layers")
        if feeds and READOUT in stages:
            what = "the links that are asked for" if self.sample.reads == "links" else "whole graphs"
            raise NotRowwiseError(f"something between its attention layers sees {what}")
        if mode.marks(given.features) - {EDGES}:
            raise NotRowwiseError("its edge features depend on its nodes")
        mode.feeds.append(feeds)
        return feeds

    def _mark(self, mode: StageMode, given: ModelCall) -> None:
        """Say which arguments are about nodes, graphs and edges."""
        of_graphs = READOUT if self.sample.graph_of is not None else INPUT
        stage = {Kind.NODE: INPUT, Kind.EDGE: EDGES, Kind.EDGES: EDGES, Kind.BATCH: of_graphs, Kind.PTR: of_graphs}
        stage[Kind.IDS] = READOUT
        for kind, value in zip(given.kinds, given.values, strict=True):
            if kind in stage:
                mode.mark(value, stage[kind])
