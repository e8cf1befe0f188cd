"""Checks that a model can run on single rows, made before the exact engine is used.

1. Each convolution runs on the edges that enter a few nodes. Its output must equal that of its algebra.
2. The model's forward runs on rows in another order, with nothing reduced. It must give the recorded inputs of every
   convolution and the recorded outputs, for any values in the decoy rows among them.

When a model is seen for the first time, it is checked on as many rows as there are nodes, and its stages are found.
Each later recording is checked on a few rows, because independence of the rows can depend on the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention.bypass_and_locality import loud_noise
from attree.attention.graph import Graph
from attree.attention.stand_ins import eval_mode
from attree.errors import ArgumentError
from attree.faithfulness.exact.attention_update import LayerTrace
from attree.faithfulness.exact.call_arguments import ConvArguments, MessageArguments
from attree.faithfulness.exact.check_samples import NODES, Sample
from attree.faithfulness.exact.lazy_features import Lazy, LazyRows, rows_of
from attree.faithfulness.exact.message_trace import MessageTrace
from attree.faithfulness.exact.recording import Arguments, Layer, Recorder, Recording, RowModel, by_type, read_arguments
from attree.faithfulness.exact.stages import EDGES, INPUT, READOUT, InputCalls, Reads, StageError, StageMode, Stages
from attree.subject import ModelCall
from attree.subject.arguments import Kind
from attree.subject.facts import RUNS_ON_ROWS, facts_of
from attree.subject.model_call import NotRowwiseError
from attree.subject.target_roots import OutputLevel
from attree.tensors.precision import same

Trace = tuple[list[Tensor], list[Tensor], list[int]]
"""Inputs and outputs of one call, and the number of the nodes that each input belongs to."""

Traces = list[Trace]
"""Inputs and outputs of each call, for all nodes or for those of a sample."""


def _node_rows(sample: Sample, layer: Layer, number: int) -> tuple[Tensor, Tensor]:
    """Return the rows of a sample that one of a call's inputs has, and their node numbers in that input."""
    kinds, types = layer.input_types, layer.graph.graph.types
    if kinds is None or types is None:
        return torch.arange(sample.node.numel(), device=sample.node.device), sample.node
    nodes = types.nodes(kinds[number])
    rows = sample.rows_of(nodes)
    return rows, sample.node[rows] - nodes.start


def rows_at(sample: Sample, layer: Layer, trace: Trace) -> Trace:
    """Return the inputs and outputs of a convolution call at the rows of a sample, from those at all rows."""
    before, after, sides = trace
    targets = (0,) if layer.graph.blocks is None else layer.graph.blocks.targets
    return (
        [rows_of(x, _node_rows(sample, layer, side)[1]) for side, x in zip(sides, before, strict=True)],
        [rows_of(out, _node_rows(sample, layer, number)[1]) for number, out in zip(targets, after, strict=True)],
        sides,
    )


_MIXES: dict[Reads | None, str] = {
    None: "the operations after its attention layers are not computed node by node",
    "links": "the operations after its attention layers do not treat each link separately",
    "graphs": "its readout does not treat each graph separately",
    "one graph": "its readout does not treat each graph separately",
}
"""Reason why outputs differ on rows, by what the outputs read."""


class RowCheck:
    """One run on rows with nothing reduced, compared with the recorded pass.

    Args:
        recording: The recorded pass.
        sample: The rows.
        rows: The recorded inputs and outputs of each call at these rows.
        stages: Which call feeds which; None to find out.
    """

    def __init__(self, recording: Recording, sample: Sample, rows: Traces, stages: Stages | None) -> None:
        self.recording = recording
        self.sample = sample
        self.rows = rows
        self.stages = stages
        self._mode = StageMode(_counts(sample, recording.graph)) if stages is None else None
        self._calls = 0

    def run(self) -> Stages:
        """Compare the convolutions' inputs and the outputs; return the stages, found in this run if not known."""
        recording, sample, mode = self.recording, self.sample, self._mode
        call = recording.call_on(sample.part(recording.graph), lazy=False, links=sample.link)
        call = self._with_noise(call)
        if mode is not None:
            self._mark(mode, call)
        with nullcontext() if mode is None else mode:
            output = recording.model(call, self._answer, self._around)
        if self._calls != len(recording.layers):
            raise NotRowwiseError("its forward calls other layers on rows")
        expected, reads_no_decoy = recording.output[sample.outputs], sample.reads_no_decoy
        if not isinstance(output, Tensor) or output.shape != expected.shape:
            raise NotRowwiseError("its forward returns another shape on rows")
        if not same(output[reads_no_decoy], expected[reads_no_decoy], expected.dtype):
            raise NotRowwiseError(_MIXES[sample.reads])
        if self.stages is not None:
            return self.stages
        assert mode is not None
        if mode.reads_ends and recording.passes_edges:
            raise NotRowwiseError("its edge features depend on its nodes")  # unless it gets no edges on rows
        if EDGES in mode.marks(output):
            raise NotRowwiseError("its output depends on edges outside its attention layers")
        return mode.result(output, sample.reads)

    def _with_noise(self, call: ModelCall) -> ModelCall:
        """Return the call with noise in the features of decoy rows."""
        types = self.recording.graph.types
        if types is None:
            fits = call.has_features and call.x.is_floating_point()
            return call.with_features(self._noisy(call.x, self.sample.decoy, 0)) if fits else call
        if call.features is None:
            return call
        decoys = {kind: self.sample.decoy[self.sample.rows_of(types.nodes(kind))] for kind in call.features}
        return call.with_features(
            {kind: self._noisy(x, decoys[kind], 0) if x.is_floating_point() else x for kind, x in call.features.items()}
        )

    def _noisy(self, rows: Tensor, decoy: Tensor, seed: int) -> Tensor:
        """Return the rows with noise in the decoys."""
        out = rows.clone()
        out[decoy] = loud_noise(rows[decoy], rows, seed)
        return out

    def _answer(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a convolution's recorded output for the rows; what is made on the way is not the model's."""
        with nullcontext() if self._mode is None else self._mode.outside_model():
            return self._compared(conv, args, kwargs)

    def _compared(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a convolution's recorded output for the rows; raise if its input differs from the recorded one."""
        self._calls += 1
        layers = self.recording.layers
        layer = layers[self._calls - 1] if self._calls <= len(layers) else None
        if layer is None or layer.conv is not conv:
            raise NotRowwiseError("its forward calls other layers on rows")
        arguments, (before, after, sides) = read_arguments(layer, args, kwargs), self.rows[self._calls - 1]
        if len(arguments.inputs) != len(before):
            raise NotRowwiseError("its forward calls other layers on rows")
        # Inputs that no call feeds do not depend on the reduced edge, so they need no check.
        fed = self._checked_feeds(arguments)
        for side, x, recorded in zip(sides, arguments.inputs, before, strict=True):
            is_no_decoy = ~self.sample.decoy[_node_rows(self.sample, layer, side)[0]]
            if fed[side] and (
                x.shape != recorded.shape or not same(x[is_no_decoy], recorded[is_no_decoy], recorded.dtype)
            ):
                raise NotRowwiseError("the operations between its attention layers are not computed node by node")
        targets = (0,) if layer.graph.blocks is None else layer.graph.blocks.targets
        outputs = [
            self._noisy(rows, self.sample.decoy[_node_rows(self.sample, layer, number)[0]], self._calls)
            for number, rows in zip(targets, after, strict=True)
        ]
        answer = arguments.answer(outputs, layer.weights, self.recording.graph)
        if self._mode is not None:
            self._mode.mark(answer, EDGES)  # returned attention has one row per edge
            self._mode.mark(outputs, self._calls)
        return answer

    def _around(self, conv: MessagePassing, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a layer without attention; while stages are found, its arguments have stages of their own."""
        layers, call = self.recording.layers, self._calls + 1
        layer = layers[call - 1] if call <= len(layers) else None
        if (
            self._mode is None
            or not isinstance(layer, MessageTrace)
            or layer.conv is not conv
            or layer.forward_arguments is None
        ):
            return forward(*args, **kwargs)
        args, kwargs = self._mode.enter(call, (args, kwargs))
        output = forward(*args, **kwargs)
        self._mode.leave(call, output)
        return output

    def _checked_feeds(self, arguments: Arguments) -> InputCalls:
        """Check that the model can run on rows, and return the earlier calls that feed each input of a convolution.

        Raise if it cannot, because an operation between its layers reads other rows or edges.
        """
        if self.stages is not None:
            return self.stages.inputs[self._calls - 1]
        mode = self._mode
        assert mode is not None
        input_calls = []
        for side in range(arguments.num_sides):
            stages = mode.outside(
                mode.marks([x for number, x in zip(arguments.sides, arguments.inputs, strict=True) if number == side])
            )
            if isinstance(arguments, MessageArguments):
                mode.meetings.add(stages)  # all of them are read at the same rows
            feeds = tuple(sorted(stage for stage in stages if stage > 0))
            if feeds and EDGES in stages:
                raise NotRowwiseError("the features of its nodes depend on edges outside its attention layers")
            if feeds and READOUT in stages:
                what = "the links to predict" if self.sample.reads == "links" else "whole graphs"
                raise NotRowwiseError(f"an operation between its attention layers sees {what}")
            input_calls.append(feeds)
        others = (
            [*arguments.edges.values(), *arguments.others.values()]
            if isinstance(arguments, MessageArguments)
            else arguments.features
        )
        if mode.marks(others) - {EDGES, READOUT if self.recording.predicts_edges else EDGES}:
            raise NotRowwiseError("its edge features depend on its nodes")
        mode.inputs.append(tuple(input_calls))
        return mode.inputs[-1]

    def _mark(self, mode: StageMode, call: ModelCall) -> None:
        """Mark arguments that belong to nodes, graphs and edges."""
        of_graphs = READOUT if self.sample.graph_of is not None else INPUT
        stage = {Kind.NODE: INPUT, Kind.EDGE: EDGES, Kind.EDGES: EDGES, Kind.BATCH: of_graphs, Kind.PTR: of_graphs}
        stage[Kind.IDS] = READOUT
        if self.recording.predicts_edges:
            stage[Kind.EDGES] = stage[Kind.EDGE] = READOUT
        if self.recording.model.tables is not None:
            mode.mark([self.sample.node, *self.recording.model.tables.positions], INPUT)
        for kind, value in zip(call.kinds, call.values, strict=True):
            if kind in stage:
                mode.mark(value, stage[kind])


def _counts(sample: Sample, graph: Graph) -> list[int]:
    """Return the number of rows, of each type if there are several."""
    if graph.types is None:
        return [sample.node.numel()]
    return [sample.rows_of(graph.types.nodes(kind)).numel() for kind in graph.types.node_types]


HOLDS_TABLES = "holds tables of nodes"
"""The fact that a model runs on rows if what it holds or makes with one row per node is cut to them."""

ENTERING = 2048
"""Approximate number of edges on which a convolution is compared with its algebra."""


class Checker:
    """Records forward passes of a model and checks that it can run on rows.

    Args:
        recorder: The recorder of the model.
        graph: The graph with self-loops.
        outputs: What the rows of the output belong to.

    Raises:
        NotRowwiseError: If the engine does not support the model's graph or outputs.
    """

    def __init__(self, recorder: Recorder, graph: Graph, outputs: OutputLevel) -> None:
        if graph.num_nodes == 0:
            raise NotRowwiseError("its graph has no nodes")
        if graph.types is not None:
            _check_types(recorder.call, outputs)
        ids = len(recorder.call.of_kind(Kind.IDS))
        if outputs.ends is not None and (outputs.ends.numel() == 0 or (ids == 0 and graph.types is not None)):
            raise NotRowwiseError("it returns one output per edge that it runs on")
        if ids > int(outputs.ends is not None or outputs.nodes is not None):
            raise NotRowwiseError("one of its arguments holds ids of nodes")
        self._recorder = recorder
        self._graph = graph
        self._outputs = outputs
        self._separated = recorder.call.batch is not None
        self._sample = Sample.of(outputs, graph, self._separated)

    def recording(self) -> tuple[Recording, Stages]:
        """Record a pass with the current weights; return it with the stages (which call feeds which).

        If the model fails a check, it is tried once more with its tables of nodes cut to the rows.

        Raises:
            NotRowwiseError: If the model fails a check; the message says why.
        """
        facts = facts_of(self._recorder.call)
        if facts.get(HOLDS_TABLES):
            return self._checked(has_tables=True)
        try:
            return self._checked(has_tables=False)
        except ArgumentError:
            raise
        except Exception:
            if RUNS_ON_ROWS in facts:
                raise
        result = self._checked(has_tables=True)
        facts[HOLDS_TABLES] = True
        return result

    def _checked(self, has_tables: bool) -> tuple[Recording, Stages]:
        """Record a pass and check it, with tables of nodes cut to rows or not."""
        recorder, model = self._recorder, self._recorder.weights(has_tables)
        facts = facts_of(recorder.call)
        key = "stages", self._outputs.level, self._outputs.node_type, self._separated, self._outputs.nodes is None
        stages: Stages | None = facts.get(key)
        recording, traces = self._record(model, stages is None)
        if stages is None and self._outputs.nodes is not None:
            self._check_selection(recording, self._outputs.nodes)
        with torch.no_grad():
            stages = self._compare(recording, traces, stages)
        facts[key], facts[RUNS_ON_ROWS] = stages, True
        for layer, rooted in zip(recording.layers, stages.rooted, strict=True):
            if isinstance(layer, MessageTrace) and not rooted:
                layer.forward_arguments = None
        return recording, stages

    @torch.no_grad()
    def _check_selection(self, recording: Recording, nodes: Tensor) -> None:
        """Raise unless the model returns some rows of what it returns without selecting nodes."""
        call, count = self._recorder.call.private(), len(self._graph.nodes(self._outputs.node_type))
        with eval_mode(call.model):
            expected = call.run()
        output = recording.output
        if output.shape[0] != count or not same(output[nodes], expected.to(output), expected.dtype):
            raise NotRowwiseError("it returns outputs of chosen nodes only, which it does not select by an index")

    def _record(self, model: RowModel, check: bool) -> tuple[Recording, Traces]:
        """Record a pass with the inputs and outputs of every call, at all rows if `check`, else at a sample of rows."""
        traces: Traces = []

        def watch(trace: Layer, arguments: Arguments, out: Tensor) -> None:
            # Later operations may change inputs and outputs in place.
            whole, before, after = check and self._outputs.batch is None, list(arguments.inputs), by_type(out, trace)
            if whole:
                before = [x if isinstance(x, Lazy) else x.clone() for x in before]
                after = [rows if isinstance(rows, Lazy) else rows.clone() for rows in after]
                traces.append((before, after, list(arguments.sides)))
            else:
                traces.append(rows_at(self._sample, trace, (before, after, list(arguments.sides))))
            if check and isinstance(trace, MessageTrace):
                trace.check(NODES, ENTERING)
            elif check and isinstance(trace, LayerTrace) and isinstance(arguments, ConvArguments):
                check_conv(trace, arguments, out)

        return self._recorder.record(model, watch), traces

    def _compare(self, recording: Recording, traces: Traces, stages: Stages | None) -> Stages:
        """Return which call feeds which; raise `NotRowwiseError` unless runs on rows agree with the recorded pass."""
        sample = self._sample
        try:
            if stages is not None:
                for rows_to_compare in sample.with_noise() if sample.whole else []:
                    RowCheck(recording, rows_to_compare, traces, stages).run()
                return RowCheck(recording, sample, traces, stages).run()
            if self._outputs.batch is None:
                few = [rows_at(sample, layer, trace) for layer, trace in zip(recording.layers, traces, strict=True)]
                stages = RowCheck(recording, sample, few, None).run()
                many = Sample.many(self._outputs, self._graph)
                lots = [rows_at(many, layer, trace) for layer, trace in zip(recording.layers, traces, strict=True)]
                for rows_to_compare in (many, *many.with_noise()):
                    RowCheck(recording, rows_to_compare, lots, stages).run()
                return stages
            stages = RowCheck(recording, sample, traces, None).run()
            for rows_to_compare in sample.with_noise() if sample.whole else []:
                RowCheck(recording, rows_to_compare, traces, stages).run()
            return stages
        except NotRowwiseError:
            raise
        except StageError as error:
            raise NotRowwiseError(str(error)) from error
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise NotRowwiseError(f"its forward fails on rows ({type(error).__name__}: {reason})") from error


def _check_types(call: ModelCall, outputs: OutputLevel) -> None:
    """Raise for heterogeneous models that cannot run on rows."""
    if outputs.batch is not None:
        raise NotRowwiseError("it returns outputs of heterogeneous graphs")
    if any(not isinstance(value, Tensor) for value in call.of_kind(Kind.IDS)):
        raise NotRowwiseError("it takes the links to predict as a dict")


def check_conv(trace: LayerTrace, arguments: ConvArguments, out: Tensor) -> None:
    """Check that a convolution's algebra (its arithmetic in steps) gives the convolution's output at a few nodes.

    Args:
        trace: The steps that the algebra computed.
        arguments: Arguments of the convolution's call.
        out: Output that the algebra computed.

    Raises:
        NotRowwiseError: If the convolution returns something else.
    """
    conv, layer = trace.algebra.conv, trace.graph
    count = min(NODES, layer.num_nodes)
    nodes = torch.linspace(0, layer.num_nodes - 1, count, device=layer.device).round().long()
    total = layer.entering.sizes[nodes].cumsum(0)
    nodes = nodes[total <= max(int(total[0]), ENTERING)]
    expected, places = (_run_on_types if layer.blocks is not None else _run_on_part)(trace, arguments, nodes)
    dtype = arguments.x.compact.dtype if isinstance(arguments.x, LazyRows) else arguments.x.dtype
    if not isinstance(expected, Tensor) or not same(out[places], expected, dtype):
        raise NotRowwiseError(f"its layer {type(conv).__name__} computes something else than its known arithmetic")


def _run_on_part(trace: LayerTrace, arguments: ConvArguments, nodes: Tensor) -> tuple[Any, Tensor]:
    """Run a convolution on the edges that enter some nodes; return its output for these nodes, and the nodes."""
    conv, enters = trace.algebra.conv, torch.isin(arguments.edge_index[1], nodes).nonzero().view(-1)
    edges = arguments.edge_index[:, enters]
    part_nodes = torch.cat([edges[0], nodes]).unique()
    features = {}
    if arguments.features is not None and trace.algebra.edge_argument is not None:
        features[trace.algebra.edge_argument] = rows_of(arguments.features, enters)
    out = type(conv).forward(conv, rows_of(arguments.x, part_nodes), torch.searchsorted(part_nodes, edges), **features)
    return (out[torch.searchsorted(part_nodes, nodes)] if isinstance(out, Tensor) else out), nodes


def _run_on_types(trace: LayerTrace, arguments: ConvArguments, nodes: Tensor) -> tuple[Any, Tensor]:
    """Do the same as `_run_on_part` for one or several relations; `nodes` are destinations."""
    conv, layer = trace.algebra.conv, trace.graph
    graph, blocks, types = layer.graph, layer.blocks, layer.graph.types
    assert blocks is not None
    assert types is not None
    first = 0 if len(blocks.targets) > 1 else types.nodes(blocks.inputs[blocks.targets[0]]).start
    ids = nodes + first
    edges, edge_ids = {}, {}
    for kind in blocks.relations:
        edge_index, ends = graph.typed_edges[kind], [types.nodes(kind[0]).start, types.nodes(kind[2]).start]
        edge_ids[kind] = torch.isin(edge_index[1] + ends[1], ids).nonzero().view(-1)
        edges[kind] = edge_index[:, edge_ids[kind]] + torch.tensor(ends, device=edge_index.device).view(2, 1)
    part_nodes = torch.cat([*(pair.view(-1) for pair in edges.values()), ids]).unique()
    of_type = {
        kind: part_nodes[types.type_of_nodes(part_nodes) == place] for place, kind in enumerate(types.node_types)
    }
    local = {
        kind: torch.stack([torch.searchsorted(of_type[side], pair[end]) for end, side in ((0, kind[0]), (1, kind[2]))])
        for kind, pair in edges.items()
    }
    x = [
        rows_of(rows, of_type[kind] - types.nodes(kind).start)
        for kind, rows in zip(blocks.inputs, arguments.inputs, strict=True)
    ]
    if arguments.types:
        outputs = type(conv).forward(conv, dict(zip(arguments.types, x, strict=True)), local)
        returned = [kind for kind in arguments.types if kind in outputs]
        out = torch.cat([outputs[kind] for kind in returned])
        of_rows = torch.cat([of_type[kind] for kind in returned])
    else:
        kind, features = blocks.relations[0], {}
        if arguments.features is not None and trace.algebra.edge_argument is not None:
            features[trace.algebra.edge_argument] = rows_of(arguments.features, edge_ids[kind])
        out = type(conv).forward(conv, x[0] if len(x) == 1 else tuple(x), local[kind], **features)
        of_rows = of_type[kind[2]]
    # Other nodes lack some of their entering edges.
    are_complete = torch.isin(of_rows, ids).nonzero().view(-1)
    return out[are_complete], of_rows[are_complete] - first
