"""Which nodes the rows of an output are read from.

What every convolution returns is replaced by numbers that depend on nothing but one number t_i for each node i. The
gradient of a row with respect to t is then not 0 at the nodes that the row reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.eager import eval_mode
from attree.attention.edge_ids import find_type
from attree.attention.graph import Types
from attree.attention.layer_records import edges_of
from attree.subject.model_call import ModelCall

DRAWS = 4
"""How often rows are read, with other numbers each time: a maximum then reads other nodes, a chosen row does not."""

DIFFERENTIABLE = ("cpu", "cuda", "xpu")
"""Types of devices on which rows are read; on others, gradients in the midst of a model may not be had."""


def nodes_read(call: ModelCall, rows: list[int], draws: int = DRAWS) -> Tensor | None:
    """Which nodes some rows of the output read, in each of several draws: [draws, rows, nodes]; None if unknown."""
    if call.edge_index.device.type not in DIFFERENTIABLE:
        return None
    try:
        found = [_read_once(call, rows, draw) for draw in range(draws)]
    except Exception:  # a model without gradients tells nothing
        return None
    known = [reads for reads in found if reads is not None]
    return torch.stack(known) if len(known) == draws else None


def _read_once(call: ModelCall, rows: list[int], seed: int) -> Tensor | None:
    with torch.inference_mode(False), torch.enable_grad(), eval_mode(call.model), _marked(call, seed) as marks:
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


class _Marks:
    """One number per node. Every convolution adds it to its output, in a random direction."""

    def __init__(self, call: ModelCall, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        device = call.edge_index.device
        self.value = torch.randn(call.num_nodes, generator=self._generator).to(device).requires_grad_()
        self._graph = call.graph
        self.used = False
        self._depth = 0

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)

    def begin(self, conv: nn.Module, inputs: Any) -> None:
        self._depth += 1

    def end(self, conv: nn.Module, args: Any, kwargs: Any, returned: Any) -> Any:
        self._depth -= 1
        if self._depth:
            return returned
        types = self._graph.types
        if types is None:
            return self._marked(returned, self.value)
        if isinstance(returned, dict):
            return {kind: self._marked(rows, self._of_type(types, kind)) for kind, rows in returned.items()}
        kind = find_type(self._graph, edges_of(args, kwargs))
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


@contextmanager
def _marked(call: ModelCall, seed: int) -> Iterator[_Marks]:
    marks = _Marks(call, seed)
    with ExitStack() as stack:
        for conv in call.model.modules():
            if isinstance(conv, MessagePassing):
                stack.callback(conv.register_forward_pre_hook(marks.begin).remove)
                stack.callback(conv.register_forward_hook(marks.end, with_kwargs=True).remove)
        yield marks


def _differentiable(value: Any) -> Any:
    """An argument that gradients can pass, also where it was made in inference mode."""
    if isinstance(value, dict):
        return {kind: _differentiable(one) for kind, one in value.items()}
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value
