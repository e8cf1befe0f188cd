"""Runs a model's forward on rows with nothing reduced, and compares the result with the recorded pass."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention.graph import Graph
from attree.attention.locality import loud_noise, same
from attree.faithfulness.exact.lazy_rows import rows_of
from attree.faithfulness.exact.messages import MessageArguments
from attree.faithfulness.exact.recording import Arguments, Layer, Recording, read_arguments
from attree.faithfulness.exact.sample import Sample
from attree.faithfulness.exact.stages import EDGES, INPUT, READOUT, InputCalls, Reads, StageMode, Stages
from attree.subject import ModelCall
from attree.subject.arguments import Kind
from attree.subject.part_check import NotRowwiseError

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
        call = recording.call_on(sample.part(recording.graph), lazy=False)
        call = self._with_noise(call)
        if mode is not None:
            self._mark(mode, call)
        with nullcontext() if mode is None else mode:
            output = recording.model(call, self._answer)
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
        fed = self._feeds(arguments)
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

    def _feeds(self, arguments: Arguments) -> InputCalls:
        """Return the earlier calls that feed each input of a convolution; raise if the model cannot run on rows."""
        if self.stages is not None:
            return self.stages.inputs[self._calls - 1]
        mode = self._mode
        assert mode is not None
        input_calls = []
        for side in range(arguments.num_sides):
            stages = mode.marks(
                [x for number, x in zip(arguments.sides, arguments.inputs, strict=True) if number == side]
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
        if mode.marks(others) - {EDGES}:
            raise NotRowwiseError("its edge features depend on its nodes")
        mode.inputs.append(tuple(input_calls))
        return mode.inputs[-1]

    def _mark(self, mode: StageMode, call: ModelCall) -> None:
        """Mark arguments that belong to nodes, graphs and edges."""
        of_graphs = READOUT if self.sample.graph_of is not None else INPUT
        stage = {Kind.NODE: INPUT, Kind.EDGE: EDGES, Kind.EDGES: EDGES, Kind.BATCH: of_graphs, Kind.PTR: of_graphs}
        stage[Kind.IDS] = READOUT
        for kind, value in zip(call.kinds, call.values, strict=True):
            if kind in stage:
                mode.mark(value, stage[kind])


def _counts(sample: Sample, graph: Graph) -> list[int]:
    """Return the number of rows, of each type if there are several."""
    if graph.types is None:
        return [sample.node.numel()]
    return [sample.rows_of(graph.types.nodes(kind)).numel() for kind in graph.types.node_types]
