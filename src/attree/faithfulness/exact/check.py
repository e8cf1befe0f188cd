"""Whether a model may be run on rows: found out before it is, never assumed.

1. Each convolution itself, on the edges that enter a few nodes, must return what its algebra recorded for them.
2. The model's forward on rows in another order, without a reduction, must give the recorded inputs of every convolution
   and the recorded outputs, whatever stands in decoy rows among them.

When a model is first seen, this is looked at for as many rows as there are nodes, and so is what feeds what. With each
later recording a few rows are looked at again, because independence can depend on the weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.graph import Graph
from attree.faithfulness.exact.compare import check_conv, rows_of, same
from attree.faithfulness.exact.layer_edges import ConvArguments
from attree.faithfulness.exact.lazy_rows import LazyRows
from attree.faithfulness.exact.recording import Recorder, Recording
from attree.faithfulness.exact.refusal import CannotTakeApartError
from attree.faithfulness.exact.row_model import RowModel
from attree.faithfulness.exact.sample import MANY_NODES, Sample, loud_noise
from attree.faithfulness.exact.stages import BATCH, EDGES, INPUT, StageError, StageMode, Wiring
from attree.faithfulness.exact.trace import LayerTrace
from attree.subject import ModelCall
from attree.subject.arguments import Kind
from attree.subject.level import OutputLevel

_KNOWN: WeakKeyDictionary[nn.Module, tuple[Any, Wiring]] = WeakKeyDictionary()
"""What feeds what in models that have been looked at, with what it depends on."""

Traces = list[tuple[Tensor, Tensor]]
"""For each call, the inputs and outputs that were recorded, of all nodes."""


class Checker:
    """Makes recordings of models that have been found fit.

    Args:
        recorder: Records the model.
        graph: The looped graph.
        outputs: What the rows of the output are those of.

    Raises:
        CannotTakeApartError: If there is nothing to look at.
    """

    def __init__(self, recorder: Recorder, graph: Graph, outputs: OutputLevel) -> None:
        if graph.num_nodes == 0:
            raise CannotTakeApartError("its graph has no nodes")
        if outputs.level == "edge" or outputs.nodes is not None:
            raise CannotTakeApartError("its outputs are those of chosen nodes")
        if recorder.call.of_kind(Kind.IDS):
            raise CannotTakeApartError("one of its arguments holds ids of nodes")
        self._recorder = recorder
        self._graph = graph
        self._outputs = outputs
        self._told_apart = recorder.call.batch is not None
        self._sample = Sample.of(outputs, graph, self._told_apart)

    def recording(self) -> tuple[Recording, Wiring]:
        """Record a pass with the weights of now, and say what feeds what.

        Raises:
            CannotTakeApartError: If the model does not fit; the message says why.
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
                many = Sample.of_nodes(self._graph, MANY_NODES, seed=1)
                lots = [(rows_of(before, many.node), after[many.node]) for before, after in traces]
                for one in (many, *many.with_noise()):
                    _RowCheck(recording, one, lots, wiring).run()
                return wiring
            wiring = _RowCheck(recording, sample, traces, None).run()
            for one in sample.with_noise() if sample.whole else []:
                _RowCheck(recording, one, traces, wiring).run()
            return wiring
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
    """

    def __init__(self, recording: Recording, sample: Sample, rows: Traces, wiring: Wiring | None) -> None:
        self.recording = recording
        self.sample = sample
        self.rows = rows
        self.wiring = wiring
        self._mode = StageMode(sample.node.numel()) if wiring is None else None
        self._calls = 0

    def run(self) -> Wiring:
        """Compare inputs of convolutions and outputs; find what feeds what if that is not known."""
        recording, sample, mode = self.recording, self.sample, self._mode
        given = recording.call_on(sample.part(recording.graph.original_edge_index), lazy=False)
        if given.has_features and given.x.is_floating_point():
            given = given.with_features(self._noisy(given.x, 0))
        if mode is not None:
            self._mark(mode, given)
        with nullcontext() if mode is None else mode:
            output = recording.model(given, self._answer)
        if self._calls != len(recording.layers):
            raise CannotTakeApartError("its forward calls other layers on rows")
        decoys = sample.decoy_graphs
        expected = recording.output[sample.node if sample.graph_of is None else sample.graph_of]
        if not isinstance(output, Tensor) or output.shape != expected.shape:
            raise CannotTakeApartError("its forward returns something else on rows")
        kept = ~(sample.decoy if decoys is None else decoys)
        if not same(output[kept], expected[kept], expected.dtype):
            where = "what follows them is not computed node by node"
            raise CannotTakeApartError(where if decoys is None else "its readout does not treat each graph alone")
        if self.wiring is not None:
            return self.wiring
        assert mode is not None
        if EDGES in mode.marks(output):
            raise CannotTakeApartError("its output depends on edges outside its attention layers")
        return mode.wiring(output, None if decoys is None else "one graph" if sample.whole else "graphs")

    def _noisy(self, rows: Tensor, seed: int) -> Tensor:
        """The rows with noise in those of decoys."""
        out = rows.clone()
        out[self.sample.decoy] = loud_noise(rows[self.sample.decoy], rows, seed)
        return out

    def _answer(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a convolution returned for the rows, if it was called with what it was."""
        self._calls += 1
        layers = self.recording.layers
        layer = layers[self._calls - 1] if self._calls <= len(layers) else None
        if layer is None or layer.algebra.conv is not conv:
            raise CannotTakeApartError("its forward calls other layers on rows")
        given, (before, after) = ConvArguments.read(layer.algebra, args, kwargs), self.rows[self._calls - 1]
        feeds = self._feeds(given)
        kept = ~self.sample.decoy
        # What no call feeds is as it was recorded, whatever is reduced.
        if feeds and (given.x.shape != before.shape or not same(given.x[kept], before[kept], before.dtype)):
            raise CannotTakeApartError("what stands between its attention layers is not computed node by node")
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
            raise CannotTakeApartError("the features of its nodes depend on edges outside its attention layers")
        if feeds and BATCH in stages:
            raise CannotTakeApartError("something between its attention layers sees whole graphs")
        if mode.marks(given.features) - {EDGES}:
            raise CannotTakeApartError("its edge features depend on its nodes")
        mode.feeds.append(feeds)
        return feeds

    def _mark(self, mode: StageMode, given: ModelCall) -> None:
        """Say which arguments are about nodes, graphs and edges."""
        of_graphs = BATCH if self.sample.graph_of is not None else INPUT
        stage = {Kind.NODE: INPUT, Kind.EDGE: EDGES, Kind.EDGES: EDGES, Kind.BATCH: of_graphs, Kind.PTR: of_graphs}
        for kind, value in zip(given.kinds, given.values, strict=True):
            if kind in stage:
                mode.mark(value, stage[kind])
