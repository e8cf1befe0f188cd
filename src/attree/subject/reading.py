"""Find out what a model reads: the nodes behind each row of its output, and the arguments that change its output.

To find the nodes, the output of every convolution is replaced by noise that depends only on one number t_i per node i.
Row k of the output reads node i if the gradient of row k with respect to t_i is not 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attree.attention.conv_edges import find_type
from attree.attention.eval_mode import eval_mode
from attree.attention.graph import Types
from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attention.locality import same
from attree.subject.arguments import Kind, parameters
from attree.subject.model_call import ModelCall

DRAWS = 4
"""Number of passes with different noise. A maximum reads other nodes in each pass, a selected row does not."""

DIFFERENTIABLE = ("cpu", "cuda", "xpu")
"""Device types that support gradients inside a model."""


def nodes_read(call: ModelCall, rows: list[int], draws: int = DRAWS) -> Tensor | None:
    """Return which nodes some rows of the output read in each pass, [draws, rows, nodes]; None if unknown."""
    if call.edge_index.device.type not in DIFFERENTIABLE:
        return None
    try:
        drawn = [_read_once(call, rows, draw) for draw in range(draws)]
    except Exception:  # the model does not support gradients
        return None
    reads = [nodes for nodes in drawn if nodes is not None]
    return torch.stack(reads) if len(reads) == draws else None


def _read_once(call: ModelCall, rows: list[int], seed: int) -> Tensor | None:
    """Return which nodes each of the output's rows reads, [rows, nodes]; None if the output has no gradients."""
    marks = _Marks(call, seed)
    with torch.inference_mode(False), torch.enable_grad(), eval_mode(call.model), instrument(call.model, marks):
        output = call.changed(lambda _, value: _differentiable(value)).run()
        if not isinstance(output, Tensor) or not output.requires_grad or not marks.used:
            return None
        columns = output.reshape(output.shape[0], -1)
        mixed = columns @ marks.noise(columns.shape[1]).to(columns)
        reads = []
        for row in rows:
            (gradient,) = torch.autograd.grad(mixed[row], marks.value, retain_graph=True, allow_unused=True)
            reads.append(torch.zeros(call.num_nodes) if gradient is None else gradient.detach().cpu())
        return torch.stack(reads) != 0


class _Marks(Watcher):
    """One number per node, which every convolution adds to its output, times a random vector."""

    def __init__(self, call: ModelCall, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        device = call.edge_index.device
        self.value = torch.randn(call.num_nodes, generator=self._generator).to(device).requires_grad_()
        self._graph = call.graph
        self.used = False

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)

    def end(self, call: LayerCall, returned: Any) -> Any:
        """Return a convolution's output with the marks of its nodes added; nested convolutions add none."""
        if call.is_inner:
            return returned
        types = self._graph.types
        if types is None:
            return self._marked(returned, self.value)
        if isinstance(returned, dict):
            return {kind: self._marked(rows, self._of_type(types, kind)) for kind, rows in returned.items()}
        kind = find_type(self._graph, call.given_edges)
        return returned if kind is None else self._marked(returned, self._of_type(types, kind[2]))

    def _of_type(self, types: Types, node_type: str) -> Tensor:
        nodes = types.nodes(node_type)
        return self.value[nodes.start : nodes.stop]

    def _marked(self, returned: Any, value: Tensor) -> Any:
        first = returned[0] if isinstance(returned, tuple) else returned
        if not isinstance(first, Tensor) or first.shape[:1] != value.shape or not first.is_floating_point():
            return returned
        self.used = True
        marked = first.detach() + torch.tensordot(value.to(first.dtype), self.noise(*first.shape[1:]).to(first), 0)
        return (marked, *returned[1:]) if isinstance(returned, tuple) else marked


def _differentiable(value: Any) -> Any:
    """Return a copy of an argument that was made in inference mode, so that gradients can pass through it."""
    if isinstance(value, dict):
        return {kind: _differentiable(rows) for kind, rows in value.items()}
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def without_unread_ids(call: ModelCall, output: Any) -> ModelCall:
    """Return the call without node ids of the data that the model does not read.

    Such ids cannot be cut to a part of the graph.

    Args:
        call: The call of the model.
        output: The output of the call.
    """
    position = 0
    while call.convention is not None and position < len(call.values):
        if call.kinds[position] is Kind.IDS:
            without = call.without(position)
            if _returns(without, output):
                call = without
                continue
        position += 1
    return call


def add_batch(call: ModelCall, batch: Tensor, output: Any) -> ModelCall:
    """Return the call with an argument that holds the graph of each node, if the model takes one.

    Many copies of a graph can then run at once.

    Args:
        call: The call of the model, which has no such argument.
        batch: The graph of each node.
        output: The output of the call.
    """
    call = call.with_batch(batch)
    if call.batch is not None or call.convention is not None:
        return call
    free = [
        parameter.name
        for parameter in parameters(call.model)
        if "batch" in parameter.name and parameter.name not in call.names
    ]
    if not free or "size" in free[0]:
        return call
    extended = call.with_argument(free[0], batch)
    return extended if _returns(extended, output) else call


def _returns(call: ModelCall, output: Any) -> bool:
    """Whether a call succeeds and returns this output."""
    try:
        with eval_mode(call.model), torch.no_grad():
            again = call.run()
    except Exception:
        return False
    return isinstance(again, Tensor) and isinstance(output, Tensor) and same(again, output)
