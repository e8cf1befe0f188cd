"""Attention reduction by the model's own forward on the rows that change."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.capture import Attention
from attree.attention.looped_graph import LoopedGraph
from attree.attribution.pairs import Pairs
from attree.errors import UnsupportedModelError, expect
from attree.faithfulness.exact.check import Checker
from attree.faithfulness.exact.chunk_plan import ChunkPlan
from attree.faithfulness.exact.layer_edges import ConvArguments
from attree.faithfulness.exact.recording import Recorder, Recording
from attree.faithfulness.exact.reduction_plan import ReductionPlan
from attree.faithfulness.exact.refusal import CannotTakeApartError
from attree.faithfulness.exact.row_groups import LayerShape
from attree.faithfulness.exact.stages import INPUT, Wiring
from attree.faithfulness.exact.update import CallUpdate
from attree.faithfulness.protocol import Protocol
from attree.faithfulness.reduction import Progress, Reduction, ReductionWriter
from attree.memory import REDUCTION_MEMORY
from attree.ragged import take_rows
from attree.subject import ModelInputs
from attree.subject.head import Head


class ExactReducer:
    """Reduces edges of one forward pass, `model(x, edge_index, *args, **kwargs)`, of a model that runs on rows.

    Args:
        model: The model.
        x: Node features.
        edge_index: The graph's edges.
        *args: Further positional arguments of the model.
        graph: The looped graph of `edge_index`, if at hand.
        memory: Bytes of working memory; what one reduced edge changes is never cut.
        head: What the outputs mean.
        **kwargs: Further keyword arguments of the model.

    Raises:
        CannotTakeApartError: If the model cannot be run on rows; the message says why.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        edge_index: Tensor,
        *args: Any,
        graph: LoopedGraph | None = None,
        memory: int = REDUCTION_MEMORY,
        head: Head | None = None,
        **kwargs: Any,
    ) -> None:
        expect(memory > 0, "memory", "a number of bytes > 0", memory)
        if graph is None:
            graph = LoopedGraph(edge_index, x.shape[0])
        matches = graph.original_edge_index is edge_index or graph.matches(edge_index, x.shape[0])
        expect(matches, "graph", "the looped graph of `edge_index`", "another graph")
        self.model = model
        self.graph = graph
        self.memory = memory
        self.head = Head() if head is None else head
        self._recorder = Recorder(model, ModelInputs.of(model, x, edge_index, *args, **kwargs), graph, memory)
        self._plan: ReductionPlan | None = None
        self._checker = Checker(self._recorder, graph)
        self._recorded: tuple[Recording, Wiring] | None = self._checker.recording()

    @property
    def attention(self) -> Attention:
        """What the model attended to in the forward pass."""
        return self.recording.attention

    @property
    def recording(self) -> Recording:
        """Everything that the forward pass computed."""
        return self._forward()[0]

    def _forward(self) -> tuple[Recording, Wiring]:
        if self._recorded is None:
            try:
                self._recorded = self._checker.recording()
            except CannotTakeApartError as error:
                raise UnsupportedModelError(
                    f"Expected {type(self.model).__name__} to stay a model that can be run on rows, as it was with its "
                    f"first weights, but with those of now {error.reason}."
                ) from error
        return self._recorded

    def forget(self) -> None:
        """Drop the forward pass: whatever is asked next is answered by a new one, with the weights of then.

        The arguments of the model must stay as they were: a compact copy of features may have been kept.
        """
        self._recorded = None

    @torch.no_grad()
    def reduce(
        self, pairs: Pairs, protocol: Protocol, with_probability: bool = False, progress: Progress | None = None
    ) -> Reduction:
        """Reduce every pair's edge, one at a time; pairs whose edge carries no flow change nothing."""
        recording, wiring = self._forward()
        pairs.check(self.graph, wiring.depth)
        if self._plan is None or self._plan.pairs is not pairs or self._plan.wiring != wiring:
            shapes = [
                LayerShape(layer.algebra.heads, layer.algebra.channels, layer.by_edge) for layer in recording.layers
            ]
            self._plan = ReductionPlan(self.graph, pairs, shapes, wiring, recording.call.batch, self.memory)
        writer = ReductionWriter(pairs, recording.call.logits, self.head, with_probability)
        run = _RowRun(recording, self._plan, protocol)
        with recording.model.opened():
            for chunk in self._plan.chunks():
                if chunk.pairs.numel():
                    writer.fill(chunk.pairs, take_rows(run(chunk), chunk.found))
                if progress is not None:
                    progress(chunk.done, self._plan.num_pairs)
        return writer.result


class _RowRun:
    """Runs a model on the rows of chunks."""

    def __init__(self, recording: Recording, plan: ReductionPlan, protocol: Protocol) -> None:
        self.recording = recording
        self.plan = plan
        self.protocol = protocol
        self._chunk: ChunkPlan | None = None
        self._calls = 0

    def __call__(self, chunk: ChunkPlan) -> Tensor:
        """Class scores of a chunk's rows."""
        self._chunk, self._calls = chunk, 0
        wiring = self.plan.wiring
        rows = chunk.rows[wiring.family[INPUT]]
        batch = None if wiring.readout is None else chunk.rows[wiring.readout].edge
        return self.recording.model(self.recording.inputs_at(rows.node, batch, chunk.edges.numel()), self.answer)

    def answer(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """What a convolution returns for rows."""
        assert self._chunk is not None
        number, self._calls = self._calls, self._calls + 1
        layer = self.recording.layers[number]
        assert layer.algebra.conv is conv
        x = ConvArguments.read(layer.algebra, args, kwargs).x
        return CallUpdate(number, layer, self.plan, self._chunk, self.protocol).output(x)
