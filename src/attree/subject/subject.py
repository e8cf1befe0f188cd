"""The subject of an explanation: one call of a model on a graph, recorded in one forward pass."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from attree.attention.alignment import OtherEdgesError
from attree.attention.capture import Attention, capture_run, without_tree
from attree.attention.graph import Graph
from attree.attention.marked_tensors import tensors_in
from attree.attention.stand_ins import WritesTensorError, eval_mode, kept_tensors
from attree.attention.wiring import Wiring
from attree.errors import ArgumentError, AttreeError, UnsupportedModelError, expect
from attree.subject.arguments_from_data import Call, bind_data
from attree.subject.head import Head, check_output
from attree.subject.level import level_of
from attree.subject.local_and_global_layers import GlobalTrace, global_records, global_trace
from attree.subject.model_call import ModelCall
from attree.subject.readout import PoolTrace, Readout, check_readout, read_readout, readout_weights, record_pools
from attree.subject.target_roots import LEVELS, Level, OutputLevel, Roots, Targets
from attree.subject.traced_edges import trace_owners, with_messages
from attree.tensors.precision import same


@dataclass(frozen=True, eq=False)
class RecordedPass:
    """What one pass of a model says: what it returned, its layers, which feeds which, and how it pools nodes.

    Attributes:
        call: The call that ran.
        graph: Its graph, with the edges that messages come from if layers run on others.
        returned: What the model returned.
        attention_or_error: The attention, or why it could not be captured.
        global_trace_or_error: All layers if some attend over all nodes, or why these could not be read.
        batch: The graph of each node that was assumed; None for one graph.
        pools: The operations that pool nodes; None if they were not recorded.
    """

    call: ModelCall
    graph: Graph
    returned: Any
    attention_or_error: Attention | AttreeError
    global_trace_or_error: GlobalTrace | AttreeError | None = None
    batch: Tensor | None = None
    pools: PoolTrace | None = None

    @classmethod
    def of(
        cls, call: ModelCall, graph: Graph, wiring: Wiring | None, batch: Tensor | None, reads_pools: bool
    ) -> RecordedPass:
        """Run a call once and record it.

        Args:
            call: The call.
            graph: Its graph.
            wiring: Which layer feeds which, if it is known from an earlier pass.
            batch: The graph of each node, if it is known.
            reads_pools: Whether to record how nodes of graphs are pooled.
        """
        everywhere = global_records(call, batch)
        pools: list[PoolTrace] = []

        def run() -> Any:
            if batch is None or not reads_pools or pools:
                return call.run()
            with record_pools(call.model, batch) as trace:
                pools.append(trace)
                return call.run()

        watched_writes = kept_tensors(call.user_model) if call.original is not None else nullcontext()
        try:
            try:
                with watched_writes:
                    attention = capture_run(
                        call.model, run, graph, wiring, arguments=call.described, everywhere=everywhere
                    )
            except OtherEdgesError as error:
                messages = trace_owners(call, graph, error)
                graph, call = with_messages(graph, messages), replace(call, messages=messages)
                everywhere = global_records(call, batch)
                attention = capture_run(call.model, run, graph, wiring, arguments=call.described, everywhere=everywhere)
        except WritesTensorError:  # another stand-in has a copy of the tensor
            return cls.of(call.private(), graph, wiring, batch, reads_pools)
        except UnsupportedModelError as error:
            # A traceback would keep the features of all layers alive.
            return cls._without_tree(call, graph, error.with_traceback(None))
        trace: GlobalTrace | AttreeError | None
        try:
            trace = global_trace(call, graph, attention.layout, everywhere)
        except UnsupportedModelError as error:
            trace = error.with_traceback(None)
        return cls(call, graph, attention.output, attention, trace, batch, pools[0] if pools else None)

    @classmethod
    def _without_tree(cls, call: ModelCall, graph: Graph, reason: UnsupportedModelError) -> RecordedPass:
        """Run a call whose layers form no computation tree, and record what is known all the same."""
        watched_writes = kept_tensors(call.user_model) if call.original is not None else nullcontext()
        try:
            with watched_writes:
                attention = without_tree(call.model, call.run, call.values, graph, reason)
            reads_edges = attention.runs_on_data or _reads_edges(call, attention.output)
        except WritesTensorError:
            return cls._without_tree(call.private(), graph, reason)
        except Exception:
            raise reason from None
        return cls(call, graph, attention.output, attention if reads_edges else reason)

    @torch.no_grad()
    def readout_weights(self, batch: Tensor) -> Tensor | None:
        """Return the weights of nodes in the readout, see `read_readout`; another pass runs if it was not recorded."""
        if self.pools is not None and self.batch is not None and torch.equal(self.batch, batch):
            return read_readout(self.pools, self.returned, batch)
        with eval_mode(self.call.model), record_pools(self.call.model, batch) as pools:
            output = self.call.run()
        return read_readout(pools, output, batch)


@dataclass(frozen=True, eq=False)
class Subject:
    """The subject of an explanation: a call of a model on a graph, and what one recorded pass of it says.

    The pass runs when the subject is made, with the weights of that moment. A subject never changes: `with_attention`
    and `with_current_weights` return another one for other weights, with the same targets and the same meaning of the
    outputs. What cannot be found out is stored as the error that says why, and raised when it is read: the targets of a
    model are known even if its attention cannot be captured.

    Targets are nodes (node level), pairs of nodes (edge level) or graphs of a batch (graph level). In a heterogeneous
    graph, target nodes are numbered within the explained type, and `roots` converts them into ids of the union of all
    types.

    Attributes:
        graph: The graph of the call.
        outputs: What each row of the output belongs to: a node, a pair of nodes, or a graph.
        model_call: The call of a stand-in of the model; None if there is only attention.
        returned: What the model returned in the recorded pass.
        attention_or_error: The attention of the recorded pass, or why it could not be captured.
        head_or_error: The meaning of the outputs, or why it could not be inferred.
        readout: Graph level: how nodes are pooled into a graph; None reads it from the model.
        node_weights: Graph level: the weight of each node in the readout, [num_nodes]; None at other levels.
        global_trace_or_error: All layers in the order of the pass if some attend over all nodes, or why these could not
            be read; None if none do.
    """

    graph: Graph
    outputs: OutputLevel
    model_call: ModelCall | None
    returned: Any
    attention_or_error: Attention | AttreeError
    head_or_error: Head | AttreeError
    readout: Readout | None = None
    node_weights: Tensor | None = None
    global_trace_or_error: GlobalTrace | AttreeError | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        x: Any,
        edge_index: Any,
        *args: Any,
        graph: Graph | None = None,
        level: Level | None = None,
        readout: Readout | None = None,
        head: Head | None = None,
        node_type: str | Tensor | None = None,
        **kwargs: Any,
    ) -> Subject:
        """Return the subject of the call `model(x, edge_index, *args, **kwargs)`.

        Args:
            model: The model.
            x: Node features; for a heterogeneous graph, a dict by node type.
            edge_index: Edges; for a heterogeneous graph, a dict by edge type.
            *args: Further positional arguments of the model.
            graph: The graph of the call, if it was built already.
            level: What each row of the output belongs to: `node`, `edge` or `graph`; None infers it.
            readout: Graph level: how nodes are pooled into a graph: `sum`, `mean`, `max` or one weight per node; None
                infers it, see `read_readout`.
            head: The meaning of the outputs; by default logits of classes, or one logit of a binary class.
            node_type: The node type to explain, if the model returns several; a tensor is passed to the model.
            **kwargs: Further keyword arguments of the model.
        """
        if isinstance(node_type, Tensor):  # an argument of the model, as HEATConv has it
            node_type, kwargs = None, {**kwargs, "node_type": node_type}
        call = ModelCall.of(model, x, edge_index, *args, **kwargs).with_node_type(node_type)
        return cls.of_call(call, graph=graph, level=level, readout=readout, head=head)

    @classmethod
    def of_data(
        cls,
        model: nn.Module,
        data: Data | HeteroData,
        *,
        call: Call | None = None,
        level: Level | None = None,
        readout: Readout | None = None,
        head: Head | None = None,
        node_type: str | None = None,
    ) -> Subject:
        """Return the subject of a model on a PyG graph or batch; the graph's attributes are the model's arguments.

        Args:
            model: The model.
            data: The graph.
            call: Function `call(model, data)` that calls the model; None uses the model's forward.
            level: What each row of the output belongs to: `node`, `edge` or `graph`; None infers it.
            readout: Graph level: how nodes are pooled into a graph.
            head: The meaning of the outputs.
            node_type: Heterogeneous graphs: the node type to explain, if the model returns several.
        """
        bound = bind_data(model, data, call).with_node_type(node_type)
        return cls.of_call(bound, level=level, readout=readout, head=head)

    @classmethod
    def of_call(
        cls,
        call: ModelCall,
        *,
        graph: Graph | None = None,
        level: Level | None = None,
        readout: Readout | None = None,
        head: Head | None = None,
    ) -> Subject:
        """Return the subject of a call; the arguments are those of `of`."""
        check_readout(readout)
        expect(level in (None, *LEVELS), "level", "'node', 'edge', 'graph' or None", level)
        if graph is None:
            graph = call.graph
        else:
            matches = graph.matches(call.edge_index, call.num_nodes)
            expect(matches, "graph", "the graph of `edge_index`", "another graph")
            graph = graph if graph.messages is None else graph.traced(None, None)  # another model may have traced them
        call = call.private()
        may_pool = call.batch is not None and level in (None, "graph") and readout is None
        recorded = RecordedPass.of(call, graph, None, call.batch, may_pool)
        attention, returned, call, graph = (
            recorded.attention_or_error,
            recorded.returned,
            recorded.call,
            recorded.graph,
        )
        outputs, call = level_of(call, returned, level)
        meaning = _meaning(Head() if head is None else head, attention, returned)
        subject = cls(graph, outputs, call, returned, attention, meaning, readout)
        if outputs.batch is not None and recorded.global_trace_or_error is not None and call.batch is None:
            # Only now it is known which argument holds the graph of each node.
            recorded = subject._recorded(call)
        return subject._with(replace(recorded, call=call))

    @classmethod
    def of_attention(cls, attention: Attention, batch: Tensor | None = None, readout: Readout | None = None) -> Subject:
        """Return a subject without a model, for methods that only need attention; with `batch`, targets are graphs."""
        check_readout(readout)
        outputs = OutputLevel("node") if batch is None else OutputLevel("graph", batch=batch)
        subject = cls(attention.graph, outputs, None, attention.output, attention, Head(), readout)
        return replace(subject, node_weights=subject._node_weights())

    @property
    def call(self) -> ModelCall:
        """The model's call."""
        if self.model_call is None:
            raise ArgumentError("Expected argument `subject` to have a model, but got one made of attention alone.")
        return self.model_call

    @property
    def model(self) -> nn.Module:
        """The stand-in of the model: a private copy of its modules with the same weights, see `stand_in`."""
        return self.call.model

    @property
    def attention(self) -> Attention:
        """The attention of the recorded pass; raises if its layers form no computation tree."""
        self.layers.check_tree()
        return self.layers

    @property
    def layers(self) -> Attention:
        """What the recorded pass says of the layers, also if they form no computation tree (`Attention.untraced`)."""
        if isinstance(self.attention_or_error, AttreeError):
            raise self.attention_or_error.with_traceback(None)
        return self.attention_or_error

    @property
    def global_trace(self) -> GlobalTrace | None:
        """All layers in the order of the recorded pass, if some attend over all nodes; None if none do."""
        if isinstance(self.global_trace_or_error, AttreeError):
            raise self.global_trace_or_error.with_traceback(None)
        return self.global_trace_or_error

    @property
    def head(self) -> Head:
        """The meaning of the outputs, inferred from the outputs and the last function of the model."""
        if isinstance(self.head_or_error, AttreeError):
            raise self.head_or_error.with_traceback(None)
        return self.head_or_error

    @property
    def output(self) -> Tensor:
        """The output of the model: one row of numbers per target."""
        check_output(self.returned)
        output: Tensor = self.returned
        return output

    def with_attention(self, attention: Attention) -> Subject:
        """Return this subject with attention of another pass of the same call, for a new stand-in of its model.

        If the attention lists all convolution calls, only layers are kept. If the factors of the layers change with the
        weights of the model, the model runs once more to find them.
        """
        wiring = self._wiring
        if attention.wiring is None and wiring is not None:
            if not wiring.is_fixed:
                return self.with_current_weights()
            attention = attention.wired(wiring)
        if self.model_call is None:
            subject = replace(self, attention_or_error=attention, returned=attention.output)
            return replace(subject, node_weights=subject._node_weights())
        call = self.model_call.private()
        if self.global_trace_or_error is None and not self._reads_pools:
            return self._with(RecordedPass(call, self.graph, attention.output, attention))
        # The other pass did not record the readout, nor the layers over all nodes.
        subject = self._with(self._recorded(call))
        return replace(subject, attention_or_error=attention, returned=attention.output)

    def with_current_weights(self) -> Subject:
        """Return this subject as recorded in a new pass, with the current weights and attributes of its model."""
        return self.on_call(self.call.private())

    def on_model(self, model: nn.Module) -> Subject:
        """Return this subject with another model of the same structure, such as a copy with other weights."""
        return self.on_call(self.call.on_model(model).private())

    def on_call(self, call: ModelCall) -> Subject:
        """Return this subject with another call of the same structure, such as one in another floating-point type."""
        return self._with(self._recorded(call))

    @property
    def _wiring(self) -> Wiring | None:
        """Which layer feeds which; None if attention could not be captured."""
        return None if isinstance(self.attention_or_error, AttreeError) else self.attention_or_error.wiring

    def _recorded(self, call: ModelCall) -> RecordedPass:
        """Return a recorded pass of a call of the same structure."""
        return RecordedPass.of(call, self.graph, self._wiring, self.batch, self._reads_pools)

    @property
    def _reads_pools(self) -> bool:
        """Whether the weights of nodes in the readout are read from the model."""
        return self.batch is not None and self.readout is None

    def _with(self, recorded: RecordedPass) -> Subject:
        """Return this subject with what a recorded pass says."""
        subject = replace(
            self,
            graph=recorded.graph,
            model_call=recorded.call,
            returned=recorded.returned,
            attention_or_error=recorded.attention_or_error,
            global_trace_or_error=recorded.global_trace_or_error,
        )
        return replace(subject, node_weights=subject._node_weights(recorded))

    def _node_weights(self, recorded: RecordedPass | None = None) -> Tensor | None:
        """Return the weights of nodes in the readout if the targets are graphs."""
        batch, attention = self.batch, self.attention_or_error
        if batch is None or isinstance(attention, AttreeError) or attention.untraced is not None:
            return None
        fits = batch.shape == (self.graph.num_nodes,) and batch.dtype == torch.int64
        expected = f"{self.graph.num_nodes} graph ids of dtype torch.int64, one per node"
        expect(fits, "batch", expected, f"{tuple(batch.shape)} of {batch.dtype}")
        read = None if recorded is None else lambda: recorded.readout_weights(batch)
        # A subject that is recorded again has weights already, and has said where they come from.
        return readout_weights(self.readout, batch, attention.embedding, read, warns=self.node_weights is None)

    @property
    def level(self) -> Level:
        """The level of the output's rows: `node`, `edge` or `graph`."""
        return self.outputs.level

    @property
    def batch(self) -> Tensor | None:
        """Graph level: the graph of each node; otherwise None."""
        return self.outputs.batch

    @property
    def graph_of_nodes(self) -> Tensor:
        """The graph of each node, as the model's attention over all nodes separates them; 0 for a single graph."""
        batch = self.batch if self.model_call is None or self.model_call.batch is None else self.model_call.batch
        return torch.zeros(self.graph.num_nodes, dtype=torch.long, device=self.device) if batch is None else batch

    @property
    def num_layers(self) -> int:
        """Depth of the computation tree."""
        return self.layers.num_layers

    @property
    def device(self) -> torch.device:
        """Device of the graph."""
        return self.graph.device

    @property
    def num_targets(self) -> int:
        """Number of nodes, pairs or graphs that can be explained."""
        return self.outputs.num_targets(self.graph)

    @property
    def node_type(self) -> str | None:
        """The explained node type; None for a graph of one type, or if the targets are not nodes."""
        return self.outputs.node_type

    def targets(self, targets: Targets = "all") -> Tensor:
        """Check the ids of targets and return them as a tensor on the graph's device."""
        return self.outputs.targets(targets, self.graph)

    def rows(self, targets: Tensor) -> Tensor:
        """Return the output row of each target."""
        return self.outputs.rows(targets, self.graph)

    def nodes_of(self, targets: Tensor) -> Tensor:
        """Node level: return the node id of each target in the graph, or in the union of types."""
        return targets if self.node_type is None else targets + self.graph.nodes(self.node_type).start

    def roots(self, targets: Targets = "all", dtype: torch.dtype | None = None) -> Roots:
        """Return the roots of the computation trees of targets."""
        ids, outputs = self.targets(targets), self.outputs
        if outputs.ends is not None:
            return Roots.at_pairs(ids, outputs.ends, dtype)
        if outputs.batch is None:
            return Roots.at_nodes(ids, dtype, self.nodes_of(ids), self.node_type)
        if self.node_weights is None:
            _ = self.attention  # raises: without the layers, the readout after them cannot be found
        assert self.node_weights is not None
        return Roots.at_graphs(ids, outputs.batch, self.node_weights)


@torch.no_grad()
def _reads_edges(call: ModelCall, output: Any) -> bool:
    """Whether the output of a call changes without one half of the edges, or without the other."""
    order = torch.randperm(call.edge_index.shape[1], generator=torch.Generator().manual_seed(0))
    for half in order.to(call.edge_index.device).tensor_split(2):
        with eval_mode(call.model):
            without = call.without_edges(half).run()
        if not all(map(same, tensors_in(without), tensors_in(output))):
            return True
    return False


def _meaning(head: Head, attention: Attention | AttreeError, output: Any) -> Head | AttreeError:
    """Return the meaning of an output, or why it cannot be inferred."""
    activation = None if isinstance(attention, AttreeError) else attention.activation
    try:
        return head.inferred_from(activation).resolve(output)
    except AttreeError as error:
        return error.with_traceback(None)
