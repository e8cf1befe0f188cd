"""What is explained: one call of a model on a graph, what its outputs belong to, and what they mean."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from attree.attention.capture import Attention, capture_run
from attree.attention.eager import eval_mode
from attree.attention.graph import Graph, Types
from attree.attention.wiring import Wiring
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.subject.binding import bind_data
from attree.subject.conventions import Call
from attree.subject.head import Head, check_output
from attree.subject.level import OutputLevel, find_level
from attree.subject.model_call import ModelCall
from attree.subject.pooling import read_readout
from attree.subject.read_arguments import telling_graphs, without_unread_ids
from attree.subject.readout import Readout, check_readout, readout_weights
from attree.subject.roots import LEVELS, Level, Roots
from attree.subject.target_ids import Targets, as_targets


class Subject:
    """What is explained: a call of a model on a graph, with its attention captured once, when first asked for.

    A subject does not change: `seen` and `fresh` give another with the same call. Node-level subjects explain nodes,
    edge-level ones pairs of nodes, graph-level ones the graphs of a batch. Nodes of a heterogeneous graph are named by
    their numbers within the explained type; `roots` gives their numbers in the union of all types.

    Args:
        call: The model's call; None if only its attention is at hand, which serves the methods that read nothing else.
        attention: What the model attended to, if at hand.
        graph: The looped graph of the call, if at hand.
        batch: With attention alone: the graph of each node if graphs are explained.
        level: What the outputs belong to: `node`, `edge` or `graph`; None finds out from the output.
        readout: Graph level: how nodes become a graph, `sum`, `mean`, `max`, or one weight a node; None reads it from
            the model, see `read_readout`.
        head: What the outputs mean; by default logits of classes, or the logit of one.
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
            expect(attention is not None, "attention", "given where there is no model", None)
            assert attention is not None
            graph = attention.graph
        elif graph is None:
            graph = call.graph
        else:
            matches = graph.matches(call.edge_index, call.num_nodes)
            expect(matches, "graph", "the looped graph of `edge_index`", "another graph")
        assert graph is not None
        self._call = call
        self.graph = graph
        self.readout = readout
        self._head = Head() if head is None else head
        self._asked_level = level
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
        """The subject of the call `model(x, edge_index, *args, **kwargs)`; for a heterogeneous graph, both are dicts.

        Args:
            model: The model.
            x: Features of nodes, by node type if there are several.
            edge_index: Edges, by edge type if there are several.
            *args: Further arguments of the model by position.
            graph: The graph of the call, if at hand.
            level: What the outputs belong to: `node`, `edge` or `graph`; None finds out from the output.
            readout: Graph level: how nodes become a graph.
            head: What the outputs mean.
            node_type: The node type to explain, if the model returns outputs of several; a tensor is passed on to the
                model.
            **kwargs: Further arguments of the model by name.
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
        """The subject of a model on a PyG graph or batch; the model's arguments are found there by name.

        Args:
            model: The model.
            data: The graph.
            call: How the model is called with a graph, `call(model, data)`, if not by its forward.
            level: What the outputs belong to: `node`, `edge` or `graph`; None finds out from the output.
            readout: Graph level: how nodes become a graph.
            head: What the outputs mean.
            node_type: Heterogeneous graphs: the node type to explain, if the model returns outputs of several.
        """
        bound = bind_data(model, data, call).with_node_type(node_type)
        return cls(bound, level=level, readout=readout, head=head)

    @classmethod
    def of_attention(cls, attention: Attention, batch: Tensor | None = None, readout: Readout | None = None) -> Subject:
        """A subject without a model, for methods that read only attention; `batch` makes it one of graphs."""
        return cls(None, attention=attention, batch=batch, readout=readout)

    @property
    def call(self) -> ModelCall:
        """The model's call."""
        if self._call is None:
            raise ArgumentError("Expected argument `subject` to have a model, but got one made of attention alone.")
        return self._call

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.call.model

    @property
    def attention(self) -> Attention:
        """What the model attended to; captured when first asked for."""
        if self._attention is None:
            self._attention = capture_run(self.model, self.call.run, self.graph, self._wiring)
            self._wiring = self._attention.wiring
        return self._attention

    @property
    def wiring(self) -> Wiring | None:
        """Which convolution calls are the layers and what feeds what; None if not known yet."""
        return self._wiring

    def seen(self, attention: Attention) -> Subject:
        """This subject with attention that was captured in another pass of the same call.

        If it lists all calls of convolutions, only the layers among them are kept. Where their factors change with the
        model's weights, the model is asked again when its attention is first needed.
        """
        if attention.wiring is None and self._wiring is not None:
            if not self._wiring.is_fixed:
                return self._again(None)
            attention = attention.wired(self._wiring)
        return self._again(attention)

    def fresh(self) -> Subject:
        """This subject without captured attention: it is captured anew, with the weights of then, when asked for."""
        return self._again(None)

    def _again(self, attention: Attention | None) -> Subject:
        subject = Subject(
            self._call,
            attention=attention,
            graph=self.graph,
            level=self._asked_level,
            readout=self.readout,
            head=self._head,
        )
        for known in ("outputs", "head"):
            if known in self.__dict__:
                subject.__dict__[known] = self.__dict__[known]
        seen = None if attention is None else attention.wiring
        subject._wiring = self._wiring if seen is None else seen
        return subject

    @property
    def output(self) -> Tensor:
        """The model's output, also where its attention cannot be captured."""
        output = self._returned
        check_output(output)
        return output

    @cached_property
    def _returned(self) -> Any:
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
        """What the outputs mean, decided by the first outputs and by the last function of the model."""
        output = self.output  # captures attention, if it can be
        activation = None if self._attention is None else self._attention.activation
        return self._head.told_by(activation).resolve(output)

    @cached_property
    def outputs(self) -> OutputLevel:
        """What the rows of the output belong to: nodes, pairs of nodes or graphs."""
        output = self._returned
        call = without_unread_ids(self.call, output)
        found = find_level(call, output, self._asked_level)
        if found.batch is not None and call.batch is None:
            call = telling_graphs(call, found.batch, output)
        self._call = call
        return found

    @property
    def level(self) -> Level:
        """What the outputs belong to."""
        return self.outputs.level

    @property
    def batch(self) -> Tensor | None:
        """The graph of each node if graphs are explained; None otherwise."""
        return self.outputs.batch

    @property
    def num_layers(self) -> int:
        """Depth of the computation tree."""
        return self.attention.num_layers

    @property
    def device(self) -> torch.device:
        """Where the graph is."""
        return self.graph.device

    @property
    def num_targets(self) -> int:
        """How many nodes, pairs or graphs there are."""
        outputs = self.outputs
        if outputs.batch is not None:
            return int(outputs.batch.max()) + 1 if outputs.batch.numel() else 0
        if outputs.ends is not None:
            return outputs.ends.shape[1]
        return self.graph.num_nodes if self.node_type is None else len(self._types.nodes(self.node_type))

    @property
    def node_type(self) -> str | None:
        """The type of the nodes that are explained; None for a graph of one type, or where no nodes are."""
        return self.outputs.node_type

    @property
    def _types(self) -> Types:
        types = self.graph.types
        assert types is not None
        return types

    def targets(self, targets: Targets = "all") -> Tensor:
        """Ids of nodes, pairs or graphs as a tensor on the graph's device, checked."""
        outputs = self.outputs
        what = "pair" if outputs.level == "edge" else outputs.level
        known = outputs.nodes if outputs.batch is None else outputs.batch.unique()
        if known is not None and isinstance(targets, str) and targets == "all":
            return known
        ids = as_targets(targets, self.num_targets, self.device, what)
        if known is not None:
            those = "ids of graphs that have nodes" if what == "graph" else "ids of nodes that the model returns"
            expect(bool(torch.isin(ids, known).all()), "targets", those, ids.tolist()[:5])
        return ids

    def rows(self, targets: Tensor) -> Tensor:
        """The row of the output that belongs to each target."""
        nodes = self.outputs.nodes
        if nodes is None:
            return targets
        place = torch.full((self.num_targets,), -1, device=nodes.device)
        place[nodes] = torch.arange(nodes.numel(), device=nodes.device)
        return place[targets]

    def nodes_of(self, targets: Tensor) -> Tensor:
        """Node level: the node id of each target in the graph, or in the union of types."""
        return targets if self.node_type is None else self._types.union(self.node_type, targets)

    def roots(self, targets: Targets = "all", dtype: torch.dtype | None = None) -> Roots:
        """Where the computation trees of targets begin."""
        ids, outputs = self.targets(targets), self.outputs
        if outputs.ends is not None:
            return Roots.at_pairs(ids, outputs.ends, dtype)
        if outputs.batch is None:
            if (kind := self.node_type) is None:
                return Roots.at_nodes(ids, dtype)
            return replace(Roots.at_nodes(ids, dtype, self._types.union(kind, ids)), node_type=kind)
        batch = outputs.batch
        expect(
            batch.shape == (self.graph.num_nodes,) and batch.dtype == torch.int64,
            "batch",
            f"{self.graph.num_nodes} graph ids of dtype torch.int64, one a node",
            f"{tuple(batch.shape)} of {batch.dtype}",
        )
        return Roots.at_graphs(ids, batch, self.node_weights)

    @cached_property
    def node_weights(self) -> Tensor:
        """Graph level: the weight that the readout gives to each node, [num_nodes]."""
        attention, batch, call = self.attention, self.batch, self._call
        expect(batch is not None, "subject", "one of graphs", f"one of {self.level}s")
        assert batch is not None

        def read() -> Tensor | None:
            assert call is not None
            return read_readout(call.model, call.run, batch, attention.calls)

        return readout_weights(self.readout, batch, attention.embedding, None if call is None else read)
