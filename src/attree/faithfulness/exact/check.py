"""Checks that a model may be run on rows, before it is.

1. Each convolution, run on the edges that enter a few nodes, must return what its algebra computed for these nodes.
2. The model's forward on rows in another order, with nothing reduced, must give the recorded inputs of every
   convolution and the recorded outputs, whatever the decoy rows among them hold.

A model seen for the first time is checked on as many rows as there are nodes, and its stages are found. With each
later recording a few rows are checked again, because independence can depend on the weights.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from attree.attention.graph import Graph
from attree.faithfulness.exact.conv_arguments import ConvArguments
from attree.faithfulness.exact.conv_check import check_conv
from attree.faithfulness.exact.lazy_rows import LazyRows
from attree.faithfulness.exact.recording import Recorder, Recording, RowModel, by_type
from attree.faithfulness.exact.row_check import RowCheck, Traces, rows_at
from attree.faithfulness.exact.sample import Sample
from attree.faithfulness.exact.stages import StageError, Stages
from attree.faithfulness.exact.trace import LayerTrace
from attree.subject import ModelCall
from attree.subject.arguments import Kind
from attree.subject.level import OutputLevel
from attree.subject.part_check import NotRowwiseError

_KNOWN: WeakKeyDictionary[nn.Module, tuple[Any, Stages]] = WeakKeyDictionary()
"""The stages of models that were checked before, with everything that they depend on."""


class Checker:
    """Records passes of a model that has passed the checks.

    Args:
        recorder: Records the model.
        graph: The looped graph.
        outputs: What the rows of the output belong to.

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
                traces.append(rows_at(self._sample, trace, (before, after)))
            if check:
                check_conv(trace, given, out)

        return self._recorder.record(model, watch), traces

    def _compare(self, recording: Recording, traces: Traces, stages: Stages | None) -> Stages:
        sample = self._sample
        try:
            if stages is not None:
                for one in sample.with_noise() if sample.whole else []:
                    RowCheck(recording, one, traces, stages).run()
                return RowCheck(recording, sample, traces, stages).run()
            if self._outputs.batch is None:
                few = [rows_at(sample, layer, trace) for layer, trace in zip(recording.layers, traces, strict=True)]
                stages = RowCheck(recording, sample, few, None).run()
                many = Sample.many(self._outputs, self._graph)
                lots = [rows_at(many, layer, trace) for layer, trace in zip(recording.layers, traces, strict=True)]
                for one in (many, *many.with_noise()):
                    RowCheck(recording, one, lots, stages).run()
                return stages
            stages = RowCheck(recording, sample, traces, None).run()
            for one in sample.with_noise() if sample.whole else []:
                RowCheck(recording, one, traces, stages).run()
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
