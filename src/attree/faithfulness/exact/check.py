"""Checks that a model may be run on rows, before it is.

1. Each convolution, run on the edges that enter a few nodes, must return what its algebra computed for these nodes.
2. The model's forward on rows in another order, with nothing reduced, must give the recorded inputs of every
   convolution and the recorded outputs, whatever the decoy rows among them hold.

A model seen for the first time is checked on as many rows as there are nodes, and its stages are found. With each
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
from attree.faithfulness.exact.recording import Recorder, Recording, RowModel, by_type
from attree.faithfulness.exact.sample import NODES, Sample
from attree.faithfulness.exact.stages import EDGES, INPUT, READOUT, InputCalls, Reads, StageError, StageMode, Stages
from attree.faithfulness.exact.trace import ConvArguments, LayerTrace
from attree.subject import ModelCall
from attree.subject.arguments import Kind
from attree.subject.level import OutputLevel
from attree.subject.locality import NotRowwiseError

ENTERING = 2048
"""Edges that a convolution itself runs on, about."""


def check_conv(trace: LayerTrace, given: ConvArguments, out: Tensor) -> None:
    """Compare a convolution's algebra with the convolution itself, on the edges that enter a few nodes.

    Args:
        trace: What the algebra computed.
        given: What the convolution was called with.
        out: What it is said to return.
    """
    conv, layer = trace.algebra.conv, trace.graph
    count = min(NODES, layer.num_nodes)
    nodes = torch.linspace(0, layer.num_nodes - 1, count, device=layer.device).round().long()
    total = layer.entering.sizes[nodes].cumsum(0)
    nodes = nodes[total <= max(int(total[0]), ENTERING)]
    expected, known = (_run_on_types if layer.blocks is not None else _run_on_part)(trace, given, nodes)
    dtype = given.x.compact.dtype if isinstance(given.x, LazyRows) else given.x.dtype
    if not isinstance(expected, Tensor) or not same(out[known], expected, dtype):
        raise NotRowwiseError(f"its layer {type(conv).__name__} computes something else than that layer does")


def _run_on_part(trace: LayerTrace, given: ConvArguments, nodes: Tensor) -> tuple[Any, Tensor]:
    """What a convolution returns for some nodes when it runs on the edges that enter them, and these nodes."""
    conv, enters = trace.algebra.conv, torch.isin(given.edge_index[1], nodes).nonzero().view(-1)
    edges = given.edge_index[:, enters]
    known = torch.cat([edges[0], nodes]).unique()
    features = {}
    if given.features is not None and trace.algebra.edge_argument is not None:
        features[trace.algebra.edge_argument] = rows_of(given.features, enters)
    out = type(conv).forward(conv, rows_of(given.x, known), torch.searchsorted(known, edges), **features)
    return (out[torch.searchsorted(known, nodes)] if isinstance(out, Tensor) else out), nodes


def _run_on_types(trace: LayerTrace, given: ConvArguments, nodes: Tensor) -> tuple[Any, Tensor]:
    """As `_run_on_part`, for a convolution of one relation or of several; nodes are its destinations."""
    conv, layer = trace.algebra.conv, trace.graph
    graph, blocks, types = layer.graph, layer.blocks, layer.graph.types
    assert blocks is not None
    assert types is not None
    first = 0 if len(blocks.targets) > 1 else types.nodes(blocks.inputs[blocks.targets[0]]).start
    asked = nodes + first
    edges, chosen = {}, {}
    for kind in blocks.relations:
        own, ends = graph.typed_edges[kind], [types.nodes(kind[0]).start, types.nodes(kind[2]).start]
        chosen[kind] = torch.isin(own[1] + ends[1], asked).nonzero().view(-1)
        edges[kind] = own[:, chosen[kind]] + torch.tensor(ends, device=own.device).view(2, 1)
    known = torch.cat([*(pair.view(-1) for pair in edges.values()), asked]).unique()
    of_type = {kind: known[types.type_of_nodes(known) == place] for place, kind in enumerate(types.node_types)}
    local = {
        kind: torch.stack([torch.searchsorted(of_type[side], pair[end]) for end, side in ((0, kind[0]), (1, kind[2]))])
        for kind, pair in edges.items()
    }
    x = [
        rows_of(rows, of_type[kind] - types.nodes(kind).start)
        for kind, rows in zip(blocks.inputs, given.inputs, strict=True)
    ]
    if given.types:
        found = type(conv).forward(conv, dict(zip(given.types, x, strict=True)), local)
        returned = [kind for kind in given.types if kind in found]
        out = torch.cat([found[kind] for kind in returned])
        of_rows = torch.cat([of_type[kind] for kind in returned])
    else:
        kind, features = blocks.relations[0], {}
        if given.features is not None and trace.algebra.edge_argument is not None:
            features[trace.algebra.edge_argument] = rows_of(given.features, chosen[kind])
        out = type(conv).forward(conv, x[0] if len(x) == 1 else tuple(x), local[kind], **features)
        of_rows = of_type[kind[2]]
    # Only at the nodes that were asked for are all edges there.
    kept = torch.isin(of_rows, asked).nonzero().view(-1)
    return out[kept], of_rows[kept] - first


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """Some rows, as an ordinary tensor."""
    return x.at(index).read() if isinstance(x, LazyRows) else x[index]


_KNOWN: WeakKeyDictionary[nn.Module, tuple[Any, Stages]] = WeakKeyDictionary()
"""The stages of models that were checked before, with everything that they depend on."""

Traces = list[tuple[list[Tensor], list[Tensor]]]
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
        if graph.types is not None:
            _check_types(recorder.call, outputs)
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

    def recording(self) -> tuple[Recording, Stages]:
        """Record a pass with the current weights, and say which call feeds which.

        Raises:
            NotRowwiseError: If the model does not fit; the message says why.
        """
        recorder, model = self._recorder, self._recorder.weights()
        made_of = (
            tuple((id(module), type(module)) for module in recorder.model.modules()),
            (recorder.call.kinds, self._outputs.level, self._outputs.node_type, self._told_apart),
        )
        known = _KNOWN.get(recorder.model)
        stages = known[1] if known is not None and known[0] == made_of else None
        with model.opened():
            recording, traces = self._record(model, stages is None)
            stages = self._compare(recording, traces, stages)
        _KNOWN[recorder.model] = made_of, stages
        return recording, stages

    def _record(self, model: RowModel, check: bool) -> tuple[Recording, Traces]:
        traces: Traces = []

        def watch(trace: LayerTrace, given: ConvArguments, out: Tensor) -> None:
            # Code that follows may change inputs and outputs in place.
            whole, before, after = check and self._outputs.batch is None, list(given.inputs), by_type(out, trace)
            if whole:
                before = [x if isinstance(x, LazyRows) else x.clone() for x in before]
                traces.append((before, [rows.clone() for rows in after]))
            else:
                traces.append(_rows_at(self._sample, trace, (before, after)))
            if check:
                check_conv(trace, given, out)

        return self._recorder.record(model, watch), traces

    def _compare(self, recording: Recording, traces: Traces, stages: Stages | None) -> Stages:
        sample = self._sample
        try:
            if stages is not None:
                for one in sample.with_noise() if sample.whole else []:
                    _RowCheck(recording, one, traces, stages).run()
                return _RowCheck(recording, sample, traces, stages).run()
            if self._outputs.batch is None:
                few = [_rows_at(sample, layer, trace) for layer, trace in zip(recording.layers, traces, strict=True)]
                stages = _RowCheck(recording, sample, few, None).run()
                many = Sample.many(self._outputs, self._graph)
                lots = [_rows_at(many, layer, trace) for layer, trace in zip(recording.layers, traces, strict=True)]
                for one in (many, *many.with_noise()):
                    _RowCheck(recording, one, lots, stages).run()
                return stages
            stages = _RowCheck(recording, sample, traces, None).run()
            for one in sample.with_noise() if sample.whole else []:
                _RowCheck(recording, one, traces, stages).run()
            return stages
        except NotRowwiseError:
            raise
        except StageError as error:
            raise NotRowwiseError(str(error)) from error
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise NotRowwiseError(f"its forward fails on rows ({type(error).__name__}: {reason})") from error


def _check_types(call: ModelCall, outputs: OutputLevel) -> None:
    """Refuse what is not run on rows of several types."""
    if outputs.batch is not None:
        raise NotRowwiseError("its outputs are those of graphs of several types")
    if any(not isinstance(value, Tensor) for value in call.of_kind(Kind.IDS)):
        raise NotRowwiseError("its links are asked for by a dict")


def _node_rows(sample: Sample, layer: LayerTrace, number: int) -> tuple[Tensor, Tensor]:
    """The rows of a sample that one of a call's inputs has, and the numbers of their nodes in that input."""
    blocks, types = layer.graph.blocks, layer.graph.graph.types
    if blocks is None or types is None:
        return torch.arange(sample.node.numel(), device=sample.node.device), sample.node
    own = types.nodes(blocks.inputs[number])
    rows = sample.rows_of(own)
    return rows, sample.node[rows] - own.start


def _rows_at(
    sample: Sample, layer: LayerTrace, trace: tuple[list[Tensor], list[Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """What was recorded of a call, at the rows of a sample."""
    before, after = trace
    targets = (0,) if layer.graph.blocks is None else layer.graph.blocks.targets
    return (
        [rows_of(x, _node_rows(sample, layer, number)[1]) for number, x in enumerate(before)],
        [out[_node_rows(sample, layer, number)[1]] for number, out in zip(targets, after, strict=True)],
    )


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
        stages: Which call feeds which, if known.
    """

    def __init__(self, recording: Recording, sample: Sample, rows: Traces, stages: Stages | None) -> None:
        self.recording = recording
        self.sample = sample
        self.rows = rows
        self.stages = stages
        self._mode = StageMode(_counts(sample, recording.graph)) if stages is None else None
        self._calls = 0

    def run(self) -> Stages:
        """Compare inputs of convolutions and outputs; find which call feeds which if that is not known."""
        recording, sample, mode = self.recording, self.sample, self._mode
        given = recording.call_on(sample.part(recording.graph), lazy=False)
        given = self._with_noise(given)
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
        if self.stages is not None:
            return self.stages
        assert mode is not None
        if EDGES in mode.marks(output):
            raise NotRowwiseError("its output depends on edges outside its attention layers")
        return mode.result(output, sample.reads)

    def _with_noise(self, given: ModelCall) -> ModelCall:
        """A call with noise in the features of decoys."""
        types = self.recording.graph.types
        if types is None:
            fits = given.has_features and given.x.is_floating_point()
            return given.with_features(self._noisy(given.x, self.sample.decoy, 0)) if fits else given
        if given.features is None:
            return given
        decoys = {kind: self.sample.decoy[self.sample.rows_of(types.nodes(kind))] for kind in given.features}
        return given.with_features(
            {
                kind: self._noisy(x, decoys[kind], 0) if x.is_floating_point() else x
                for kind, x in given.features.items()
            }
        )

    def _noisy(self, rows: Tensor, decoy: Tensor, seed: int) -> Tensor:
        """The rows with noise in those of decoys."""
        out = rows.clone()
        out[decoy] = loud_noise(rows[decoy], rows, seed)
        return out

    def _answer(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a convolution returned for the rows in the recorded pass, if its input is the recorded one."""
        self._calls += 1
        layers = self.recording.layers
        layer = layers[self._calls - 1] if self._calls <= len(layers) else None
        if layer is None or layer.algebra.conv is not conv:
            raise NotRowwiseError("its forward calls other layers on rows")
        given, (before, after) = ConvArguments.read(layer.algebra, args, kwargs), self.rows[self._calls - 1]
        if len(given.inputs) != len(before):
            raise NotRowwiseError("its forward calls other layers on rows")
        # What no call feeds is as it was recorded, whatever is reduced.
        for number, (feeds, x, own) in enumerate(zip(self._feeds(given), given.inputs, before, strict=True)):
            kept = ~self.sample.decoy[_node_rows(self.sample, layer, number)[0]]
            if feeds and (x.shape != own.shape or not same(x[kept], own[kept], own.dtype)):
                raise NotRowwiseError("what stands between its attention layers is not computed node by node")
        targets = (0,) if layer.graph.blocks is None else layer.graph.blocks.targets
        outputs = [
            self._noisy(rows, self.sample.decoy[_node_rows(self.sample, layer, number)[0]], self._calls)
            for number, rows in zip(targets, after, strict=True)
        ]
        answer = given.answer(outputs, layer.weights, self.recording.graph)
        if self._mode is not None:
            self._mode.mark(answer, EDGES)  # attention that is returned is of edges, and of all of them
            self._mode.mark(outputs, self._calls)
        return answer

    def _feeds(self, given: ConvArguments) -> InputCalls:
        if self.stages is not None:
            return self.stages.inputs[self._calls - 1]
        mode = self._mode
        assert mode is not None
        found = []
        for x in given.inputs:
            stages = mode.marks(x)
            feeds = tuple(sorted(stage for stage in stages if stage > 0))
            if feeds and EDGES in stages:
                raise NotRowwiseError("the features of its nodes depend on edges outside its attention layers")
            if feeds and READOUT in stages:
                what = "the links that are asked for" if self.sample.reads == "links" else "whole graphs"
                raise NotRowwiseError(f"something between its attention layers sees {what}")
            found.append(feeds)
        if mode.marks(given.features) - {EDGES}:
            raise NotRowwiseError("its edge features depend on its nodes")
        mode.inputs.append(tuple(found))
        return mode.inputs[-1]

    def _mark(self, mode: StageMode, given: ModelCall) -> None:
        """Say which arguments are about nodes, graphs and edges."""
        of_graphs = READOUT if self.sample.graph_of is not None else INPUT
        stage = {Kind.NODE: INPUT, Kind.EDGE: EDGES, Kind.EDGES: EDGES, Kind.BATCH: of_graphs, Kind.PTR: of_graphs}
        stage[Kind.IDS] = READOUT
        for kind, value in zip(given.kinds, given.values, strict=True):
            if kind in stage:
                mode.mark(value, stage[kind])


def _counts(sample: Sample, graph: Graph) -> list[int]:
    """How many rows there are, of each type if there are several."""
    if graph.types is None:
        return [sample.node.numel()]
    return [sample.rows_of(graph.types.nodes(kind)).numel() for kind in graph.types.node_types]
