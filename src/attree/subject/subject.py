"""The one thing that every attribution method takes: a model, its inputs, and what it attended to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from attree.attention.capture import Attention, capture_attention
from attree.attention.looped_graph import LoopedGraph
from attree.errors import ArgumentError, expect
from attree.subject.arguments import Kind
from attree.subject.head import Head
from attree.subject.inputs import ModelInputs, bind_data
from attree.subject.pooling import read_readout
from attree.subject.readout import Readout, check_readout, readout_weights

Level = Literal["node", "graph"]
"""What a model's outputs are those of."""

Targets = int | Sequence[int] | Tensor | Literal["all"]
"""What can be explained: one node or graph, several (ids, or a mask of nodes), or all."""


class Subject:
    """What is explained: a model on a graph, with its attention captured once, when first asked for.

    Node-level subjects explain nodes. Graph-level ones explain the graphs of a batch, each by all its nodes; how their
    nodes become a graph is the `readout`.

    Args:
        model: The model; None if only its attention is at hand, which serves the methods that read nothing else.
        inputs: Its arguments; None with `model`.
        attention: What it attended to, if at hand.
        graph: The looped graph of the inputs, if at hand.
        batch: The graph of each node if the model's outputs are those of graphs; None finds it among the inputs.
        level: Whether the outputs are those of nodes or of graphs; None tells it from their number.
        readout: Graph-level: how nodes become a graph, `sum`, `mean`, `max`, or one weight a node; None reads it from
            the model, see `read_readout`.
        head: What the outputs mean; by default logits of classes, or the logit of one.
    """

    def __init__(
        self,
        model: nn.Module | None,
        inputs: ModelInputs | None,
        *,
        attention: Attention | None = None,
        graph: LoopedGraph | None = None,
        batch: Tensor | None = None,
        level: Level | None = None,
        readout: Readout | None = None,
        head: Head | None = None,
    ) -> None:
        check_readout(readout)
        expect(level in (None, "node", "graph"), "level", "'node', 'graph' or None", level)
        expect((model is None) == (inputs is None), "inputs", "given with `model`", "one of the two")
        if inputs is None:
            expect(attention is not None, "attention", "given where there is no model", None)
            assert attention is not None
            graph = attention.graph
        elif graph is None:
            graph = LoopedGraph(inputs.edge_index, inputs.num_nodes)
        else:
            matches = graph.matches(inputs.edge_index, inputs.num_nodes)
            expect(matches, "graph", "the looped graph of `edge_index`", "another graph")
        assert graph is not None
        self._model = model
        self._inputs = inputs
        self.graph = graph
        self.readout = readout
        self.head = Head() if head is None else head
        self._level = level
        self._batch = batch
        self._attention = attention
        self._calls = None if attention is None else attention.calls
        self._node_weights: tuple[Attention, Tensor] | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        x: Tensor,
        edge_index: Tensor,
        *args: Any,
        graph: LoopedGraph | None = None,
        level: Level | None = None,
        readout: Readout | None = None,
        head: Head | None = None,
        **kwargs: Any,
    ) -> Subject:
        """A subject by the call `model(x, edge_index, *args, **kwargs)`."""
        inputs = ModelInputs.of(model, x, edge_index, *args, **kwargs)
        return cls(model, inputs, graph=graph, level=level, readout=readout, head=head)

    @classmethod
    def of_data(
        cls, model: nn.Module, data: Data, *, readout: Readout | None = None, head: Head | None = None
    ) -> Subject:
        """A subject by a PyG graph or batch; the model's arguments are found in it by name."""
        return cls(*bind_data(model, data), readout=readout, head=head)

    @classmethod
    def of_attention(cls, attention: Attention, batch: Tensor | None = None, readout: Readout | None = None) -> Subject:
        """A subject of attention alone; with `batch`, of the graphs that it names."""
        return cls(None, None, attention=attention, batch=batch, readout=readout)

    @property
    def model(self) -> nn.Module:
        """The model."""
        if self._model is None:
            raise ArgumentError("Expected argument `subject` to have a model, but got one of attention alone.")
        return self._model

    @property
    def inputs(self) -> ModelInputs:
        """The model's arguments."""
        if self._inputs is None:
            raise ArgumentError("Expected argument `subject` to have inputs, but got one of attention alone.")
        return self._inputs

    @property
    def attention(self) -> Attention:
        """What the model attended to; captured when first asked for."""
        if self._attention is None:
            inputs = self.inputs
            self._attention = capture_attention(
                self.model,
                inputs.x,
                inputs.edge_index,
                *inputs.args,
                graph=self.graph,
                calls=self._calls,
                **inputs.kwargs,
            )
            self._calls = self._attention.calls
            self.head = self.head.told_by(self._attention.activation)
        return self._attention

    def adopt(self, attention: Attention) -> None:
        """Take attention that was seen elsewhere with the same model and inputs, so that there is one source of it.

        If it lists all calls of convolutions, those are taken that were found to be layers when it was first captured.
        """
        if self._calls is not None and attention.calls is None:
            attention = attention.only(self._calls)
        self._attention = attention

    def forget(self) -> None:
        """Drop the attention: whatever is asked next is answered with the model's weights of then."""
        if self._model is not None:
            self._attention = None

    @property
    def num_layers(self) -> int:
        """Depth of the computation tree."""
        return self.attention.num_layers

    @property
    def device(self) -> torch.device:
        """Where the graph is."""
        return self.graph.device

    @property
    def batch(self) -> Tensor | None:
        """The graph of each node if graphs are explained; None if nodes are."""
        if self._batch is None and self._inputs is not None and self._level != "node":
            self._batch = graph_of_nodes(self._inputs, self.attention.output, self._level)
            self._level = "node" if self._batch is None else "graph"
        return self._batch

    def node_weights(self) -> Tensor:
        """What the readout gives to each node of the graphs that are explained, [num_nodes]."""
        attention, batch = self.attention, self.batch
        expect(batch is not None, "subject", "one of graphs", "one of nodes")
        assert batch is not None
        if self._node_weights is None or self._node_weights[0] is not attention:
            model, inputs = self._model, self._inputs

            def read() -> Tensor | None:
                assert model is not None
                assert inputs is not None
                return read_readout(model, lambda: inputs.call(model), batch, attention.calls)

            weights = readout_weights(self.readout, batch, attention.embedding, None if model is None else read)
            self._node_weights = attention, weights
        return self._node_weights[1]

    @property
    def num_targets(self) -> int:
        """How many nodes or graphs there are."""
        batch = self.batch
        if batch is None:
            return self.graph.num_nodes
        return int(batch.max()) + 1 if batch.numel() else 0

    def targets(self, targets: Targets = "all") -> Tensor:
        """Ids of nodes or graphs as a tensor on the graph's device, checked."""
        return as_targets(targets, self.num_targets, self.device, "node" if self.batch is None else "graph")


def graph_of_nodes(inputs: ModelInputs, output: Any, level: Level | None = None) -> Tensor | None:
    """The argument that says which graph each node belongs to, if the outputs are those of graphs; None if of nodes.

    An argument with `batch` in its name; or else the one whose values can only mean that.
    """
    rows = output.shape[0] if isinstance(output, Tensor) and output.dim() else inputs.num_nodes
    if level != "graph" and rows == inputs.num_nodes:
        return None
    named = [(name, value, kind) for (name, value), kind in zip(inputs.named(), inputs.kinds(), strict=True)]
    found = [value for _, value, kind in named if kind is Kind.BATCH]
    if not found:
        found = [value for _, value, kind in named if kind is Kind.NODE and _numbers_graphs(value, rows)]
    if not found and rows == 1:
        return torch.zeros(inputs.num_nodes, dtype=torch.int64, device=inputs.edge_index.device)
    if len(found) != 1:
        names = ", ".join(name or "unnamed" for name, _, _ in named) or "none"
        raise ArgumentError(
            f"Expected one argument to say which of the {rows} graphs each node belongs to (name it `batch`), but got "
            f"{len(found) or 'none'} among the further arguments: {names}."
        )
    return found[0]


def _numbers_graphs(value: Tensor, num_graphs: int) -> bool:
    """Whether values count graphs from 0 on, node by node."""
    if value.dim() != 1 or value.dtype != torch.int64 or value.numel() == 0:
        return False
    return int(value[0]) == 0 and int(value[-1]) == num_graphs - 1 and bool((value.diff() >= 0).all())


def as_targets(targets: Targets, count: int, device: torch.device, what: str = "node") -> Tensor:
    """Ids of what is explained as a tensor, checked.

    Args:
        targets: Ids, a mask, or 'all'.
        count: How many there are.
        device: Where the result goes.
        what: What they are, in words.
    """
    if isinstance(targets, str):
        expect(targets == "all", "targets", f"'all', {what} ids or a mask of {what}s", targets)
        return torch.arange(count, device=device)
    expected = f"'all', {what} ids or a mask of {what}s"
    try:
        ids = torch.as_tensor(targets, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"Expected argument `targets` to be {expected}, but got {targets!r}.") from None
    if ids.dtype == torch.bool:
        expect(ids.shape == (count,), "targets", f"a mask of {count} {what}s", tuple(ids.shape))
        return ids.nonzero().view(-1)
    ids = ids.reshape(-1)
    expect(ids.numel() == 0 or not ids.is_floating_point(), "targets", "integers", ids.dtype)
    ids = ids.long()
    outside = ids[(ids < 0) | (ids >= count)]
    expect(outside.numel() == 0, "targets", f"{what} ids in [0, {count})", outside[:3].tolist())
    expect(ids.unique().numel() == ids.numel(), "targets", f"distinct {what} ids", "some more than once")
    return ids
