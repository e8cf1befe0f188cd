"""The subject of an explanation: one call of a model on a graph, the targets of its outputs, and their meaning."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from attree.attention.capture import Attention, capture_run
from attree.attention.eval_mode import eval_mode
from attree.attention.graph import Graph
from attree.attention.wiring import Wiring
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.subject.binding import Call, bind_data
from attree.subject.head import Head, check_output
from attree.subject.level import find_level, keep_level, known_level
from attree.subject.model_call import ModelCall
from attree.subject.reading import add_batch, without_unread_ids
from attree.subject.readout import Readout, check_readout, read_readout, readout_weights
from attree.subject.roots import LEVELS, Level, OutputLevel, Roots, Targets


class Subject:
    """The subject of an explanation: a call of a model on a graph. Attention is captured once, when it is first needed.

    A subject does not change: `seen` and `fresh` return another subject of the same call. Targets are nodes (node
    level), pairs of nodes (edge level) or graphs of a batch (graph level). In a heterogeneous graph, target nodes are
    numbered within the explained type, and `roots` converts them into ids of the union of all types.

    Args:
        call: The call of the model; None if there is only attention, which is enough for some methods.
        attention: The attention of the call, if it was captured already.
        graph: The graph of the call, if it was built already.
        batch: Only without a call: the graph of each node, if the targets are graphs.
        level: What each row of the output belongs to: `node`, `edge` or `graph`; None infers it.
        readout: Graph level: how nodes are pooled into a graph, `sum`, `mean`, `max` or one weight per node; None
            infers it, see `read_readout`.
        head: The meaning of the outputs; by default logits of classes, or one logit of a binary class.
    """

    def __init__(
        self,
        call: ModelCall | None,
        *,
        attention: Attention | None = None,
        graph: Graph | None = None,
        batch: Tensor | None = None,
        level: Level | None = None,
        readout: Readout | None = None,
        head: Head | None = None,
    ) -> None:
        check_readout(readout)
        expect(level in (None, *LEVELS), "level", "'node', 'edge', 'graph' or None", level)
        if call is None:
            expect(attention is not None, "attention", "given if there is no model", None)
            assert attention is not None
            graph = attention.graph
        elif graph is None:
            graph = call.graph
        else:
            matches = graph.matches(call.edge_index, call.num_nodes)
            expect(matches, "graph", "the graph of `edge_index`", "another graph")
        assert graph is not None
        self._call = None if call is None else call.private()
        self.graph = graph
        self.readout = readout
        self._head = Head() if head is None else head
        self._given_level = level
        self._attention = attention
        self._wiring = None if attention is None else attention.wiring
        if call is None:
            self.__dict__["outputs"] = OutputLevel("node") if batch is None else OutputLevel("graph", batch=batch)

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
            readout: Graph level: how nodes are pooled into a graph.
            head: The meaning of the outputs.
            node_type: The node type to explain, if the model returns several; a tensor is passed to the model.
            **kwargs: Further keyword arguments of the model.
        """
        if isinstance(node_type, Tensor):  # an argument of the model, as HEATConv has it
            node_type, kwargs = None, {**kwargs, "node_type": node_type}
        call = ModelCall.of(model, x, edge_index, *args, **kwargs).with_node_type(node_type)
        return cls(call, graph=graph, level=level, readout=readout, head=head)

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
        return cls(bound, level=level, readout=readout, head=head)

    @classmethod
    def of_attention(cls, attention: Attention, batch: Tensor | None = None, readout: Readout | None = None) -> Subject:
        """Return a subject without a model, for methods that only need attention; with `batch`, targets are graphs."""
        return cls(None, attention=attention, batch=batch, readout=readout)

    @property
    def call(self) -> ModelCall:
        """The model's call."""
        if self._call is None:
            raise ArgumentError("Expected argument `subject` to have a model, but got one made of attention alone.")
        return self._call

    @property
    def model(self) -> nn.Module:
        """The stand-in of the model: a private copy of its modules with the same weights, see `stand_in`."""
        return self.call.model

    @property
    def attention(self) -> Attention:
        """The attention of the model; captured when it is first needed."""
        if self._attention is None:
            run, arguments = self.call.run, self.call.described
            self._attention = capture_run(self.model, run, self.graph, self._wiring, arguments=arguments)
            self._wiring = self._attention.wiring
        return self._attention

    @property
    def wiring(self) -> Wiring | None:
        """Which convolution calls are layers, and which layer feeds which; None if not known yet."""
        return self._wiring

    def seen(self, attention: Attention) -> Subject:
        """Return this subject with attention that was captured in another pass of the same call.

        If the attention lists all convolution calls, only layers are kept. If the factors of the layers change with the
        weights of the model, attention is captured again when it is first needed.
        """
        if attention.wiring is None and self._wiring is not None:
            if not self._wiring.is_fixed:
                return self._again(None)
            attention = attention.wired(self._wiring)
        return self._again(attention)

    def fresh(self) -> Subject:
        """Return this subject without attention; it is captured with the current weights when it is first needed."""
        return self._again(None)

    def on_model(self, model: nn.Module) -> Subject:
        """Return this subject with another model of the same structure, such as a copy with other weights."""
        return self.on_call(self.call.on_model(model).private())

    def on_call(self, call: ModelCall) -> Subject:
        """Return this subject with another call of the same structure, such as one in another floating-point type."""
        subject = self.fresh()
        subject._call = call
        return subject

    def _again(self, attention: Attention | None) -> Subject:
        """Return a copy of this subject with other attention; the level and the meaning of the outputs are kept."""
        subject = copy.copy(self)
        for depends_on_weights in ("_returned", "node_weights"):
            subject.__dict__.pop(depends_on_weights, None)
        subject._call = None if self._call is None else self._call.private()
        subject._attention = attention
        if attention is not None and attention.wiring is not None:
            subject._wiring = attention.wiring
        return subject

    @property
    def output(self) -> Tensor:
        """The output of the model, even if its attention cannot be captured."""
        output = self._returned
        check_output(output)
        return output

    @cached_property
    def _returned(self) -> Any:
        """Return the model's output from the captured pass, or from a plain call if the capture is unsupported."""
        try:
            return self.attention.output
        except UnsupportedModelError as error:
            try:
                with eval_mode(self.model), torch.no_grad():
                    return self.call.run()
            except Exception:
                raise error from None

    @cached_property
    def head(self) -> Head:
        """The meaning of the outputs, inferred from the outputs and the last function of the model."""
        output = self.output  # captures attention if possible
        activation = None if self._attention is None else self._attention.activation
        return self._head.told_by(activation).resolve(output)

    @cached_property
    def outputs(self) -> OutputLevel:
        """The level of the output: whether its rows belong to nodes, pairs of nodes or graphs."""
        if self._given_level in (None, "node") and (known := known_level(self.call)) is not None:
            return known
        output = self._returned
        call = without_unread_ids(self.call, output)
        found = find_level(call, output, self._given_level)
        keep_level(call, found)
        if found.batch is not None and call.batch is None:
            call = add_batch(call, found.batch, output)
        self._call = call
        return found

    @property
    def level(self) -> Level:
        """The level of the output's rows: `node`, `edge` or `graph`."""
        return self.outputs.level

    @property
    def batch(self) -> Tensor | None:
        """Graph level: the graph of each node; otherwise None."""
        return self.outputs.batch

    @property
    def num_layers(self) -> int:
        """Depth of the computation tree."""
        return self.attention.num_layers

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
        batch, count = outputs.batch, self.graph.num_nodes
        fits = batch.shape == (count,) and batch.dtype == torch.int64
        expected = f"{count} graph ids of dtype torch.int64, one per node"
        expect(fits, "batch", expected, f"{tuple(batch.shape)} of {batch.dtype}")
        return Roots.at_graphs(ids, batch, self.node_weights)

    @cached_property
    def node_weights(self) -> Tensor:
        """Graph level: the weight of each node in the readout, [num_nodes]."""
        attention, batch, call = self.attention, self.batch, self._call
        expect(batch is not None, "subject", "at graph level", f"one at {self.level} level")
        assert batch is not None

        def read() -> Tensor | None:
            assert call is not None
            return read_readout(call.model, call.run, batch, attention.calls)

        return readout_weights(self.readout, batch, attention.embedding, None if call is None else read)
