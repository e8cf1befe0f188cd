"""Attention over all nodes that does not depend on edges: its output is the same whatever edge is deleted.

SGFormer's attention stands beside its GCN and reads only the features. Exact updates then take its recorded output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attree.attention.eval_mode import eval_mode
from attree.attention.global_attention import GlobalCall, GlobalModuleCall, GlobalWatcher, watch_global
from attree.attention.global_weights import KernelWeights
from attree.attention.provenance import tensors_in
from attree.errors import UnsupportedModelError
from attree.subject import Subject
from attree.subject.global_trace import global_trace


def edge_free_modules(subject: Subject) -> frozenset[str]:
    """Return the names of the modules over all nodes of one graph, if none of them depends on edges.

    The trace says that no layer along edges feeds them; two passes without a half of the edges each must not change
    what they read.
    """
    try:
        trace = global_trace(subject)
    except UnsupportedModelError:
        return frozenset()
    if trace is None or subject.level == "graph" or subject.outputs.nodes is not None:
        return frozenset()
    for layer, step in enumerate(trace.steps):
        later_steps = [trace.steps[later] for later, _ in trace.wiring.feeds[layer]]
        if isinstance(step, int) and any(isinstance(later, GlobalCall) for later in later_steps):
            return frozenset()
    # Rows of several edges run at once: a matrix of all pairs of them would not fit into memory.
    if any(call.nodes.shape[0] != 1 or not isinstance(call.weights, KernelWeights) for call in trace.calls):
        return frozenset()
    count = subject.call.edge_index.shape[1]
    halves = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(subject.device).tensor_split(2)
    usual = _inputs(subject, halves[0][:0])
    for half in halves:
        without = _inputs(subject, half)
        if len(without) != len(usual) or not all(map(torch.equal, without, usual)):
            return frozenset()
    return frozenset(call.name for call in trace.calls)


@torch.no_grad()
def _inputs(subject: Subject, columns: Tensor) -> list[Tensor]:
    """Return what the modules over all nodes read without some edges."""
    watcher, call = _Inputs(), subject.call.without_edges(columns) if columns.numel() else subject.call
    with eval_mode(subject.model), watch_global(subject.model, watcher):
        call.run()
    return watcher.inputs


class _Inputs(GlobalWatcher):
    def __init__(self) -> None:
        self.inputs: list[Tensor] = []

    def begin(self, call: GlobalModuleCall) -> None:
        self.inputs.extend(tensor.clone() for tensor in tensors_in((call.args, call.kwargs)))


class RecordedOutputs:
    """Records the outputs of modules in a pass over all nodes, and returns their rows in passes over some rows.

    Attributes:
        rows: The node of each row of the next pass; None for all nodes, which records.
    """

    def __init__(self) -> None:
        self.rows: Tensor | None = None
        self._outputs: dict[str, Tensor] = {}

    def hook(self, name: str, output: Any) -> Any:
        """Return the output to use for a call of the module of this name."""
        dense = output[0] if isinstance(output, tuple) else output
        if self.rows is None:
            self._outputs[name] = dense.detach().clone()
            return None
        recorded = self._outputs[name]
        # In place, so that whoever follows the rows through the model still sees where they come from.
        rows = dense.clone().copy_(recorded.index_select(1, self.rows))
        return (rows, *output[1:]) if isinstance(output, tuple) else rows
