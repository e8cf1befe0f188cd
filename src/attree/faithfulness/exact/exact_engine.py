"""Attention reduction by running the model's own forward on the rows that change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.softmax_hook import message_passing
from attree.attribution.pairs import Pairs
from attree.faithfulness.effect_measures import Progress, ReductionEngine, ReductionPass, ReductionWriter
from attree.faithfulness.exact.attention_update import CallUpdate, LayerTrace
from attree.faithfulness.exact.call_arguments import MessageArguments
from attree.faithfulness.exact.call_plans import ChunkPlan, RootRows
from attree.faithfulness.exact.check_samples import tried_pairs
from attree.faithfulness.exact.checks import Checker
from attree.faithfulness.exact.lazy_features import Lazy, LazyRows, Store
from attree.faithfulness.exact.lazy_sums import LazySums, Replaced
from attree.faithfulness.exact.message_trace import MessageTrace
from attree.faithfulness.exact.message_update import MessageUpdate
from attree.faithfulness.exact.recording import (
    Recorder,
    Recording,
    edge_free_modules,
    has_layers_without_attention,
    read_arguments,
)
from attree.faithfulness.exact.reduction_plan import ReductionPlan
from attree.faithfulness.exact.stages import INPUT, Stages
from attree.faithfulness.protocol import PROTOCOLS, ReductionProtocol, reduced_run
from attree.faithfulness.whole_graph_engine import fills_loops, rows_are_edges, rows_left
from attree.faithfulness.wide_floats import ExactRun, WideSubject
from attree.subject import Part, Subject
from attree.subject.model_call import NotRowwiseError
from attree.tensors.arrays import take_rows
from attree.tensors.memory import REDUCTION_MEMORY
from attree.tensors.precision import same


def finds_out_deletion(model: nn.Module) -> bool:
    """Whether passes of a model find out themselves whether they delete edges as the data would.

    It is so if layers read edges elsewhere than in a softmax, and exact updates know how.
    """
    return has_layers_without_attention(model) or any(map(fills_loops, message_passing(model)))


def _keeps_filled_loops(layer: LayerTrace) -> bool:
    """Whether a layer makes the features of self-loops from the other edges in a way that updates do not follow."""
    has_filled = getattr(layer.conv, "add_self_loops", False) and layer.edge is not None and fills_loops(layer.conv)
    return has_filled and layer.refilled is None


class ExactReducer(ReductionEngine):
    """Reduces edges by running the model's own forward on the rows that change.

    Do not change the model's arguments in place: a compact copy of the features may be kept between passes.

    Args:
        subject: The subject to explain.
        memory: Bytes of working memory; the rows of one reduced edge always stay in one chunk.

    Raises:
        NotRowwiseError: If the model cannot be run on rows; the message says why.
    """

    way = "exact updates of the rows that change"

    def __init__(self, subject: Subject, memory: int = REDUCTION_MEMORY) -> None:
        super().__init__(subject, memory)
        if not subject.layers.runs_on_data:
            raise NotRowwiseError("not all of its layers run on the nodes and edges of the data")
        recorder = Recorder(subject.call, subject.graph, memory, edge_free_modules(subject), subject.outputs)
        self._checker = Checker(recorder, subject.graph, subject.outputs)
        self._plans: dict[bool, ReductionPlan] = {}
        self._wide = WideSubject(subject)

    def record(self) -> ExactPass:
        """Run the model with its current weights, and store everything that reductions need.

        Raises:
            NotRowwiseError: If the model cannot be run on rows.
        """
        return ExactPass(self, *self._checker.recording(), cache(self._wide.run))

    def plan(self, pairs: Pairs, recording: Recording, stages: Stages, keep: bool, deletes: bool) -> ReductionPlan:
        """Return the plan for the pairs; with `keep`, store it for the next reduction of the same pairs."""
        shapes = [layer.shape for layer in recording.layers]
        deletes = deletes and any(shape.spreads for shape in shapes)
        plan = self._plans.get(deletes)
        if plan is not None and plan.pairs is pairs and plan.stages == stages and plan.shapes == shapes:
            return plan
        layers = [layer.graph for layer in recording.layers]
        outputs = self.subject.outputs
        plan = ReductionPlan(self.subject.graph, pairs, layers, shapes, stages, outputs, self.memory, deletes)
        if keep:
            self._plans[deletes] = plan
        return plan


class ExactPass(ReductionPass):
    """One recorded forward pass, in which single rows can be updated.

    Args:
        reducer: The engine that recorded it.
        recording: The recorded pass.
        stages: Which call of a convolution feeds which.
        run: Returns the subject in a type to run it in; called if layers have no attention.
    """

    def __init__(
        self, reducer: ExactReducer, recording: Recording, stages: Stages, run: Callable[[], ExactRun]
    ) -> None:
        # The recording lists all calls, from which a subject picks its layers, if there are any to pick.
        attention = None if reducer.subject.layers.untraced else recording.attention
        nodes = reducer.subject.outputs.nodes
        output = recording.output if nodes is None else recording.output[nodes]
        super().__init__(reducer.subject, attention or (lambda: run().attention), output)
        self._run = run if finds_out_deletion(reducer.subject.model) else None
        self._reducer = reducer
        self.recording = recording
        self._stages = stages

    @property
    def num_layers(self) -> int:
        """Length of the longest path of calls from the input to the output."""
        return self._stages.depth

    def reach_of(self, protocol: ReductionProtocol) -> int:
        """Number of hops whose edges can affect a target; one more if the first layer reads degrees (GCN)."""
        layers = zip(self.recording.layers, self._stages.feeds, strict=True)
        reads_degrees = any(layer.shape.spreads and not feeds for layer, feeds in layers)
        return self.num_layers + int(protocol.deletes and reads_degrees)

    @torch.no_grad()
    def deletes_data(self, again: bool = False) -> bool:
        """Whether outputs with an edge deleted are those of the model on the data without it, for a few edges.

        For other networks with attention layers only, `reads_other_edges` finds it out.
        """
        if self._run is None:
            return True
        if any(isinstance(layer, LayerTrace) and _keeps_filled_loops(layer) for layer in self.recording.layers):
            return False  # an edge or two that are tried may leave a maximum as it is
        run, removal = self._run(), PROTOCOLS["removal"]
        pairs = tried_pairs(self.subject, 1) if again else tried_pairs(self.subject)
        if not len(pairs):
            return True
        rows, call = self.subject.rows(pairs.targets)[pairs.owner], run.subject.call
        outputs = _Outputs(self.output[rows])
        self._measure(pairs, removal, outputs, None, keep=False)
        expected = outputs.values.clone()  # a deleted edge has no row, if output rows are those of edges
        with run.context(), reduced_run(call.model, removal) as reduced:
            for number, (edge, row) in enumerate(zip(pairs.edges, rows.tolist(), strict=True)):
                output = reduced(call, self.subject.graph, edge.view(1))
                if not rows_are_edges(self.subject):
                    expected[number] = output[row]
                elif (place := (rows_left(self.subject, edge.view(1)) == row).nonzero()).numel():
                    expected[number] = output[int(place)]
        return same(outputs.values, expected, run.dtype)

    def measure(self, pairs: Pairs, protocol: ReductionProtocol, writer: ReductionWriter, progress: Progress) -> None:
        """Reduce every pair's edge, one at a time; pairs whose edge carries no flow keep an effect of 0."""
        self._measure(pairs, protocol, writer, progress, keep=True)

    def effect(self, pairs: Pairs, protocol: ReductionProtocol) -> Tensor:
        """Return the dPC of every pair, [P]; nothing is kept for a second reduction of the same pairs."""
        pairs.check(self.subject.graph, self.num_layers)
        writer = ReductionWriter(pairs, self.output, self.subject.head, effect_only=True, step=self.resolution)
        self._measure(pairs, protocol, writer, None, keep=False)
        return writer.result.delta_pc

    @torch.no_grad()
    def _measure(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        writer: ReductionWriter | _Outputs,
        progress: Progress | None,
        keep: bool,
    ) -> None:
        """Reduce each pair's edge, one at a time, in chunks, and write the new outputs of the targets to `writer`."""
        plan = self._reducer.plan(pairs, self.recording, self._stages, keep, protocol.deletes)
        run = _RowRun(self.recording, plan, protocol)
        for chunk in plan.chunks(keep):
            if chunk.pairs.numel():
                writer.fill(chunk.pairs, take_rows(run(chunk), chunk.output_rows))
            if progress is not None:
                progress(chunk.done, plan.num_pairs)


class _Outputs:
    """Collects the outputs of pairs, as a `ReductionWriter` gets them."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def fill(self, positions: Tensor, output: Tensor) -> None:
        """Set the outputs of some pairs."""
        self.values[positions] = output.to(self.values.dtype)


class _RowRun:
    """Runs the model on the rows of a chunk."""

    def __init__(self, recording: Recording, plan: ReductionPlan, protocol: ReductionProtocol) -> None:
        self.recording = recording
        self.plan = plan
        self.protocol = protocol
        self._chunk: ChunkPlan | None = None
        self._calls = 0
        self._store = Store(())
        self._is_sending = False
        self._sent: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def __call__(self, chunk: ChunkPlan) -> Tensor:
        """Return the outputs of a chunk's rows."""
        self._chunk, self._calls, self._store = chunk, 0, Store(self.recording.model.tensors)
        stages = self.plan.stages
        rows, graph = chunk.rows[stages.family[INPUT]], self.recording.graph
        part = Part(rows.node, graph.original_edge_index, queries=chunk.queries)
        if stages.reads == "graphs" and stages.readout is not None:
            batch = self.recording.call.batch
            graph_of = None if batch is None else batch[graph.destination[chunk.variants.edge]]
            part = replace(part, graph=chunk.rows[stages.readout].variant, graph_of=graph_of)
            part = replace(part, num_graphs=chunk.variants.edge.numel())
        pairs, links = self.plan.pairs, None
        if self.recording.predicts_edges:
            links = take_rows(pairs.targets, take_rows(pairs.owner, chunk.pairs))
        return self.recording.model(self.recording.call_on(part, links=links), self.answer, self.around)

    def around(self, conv: MessagePassing, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a layer without attention on the rows that it returns.

        What it sends is computed from the rows that it is given: it runs on these first, until it passes messages.
        """
        assert self._chunk is not None
        number = self._calls
        root, layer = self._chunk.calls[number].root, self.recording.layers[number]
        if root is None:
            return forward(*args, **kwargs)
        assert isinstance(layer, MessageTrace)
        if root.sender is not None:
            self._is_sending = True
            try:
                forward(*args, **kwargs)
            except _Sent as sent:
                self._sent = sent.arguments
            finally:
                self._is_sending = False
        args, kwargs = _at_rows(args, kwargs, layer, root, self._chunk.calls[number].outputs[0].node, self._store)
        return forward(*args, **kwargs)

    def answer(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output of a convolution for the rows."""
        assert self._chunk is not None
        if self._is_sending:
            raise _Sent(args, kwargs)
        number, self._calls = self._calls, self._calls + 1
        layer = self.recording.layers[number]
        assert layer.conv is conv
        if self._sent is not None:
            (args, kwargs), self._sent = self._sent, None
        arguments = read_arguments(layer, args, kwargs)
        if isinstance(layer, MessageTrace):
            assert isinstance(arguments, MessageArguments)
            call = self._chunk.calls[number]
            outputs = MessageUpdate(layer, call, self._chunk, self.protocol, arguments, self._store).outputs()
        else:
            outputs = CallUpdate(number, layer, self.plan, self._chunk, self.protocol).outputs(arguments.inputs)
        return arguments.answer(outputs, layer.weights, self.recording.graph)


class _Sent(BaseException):
    """Ends the run of a layer when it passes messages; carries the arguments of its `propagate`."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = args, kwargs


def _at_rows(args: Any, kwargs: Any, layer: MessageTrace, root: RootRows, node: Tensor, store: Store) -> Any:
    """Return a layer's arguments at the rows that it returns: recorded features, or new ones where they changed."""
    moved: dict[int, Tensor] = {}

    def move(value: Any, recorded: Any) -> Any:
        if not isinstance(recorded, LazyRows) or not isinstance(value, Tensor):
            return value
        if id(value) not in moved:
            rows: Tensor = recorded.at(node)
            if root.sender is not None and root.place.numel():
                whole = value.read() if isinstance(value, Lazy) else value
                name = ("given", id(layer), len(moved))
                new = LazyRows(whole, root.sender, whole.dtype, store, name)
                rows = LazySums((Replaced(recorded.at(node), root.place, new),), node.numel())
            moved[id(value)] = rows
        return moved[id(value)]

    return torch.utils._pytree.tree_map(move, (args, kwargs), layer.forward_arguments)
