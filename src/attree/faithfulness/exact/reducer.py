"""Attention reduction by the model's own forward on the rows that change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention.capture import Attention
from attree.attribution.pairs import Pairs
from attree.errors import expect_memory
from attree.faithfulness.exact.changes import ChunkPlan, LayerShape
from attree.faithfulness.exact.check import Checker
from attree.faithfulness.exact.conv_arguments import ConvArguments
from attree.faithfulness.exact.plan import ReductionPlan
from attree.faithfulness.exact.recording import Recorder, Recording
from attree.faithfulness.exact.stages import INPUT, Stages
from attree.faithfulness.exact.update import CallUpdate
from attree.faithfulness.protocol import ReductionProtocol
from attree.faithfulness.reduction import Progress, Reduction, ReductionWriter
from attree.subject import Part, Subject
from attree.tensors.limits import REDUCTION_MEMORY
from attree.tensors.ragged import take_rows


class ExactReducer:
    """Reduces edges by the model's own forward on the rows that change.

    The arguments of the model must stay as they are: a compact copy of features may be kept between passes.

    Args:
        subject: What is explained.
        memory: Bytes of working memory; the rows of one reduced edge always stay in one chunk.

    Raises:
        NotRowwiseError: If the model cannot be run on rows; the message says why.
    """

    way = "exact updates of the rows that change"

    def __init__(self, subject: Subject, memory: int = REDUCTION_MEMORY) -> None:
        expect_memory(memory)
        self.subject = subject
        self.memory = memory
        outputs = subject.outputs  # first, as this may tell how the model is called
        self._checker = Checker(Recorder(subject.call, subject.graph, memory), subject.graph, outputs)
        self._plan: ReductionPlan | None = None

    def record(self) -> ExactPass:
        """Run the model with its weights of now, and keep everything that reductions need.

        Raises:
            NotRowwiseError: If it cannot be run on rows.
        """
        return ExactPass(self, *self._checker.recording())

    def plan(self, pairs: Pairs, recording: Recording, stages: Stages, keep: bool) -> ReductionPlan:
        """What reducing the pairs' edges touches; with `keep`, the plan is kept for the next reduction of the same."""
        if self._plan is not None and self._plan.pairs is pairs and self._plan.stages == stages:
            return self._plan
        shapes = [LayerShape(layer.algebra.heads, layer.algebra.channels, layer.by_edge) for layer in recording.layers]
        layers = [layer.graph for layer in recording.layers]
        plan = ReductionPlan(self.subject.graph, pairs, layers, shapes, stages, self.subject.outputs, self.memory)
        if keep:
            self._plan = plan
        return plan


class ExactPass:
    """One recorded forward pass.

    Args:
        reducer: What made it.
        recording: Everything that it computed.
        stages: What feeds what.
    """

    def __init__(self, reducer: ExactReducer, recording: Recording, stages: Stages) -> None:
        self._reducer = reducer
        self.recording = recording
        self._stages = stages

    @property
    def attention(self) -> Attention:
        """What the model attended to, in all calls of its convolutions."""
        return self.recording.attention

    def reduce(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        with_probability: bool = False,
        progress: Progress | None = None,
    ) -> Reduction:
        """Reduce every pair's edge, one at a time; pairs whose edge carries no flow change nothing."""
        writer = ReductionWriter(pairs, self.recording.output, self._reducer.subject.head, with_probability)
        return self._reduce(pairs, protocol, writer, progress)

    def effect(self, pairs: Pairs, protocol: ReductionProtocol) -> Tensor:
        """The dPC of every pair, [P], and nothing else: for pairs that are reduced once."""
        writer = ReductionWriter(pairs, self.recording.output, self._reducer.subject.head, effect_only=True)
        return self._reduce(pairs, protocol, writer, keep=False).delta_pc

    @torch.no_grad()
    def _reduce(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        writer: ReductionWriter,
        progress: Progress | None = None,
        keep: bool = True,
    ) -> Reduction:
        recording, subject = self.recording, self._reducer.subject
        pairs.check(subject.graph, self._stages.depth)
        plan = self._reducer.plan(pairs, recording, self._stages, keep)
        run = _RowRun(recording, plan, protocol)
        with recording.model.opened():
            for chunk in plan.chunks(keep):
                if chunk.pairs.numel():
                    writer.fill(chunk.pairs, take_rows(run(chunk), chunk.found))
                if progress is not None:
                    progress(chunk.done, plan.num_pairs)
        return writer.result


class _RowRun:
    """Runs a model on the rows of chunks."""

    def __init__(self, recording: Recording, plan: ReductionPlan, protocol: ReductionProtocol) -> None:
        self.recording = recording
        self.plan = plan
        self.protocol = protocol
        self._chunk: ChunkPlan | None = None
        self._calls = 0

    def __call__(self, chunk: ChunkPlan) -> Tensor:
        """Class scores of a chunk's rows."""
        self._chunk, self._calls = chunk, 0
        stages = self.plan.stages
        rows, graph = chunk.rows[stages.family[INPUT]], self.recording.graph
        part = Part(rows.node, graph.original_edge_index, queries=chunk.queries)
        if stages.reads == "graphs" and stages.readout is not None:
            own = self.recording.call.batch
            graph_of = None if own is None else own[graph.destination[chunk.edges]]
            part = replace(part, graph=chunk.rows[stages.readout].edge, graph_of=graph_of)
            part = replace(part, num_graphs=chunk.edges.numel())
        return self.recording.model(self.recording.call_on(part), self.answer)

    def answer(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a convolution returns for rows."""
        assert self._chunk is not None
        number, self._calls = self._calls, self._calls + 1
        layer = self.recording.layers[number]
        assert layer.algebra.conv is conv
        given = ConvArguments.read(layer.algebra, args, kwargs)
        outputs = CallUpdate(number, layer, self.plan, self._chunk, self.protocol).outputs(given.inputs)
        return given.answer(outputs, layer.weights, self.recording.graph)
