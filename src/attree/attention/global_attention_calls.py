"""Calls of modules with attention over all nodes in a pass: watched, checked, and placed on the nodes of the graph.

Such a module works on a dense batch, with place k of graph b for the k-th node of that graph. Which node a place holds
is checked by an experiment, because a model may sort its nodes. What a reader returns for a call
(`global_attention_readers`) is checked against the output of the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attree.attention.branch_factors import Combination
from attree.attention.global_attention_readers import Mixing, read_multihead, reader_of
from attree.attention.global_weight_matrices import GlobalWeights, KernelWeights
from attree.attention.marked_tensors import Marks, tensors_in
from attree.errors import UnsupportedModelError
from attree.tensors.precision import same

FIRST_MARK = 1_000_000
"""Marks of calls over all nodes begin here, after those of all layers along edges."""


@dataclass(eq=False)
class GlobalModuleCall:
    """One running call of a module that attends over all nodes.

    Attributes:
        module: The module.
        name: Its name in the model.
        number: Number of the call in the run, counted from 0.
        args: The positional arguments.
        kwargs: The arguments passed by name.
    """

    module: nn.Module
    name: str
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def read(self, output: Any) -> Mixing | None:
        """Return how the module computed its output; None if the call is no attention over all nodes."""
        reader = reader_of(self.module)
        return None if reader is None else reader(self.module, self.args, self.kwargs, output)

    def described(self) -> str:
        return f"`{self.name}` ({type(self.module).__name__})" if self.name else type(self.module).__name__


class GlobalWatcher:
    """Sees every call of a module that attends over all nodes, and can change its output."""

    def begin(self, call: GlobalModuleCall) -> None:
        """Called before the module runs."""

    def end(self, call: GlobalModuleCall, output: Any) -> Tensor | None:
        """Called after it ran; returns an output to use instead, or None. The output of multi-head attention is a pair
        with its weights."""
        return None


def global_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model that attend over all nodes, if they are called so, by name."""
    return {name: module for name, module in model.named_modules() if reader_of(module) is not None}


@contextmanager
def watch_global(model: nn.Module, watcher: GlobalWatcher) -> Iterator[None]:
    """While open, `watcher` sees every call of the modules of `model` that attend over all nodes.

    Args:
        model: The model; it is hooked, so pass a stand-in.
        watcher: The watcher.
    """
    hooks = _Hooks(watcher, {module: name for name, module in global_modules(model).items()})
    with ExitStack() as stack:
        for module in hooks.names:
            stack.callback(module.register_forward_pre_hook(hooks.before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(hooks.after, with_kwargs=True).remove)
        if hooks.names:
            stack.enter_context(_StableSort())
        yield


class _StableSort(TorchFunctionMode):
    """Sorts equal numbers in their order, so that nodes of one graph keep theirs (PyG's Polynormer sorts by graph)."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.sort, Tensor.sort, torch.argsort, Tensor.argsort) and "stable" not in kwargs:
            kwargs |= dict(zip(("dim", "descending"), args[1:], strict=False))
            args, kwargs["stable"] = args[:1], True
        return func(*args, **kwargs)


class _Hooks:
    """The two hooks of all watched modules."""

    def __init__(self, watcher: GlobalWatcher, names: dict[nn.Module, str]) -> None:
        self.names = names
        self._watcher = watcher
        self._calls: list[GlobalModuleCall] = []
        self._count = 0

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = GlobalModuleCall(module, self.names[module], self._count, args, kwargs)
        self._count += 1
        self._calls.append(call)
        self._watcher.begin(call)
        if reader_of(module) is not read_multihead:
            return None
        call.args = args[:4]  # `need_weights` is the fifth
        names = ("need_weights", "attn_mask", "average_attn_weights", "is_causal")
        call.kwargs = {**kwargs, **dict(zip(names, args[4:], strict=False))}
        return call.args, {**call.kwargs, "need_weights": True, "average_attn_weights": False}

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        while self._calls[-1].module is not module:
            self._calls.pop()  # an exception ended it
        call = self._calls.pop()
        changed = self._watcher.end(call, output)
        if reader_of(module) is not read_multihead:
            return changed
        weights = output[1] if call.kwargs.get("need_weights", True) else None
        if weights is not None and call.kwargs.get("average_attn_weights", True):
            weights = weights.mean(dim=-3)
        return output[0] if changed is None else changed, weights


@dataclass(frozen=True)
class GlobalCall:
    """Attention over all nodes in one call: weights, and the node at each place.

    Attributes:
        name: Name of the module.
        kind: Name of its class.
        weights: The weights of all pairs of places.
        nodes: The node at each place, [B, n]; -1 for padding.
        num_nodes: Number of nodes of the graph.
        number: Number of the call among those of modules that can attend over all nodes.
    """

    name: str
    kind: str
    weights: GlobalWeights
    nodes: Tensor
    num_nodes: int
    number: int = 0

    def pull(self, r: Tensor) -> Tensor:
        """Return r times the weights: [T, num_nodes] for [T, num_nodes]."""
        placed = torch.cat([r, r.new_zeros(r.shape[0], 1)], dim=1)[:, self.nodes]
        pulled = self.weights.pull(placed)
        result = r.new_zeros(r.shape[0], self.num_nodes + 1)
        result[:, self.nodes.flatten()] = pulled.flatten(1)
        return result[:, :-1]

    @cached_property
    def place(self) -> tuple[Tensor, Tensor]:
        """The graph and the place of each node."""
        graph, place = (self.nodes >= 0).nonzero().unbind(1)
        order = self.nodes[graph, place].argsort()
        return graph[order], place[order]

    def rows(self, nodes: Tensor) -> Tensor:
        """Return the weights with which some nodes, of one graph, read all nodes: [nodes, num_nodes]."""
        graphs, places = self.place
        graph = int(graphs[nodes[0]])
        rows = self.weights.rows(graph, places[nodes])
        result = rows.new_zeros(nodes.numel(), self.num_nodes + 1)
        result[:, self.nodes[graph]] = rows
        return result[:, :-1]

    def uniform(self, total: bool = False) -> GlobalCall:
        """Return the call if every node read all nodes of its graph alike: by 1 / n each, or by 1 each if `total`."""
        is_node = (self.nodes >= 0).to(torch.get_default_dtype())[:, :, None, None]
        keys = is_node if total else is_node / is_node.sum(dim=1, keepdim=True).clamp(min=1)
        # q . sum of k is the denominator of a kernel: it is 1 for keys that add up to 1.
        weights: GlobalWeights = KernelWeights(torch.ones_like(keys), keys)
        return replace(self, weights=_Counting(keys) if total else weights)


@dataclass(frozen=True)
class _Counting(GlobalWeights):
    """A weight of 1 for every pair of nodes of a graph, to count flows."""

    is_node: Tensor

    def mix(self, values: Tensor) -> Tensor:
        raise NotImplementedError

    def pull(self, r: Tensor) -> Tensor:
        return r.sum(dim=2, keepdim=True) * self.is_node[:, :, 0, 0].to(r.dtype)

    def rows(self, graph: int, queries: Tensor) -> Tensor:
        return self.is_node[graph, :, 0, 0].expand(queries.numel(), -1)

    def without(self, reduced: Any, deletes: bool) -> GlobalWeights:
        raise NotImplementedError


def place_nodes(mixing: Mixing, batch: Tensor) -> Tensor | None:
    """Return the node at each place of a dense batch, [B, n]; None if its places are no nodes.

    Args:
        mixing: The call.
        batch: The graph of each node.
    """
    num_graphs, num_places = mixing.values.shape[:2]
    counts = batch.bincount(minlength=num_graphs)
    if counts.numel() != num_graphs or int(counts.max()) > num_places:
        return None
    mask = mixing.mask
    if mask is None:
        if int(counts.max()) != num_places:
            return None
        mask = torch.arange(num_places, device=batch.device) < counts.unsqueeze(1)
    if mask.shape != (num_graphs, num_places) or not torch.equal(mask.sum(dim=1), counts):
        return None
    nodes = torch.full((num_graphs, num_places), -1, device=batch.device)
    nodes[mask] = batch.argsort(stable=True)
    return nodes


def check_mixing(call: GlobalModuleCall, mixing: Mixing, output: Any, is_node: Tensor) -> None:
    """Raise unless a reader computes what the module returned, at the places of nodes."""
    returned = output[0] if isinstance(output, tuple) else output
    computed = mixing.finish(mixing.weights.mix(mixing.values))
    if isinstance(call.module, nn.MultiheadAttention) and not call.module.batch_first:
        returned, computed = returned.transpose(0, 1), computed.transpose(0, 1)
    fits = returned.shape == computed.shape and same(computed[is_node], returned[is_node].detach())
    if not fits:
        raise UnsupportedModelError(
            f"Expected {call.described()} to mix values by the weights that attree reads from it, but it returned "
            "something else: `attree.attention.register_global_attention` teaches attree how it computes."
        )


class GlobalRecords(GlobalWatcher):
    """Records the calls over all nodes of one pass, and marks their outputs in its provenance.

    Args:
        batch: The graph of each node.

    Attributes:
        batch: The graph of each node.
        layers: The records of the layers along edges in the same pass, as many as were called by now.
        provenance: The provenance of the pass.
        calls: The calls, by mark.
        feeds: For each mark, the marks that feed it, with their factors.
        uses: For each mark, the layers along edges that it was computed from.
        order: For each call, the number of layers along edges before it, 0, and its mark.
        inputs: For each mark, the dense batch that the module read.
        outputs: For each mark, the dense batch that it returned.
        error: Why the weights of a module could not be read; None if all could.
    """

    def __init__(self, batch: Tensor) -> None:
        self.layers: Sequence[Any] = ()
        self.provenance: Combination | None = None
        self.calls: dict[int, GlobalCall] = {}
        self.feeds: dict[int, dict[int, float]] = {}
        self.uses: dict[int, Marks] = {}
        self.order: list[tuple[int, int, int]] = []
        self.inputs: dict[int, Tensor] = {}
        self.outputs: dict[int, Tensor] = {}
        self.error: UnsupportedModelError | None = None
        self.batch = batch
        self._begun: dict[int, tuple[dict[int, float], Marks, int]] = {}

    def begin(self, call: GlobalModuleCall) -> None:
        assert self.provenance is not None
        read = (call.args, call.kwargs)
        marks = frozenset().union(*(self.uses.get(mark, {mark}) for mark in self.provenance.marks(read)))
        self._begun[call.number] = dict(self.provenance.mix(read).factors), marks, len(self.layers)

    def end(self, call: GlobalModuleCall, output: Any) -> None:
        try:
            mixing = call.read(output)
            nodes = None if mixing is None else place_nodes(mixing, self.batch)
            if mixing is None or nodes is None:
                return
            check_mixing(call, mixing, output, nodes >= 0)
        except UnsupportedModelError as error:
            self.error = error.with_traceback(None)
            return
        mark = FIRST_MARK + call.number
        self.calls[mark] = GlobalCall(
            call.name, type(call.module).__name__, mixing.weights, nodes, self.batch.numel(), call.number
        )
        self.feeds[mark], self.uses[mark], before = self._begun[call.number]
        self.order.append((before, 0, mark))
        self.inputs[mark] = input_of(call, nodes.shape).clone()
        self.outputs[mark] = (output[0] if isinstance(output, tuple) else output).detach().clone()
        assert self.provenance is not None
        self.provenance.mark(output, mark)


def input_of(call: GlobalModuleCall, shape: Sequence[int]) -> Tensor:
    """Return the dense batch that a module was called with, [B, n, channels]."""
    x = next(tensor for tensor in tensors_in((call.args, call.kwargs)) if tensor.is_floating_point())
    return x if x.shape[:2] == tuple(shape) else x.transpose(0, 1)
