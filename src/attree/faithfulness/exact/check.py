"""Whether a model may be run on rows: found out before it is, never assumed.

1. Each convolution itself, on the edges that enter a few nodes, must return what its algebra recorded for them.
2. The model's forward on a few rows, without a reduction, must give the recorded inputs of every convolution and the
   recorded outputs, whatever stands in a decoy row among them.

The first is looked at once a model, and so is what feeds what; that rows are independent is looked at again with each
recording, because it can depend on the weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.looped_graph import LoopedGraph
from attree.faithfulness.exact.compare import check_conv, rows_of, same
from attree.faithfulness.exact.layer_edges import ConvArguments
from attree.faithfulness.exact.recording import Recorder, Recording
from attree.faithfulness.exact.refusal import CannotTakeApartError
from attree.faithfulness.exact.row_model import RowModel
from attree.faithfulness.exact.sample import Sample
from attree.faithfulness.exact.stages import BATCH, EDGES, INPUT, StageError, StageMode, Wiring
from attree.faithfulness.exact.trace import LayerTrace
from attree.subject import ModelInputs
from attree.subject.arguments import Kind

_KNOWN: WeakKeyDictionary[nn.Module, tuple[Any, Wiring]] = WeakKeyDictionary()
"""What feeds what in models that have been looked at, with what they were made of."""

Rows = list[tuple[Tensor, Tensor]]
"""For each call, the inputs and outputs that were recorded for the rows of a sample."""


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
        self._recorder = recorder
        self._graph = graph
        self._sample = Sample.of(recorder.inputs, graph)

    def recording(self) -> tuple[Recording, Wiring]:
        """Record a pass with the weights of now, and say what feeds what.

        Raises:
            CannotTakeApartError: If the model does not fit; the message says why.
        """
        recorder, model = self._recorder, self._recorder.weights()
        made_of = [*((id(conv), type(conv)) for conv in model.convs), *recorder.inputs.kinds()]
        known = _KNOWN.get(recorder.model)
        wiring = known[1] if known is not None and known[0] == made_of else None
        with model.opened():
            recording, rows = self._record(model, wiring is None)
            if recording.call.batch is not None and self._sample.copy is None:
                self._sample = Sample.of_one_graph(self._graph)
                recording, rows = self._record(model, False)
            wiring = self._compare(recording, rows, wiring)
        _KNOWN[recorder.model] = made_of, wiring
        return recording, wiring

    def _record(self, model: RowModel, check: bool) -> tuple[Recording, Rows]:
        rows: Rows = []

        def watch(trace: LayerTrace, given: ConvArguments, out: Tensor) -> None:
            rows.append((rows_of(given.x, self._sample.node), out[self._sample.node]))
            if check:
                check_conv(trace, given, out, self._graph)

        return self._recorder.record(model, watch), rows

    def _compare(self, recording: Recording, rows: Rows, wiring: Wiring | None) -> Wiring:
        try:
            if self._sample.whole:  # a decoy among all nodes of one graph changes the output: one more run, without
                _RowCheck(recording, self._sample, rows, wiring, decoy=True).run()
            return _RowCheck(recording, self._sample, rows, wiring, decoy=not self._sample.whole).run()
        except CannotTakeApartError:
            raise
        except StageError as error:
            raise CannotTakeApartError(str(error)) from error
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise CannotTakeApartError(f"its forward fails on rows ({type(error).__name__}: {reason})") from error


class _RowCheck:
    """One run on rows without a reduction.

    Args:
        recording: The recorded pass.
        sample: The rows.
        rows: What was recorded for them.
        wiring: What feeds what, if known.
        decoy: Whether the last row is filled with noise.
    """

    def __init__(self, recording: Recording, sample: Sample, rows: Rows, wiring: Wiring | None, decoy: bool) -> None:
        self.recording = recording
        self.sample = sample
        self.rows = rows
        self.wiring = wiring
        self.decoy = decoy
        self._mode = StageMode(sample.node.numel()) if wiring is None else None
        self._calls = 0

    def run(self) -> Wiring:
        """Compare inputs of convolutions and outputs; find what feeds what if that is not known."""
        recording, sample, mode = self.recording, self.sample, self._mode
        batch = sample.copy if recording.call.batch is not None else None
        graphs = sample.graph if batch is not None else None
        count = None if graphs is None else graphs.numel()
        given = recording.inputs_at(sample.node, batch, count, lazy=False)
        if self.decoy and given.x.is_floating_point():
            given.x[-1] = _noise(given.x, 0)
        if mode is not None:
            self._mark(mode, given)
        with nullcontext() if mode is None else mode:
            output = recording.model(given, self._answer)
        if self._calls != len(recording.layers):
            raise CannotTakeApartError("its forward calls other layers on rows")
        expected = recording.call.logits[sample.node if graphs is None else graphs]
        if not isinstance(output, Tensor) or output.shape != expected.shape:
            raise CannotTakeApartError("its forward returns something else on rows")
        kept = slice(expected.shape[0] - 1 if self.decoy else None)
        if not same(output[kept], expected[kept], expected.dtype):
            where = "what follows them is not computed node by node"
            raise CannotTakeApartError(where if graphs is None else "its readout does not treat each graph alone")
        if self.wiring is not None:
            return self.wiring
        assert mode is not None
        if EDGES in mode.of(output):
            raise CannotTakeApartError("its output depends on edges outside its attention layers")
        return mode.wiring(output, None if graphs is None else "one graph" if sample.whole else "graphs")

    def _answer(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """What a convolution returned for the rows, if it was called with what it was."""
        self._calls += 1
        layers = self.recording.layers
        layer = layers[self._calls - 1] if self._calls <= len(layers) else None
        if layer is None or layer.algebra.conv is not conv:
            raise CannotTakeApartError("its forward calls other layers on rows")
        given, (before, after) = ConvArguments.read(layer.algebra, args, kwargs), self.rows[self._calls - 1]
        feeds = self._feeds(given)
        kept = slice(before.shape[0] - 1 if self.decoy else None)
        # What no call feeds is as it was recorded, whatever is reduced.
        if feeds and (given.x.shape != before.shape or not same(given.x[kept], before[kept], before.dtype)):
            raise CannotTakeApartError("what stands between its attention layers is not computed node by node")
        out = after.clone()
        if self.decoy:
            out[-1] = _noise(out, self._calls)
        if self._mode is not None:
            self._mode.mark(out, {self._calls})
        return out

    def _feeds(self, given: ConvArguments) -> tuple[int, ...]:
        if self.wiring is not None:
            return self.wiring.feeds[self._calls - 1]
        mode = self._mode
        assert mode is not None
        stages = mode.of(given.x)
        feeds = tuple(sorted(stage for stage in stages if stage > 0))
        if feeds and EDGES in stages:
            raise CannotTakeApartError("the features of its nodes depend on edges outside its attention layers")
        if feeds and BATCH in stages:
            raise CannotTakeApartError("something between its attention layers sees whole graphs")
        if mode.of(given.features) - {EDGES}:
            raise CannotTakeApartError("its edge features depend on its nodes")
        mode.feeds.append(feeds)
        return feeds

    def _mark(self, mode: StageMode, given: ModelInputs) -> None:
        """Say which arguments are about nodes, graphs and edges."""
        call = self.recording.call
        mode.mark(given.x, {INPUT})
        mode.mark(given.edge_index, {EDGES})
        stage = {Kind.NODE: INPUT, Kind.EDGE: EDGES, Kind.BATCH: INPUT if call.batch is None else BATCH}
        for kind, (_, value) in zip(call.kinds, given.named(), strict=True):
            if kind in stage:
                mode.mark(value, {stage[kind]})


def _noise(like: Tensor, seed: int) -> Tensor:
    return torch.randn(like.shape[1:], generator=torch.Generator().manual_seed(seed)).to(like)
