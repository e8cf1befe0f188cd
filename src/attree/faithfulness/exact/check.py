"""Checks that a model can run on rows, made before the exact engine is used.

1. Each convolution runs on the edges that enter a few nodes. Its output must equal that of its algebra.
2. The model's forward runs on rows in another order, with nothing reduced. It must give the recorded inputs of every
   convolution and the recorded outputs, for any values in the decoy rows among them.

When a model is seen for the first time, it is checked on as many rows as there are nodes, and its stages are found.
Each later recording is checked on a few rows, because independence of the rows can depend on the weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attention.locality import same
from attree.faithfulness.exact.conv_arguments import ConvArguments
from attree.faithfulness.exact.lazy_rows import Lazy, LazyRows, rows_of
from attree.faithfulness.exact.message_trace import MessageTrace
from attree.faithfulness.exact.recording import Arguments, Layer, Recorder, Recording, RowModel, by_type
from attree.faithfulness.exact.row_check import RowCheck, Traces, rows_at
from attree.faithfulness.exact.sample import NODES, Sample
from attree.faithfulness.exact.stages import StageError, Stages
from attree.faithfulness.exact.trace import LayerTrace
from attree.subject import ModelCall
from attree.subject.arguments import Kind
from attree.subject.part_check import NotRowwiseError
from attree.subject.roots import OutputLevel
from attree.subject.structure import RUNS_ON_ROWS, facts_of

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
        if outputs.nodes is not None:
            raise NotRowwiseError("it returns outputs of chosen nodes only")
        if graph.types is not None:
            _check_types(recorder.call, outputs)
        ids = len(recorder.call.of_kind(Kind.IDS))
        if outputs.ends is not None and (ids == 0 or outputs.ends.numel() == 0):
            raise NotRowwiseError("it returns one output per edge that it runs on")
        if ids > int(outputs.ends is not None):
            raise NotRowwiseError("one of its arguments holds ids of nodes")
        self._recorder = recorder
        self._graph = graph
        self._outputs = outputs
        self._separated = recorder.call.batch is not None
        self._sample = Sample.of(outputs, graph, self._separated)

    def recording(self) -> tuple[Recording, Stages]:
        """Record a pass with the current weights; return it with the stages (which call feeds which).

        Raises:
            NotRowwiseError: If the model fails a check; the message says why.
        """
        recorder, model = self._recorder, self._recorder.weights()
        facts = facts_of(recorder.call)
        key = "stages", self._outputs.level, self._outputs.node_type, self._separated
        stages: Stages | None = facts.get(key)
        recording, traces = self._record(model, stages is None)
        with torch.no_grad():
            stages = self._compare(recording, traces, stages)
        facts[key], facts[RUNS_ON_ROWS] = stages, True
        return recording, stages

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
