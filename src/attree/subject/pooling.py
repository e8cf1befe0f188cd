"""Read how a model pools nodes into graphs from its own forward pass.

Whatever a readout is called (`global_mean_pool`, an aggregation module, `scatter`, `index_add_`, `h.mean(0)`), torch
sees operations that turn one row per node into one row per graph: sums, means or maxima, after which a sum may be
divided by a number per graph. Where each node's row is multiplied first by a weight of its own, as attention pooling
does, that weight counts. A pool whose result goes back to nodes (a norm over graphs, the sums inside a softmax) is no
readout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from attree.attention.eager import eval_mode
from attree.attention.provenance import Provenance, tensors_in
from attree.attention.softmax_hook import attention_convs
from attree.tensors.limits import exact_dtype

LAYERS = 0
"""The mark of what layers return; pools have the numbers from 1 on."""

_SCATTERED = {"scatter_add": "sum", "scatter_add_": "sum", "index_add": "sum", "index_add_": "sum"}
_SCATTERED_AS = {"sum": "sum", "mean": "mean", "amax": "max"}
_REDUCED = {"sum": "sum", "mean": "mean", "amax": "max", "max": "max"}


@dataclass
class Pool:
    """One operation that pools nodes.

    Attributes:
        kind: `sum`, `mean` or `max`.
        pooled: What is pooled, [num_nodes, ...].
        factors: The two factors of `pooled`, if it is a product of rows of nodes.
        result: One row per graph.
        scale: What the result was multiplied by afterwards, per graph; None if by nothing.
        goes_back: Whether rows of nodes are computed from the result.
    """

    kind: str
    pooled: Tensor
    factors: tuple[Tensor, Tensor] | None
    result: Tensor
    scale: Tensor | None = None
    goes_back: bool = False


class PoolTrace(Provenance):
    """While open, records the operations that turn rows of nodes into rows of graphs.

    Args:
        num_nodes: Number of nodes.
        num_graphs: Number of graphs.
    """

    def __init__(self, num_nodes: int, num_graphs: int) -> None:
        super().__init__()
        self.pools: list[Pool] = []
        self._num_nodes, self._num_graphs = num_nodes, num_graphs
        self._products: dict[StorageWeakRef, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        read = self.marks((args, kwargs or {}))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if read:
            self._observe(func.overloadpacket.__name__, args, next(tensors_in(result), None), read)
        return result

    def _observe(self, name: str, args: tuple[Any, ...], result: Tensor | None, read: frozenset[int]) -> None:
        if result is None or result.dim() == 0:
            return
        if result.shape[0] == self._num_nodes:
            for number in read - {LAYERS}:
                self.pools[number - 1].goes_back = True
            rows = [one for one in args[:2] if isinstance(one, Tensor) and one.shape[:1] == (self._num_nodes,)]
            if name in ("mul", "mul_") and len(rows) == 2:
                self._products[_key(result)] = rows[0], rows[1]
        elif LAYERS in read and (found := self._pooled(name, args, result)) is not None:
            kind, pooled = found
            self.pools.append(Pool(kind, pooled.detach().clone(), self._products.get(_key(pooled)), result))
            self.mark(result, len(self.pools))
        elif name in ("div", "div_", "mul", "mul_"):
            self._scale(name, args, result)

    def _pooled(self, name: str, args: tuple[Any, ...], result: Tensor) -> tuple[str, Tensor] | None:
        """How an operation pools rows of nodes, and which; None if it does not."""
        rows = self._num_graphs if result.dim() > 1 else 1
        if name.rstrip("_") in ("scatter_add", "index_add", "scatter_reduce"):
            dim, pooled = int(args[1]), args[3]
            kind = _SCATTERED.get(name) or _SCATTERED_AS.get(str(args[4]) if len(args) > 4 else "")
            fits = dim % max(result.dim(), 1) == 0 and result.shape[0] == self._num_graphs
        elif name in _REDUCED and self._num_graphs == 1 and len(args) > 1:
            dims = [args[1]] if isinstance(args[1], int) else list(args[1] or ())
            pooled, kind = args[0], _REDUCED[name]
            fits = [dim % max(pooled.dim(), 1) for dim in dims] == [0] and rows == 1
        else:
            return None
        is_nodes = isinstance(pooled, Tensor) and pooled.shape[:1] == (self._num_nodes,) and pooled.is_floating_point()
        return (kind, pooled) if kind is not None and fits and is_nodes else None

    def _scale(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        """Note that a pool's result is divided or multiplied by a number per graph that does not come from layers."""
        first, second = args[0], args[1]
        for number, pool in enumerate(self.pools, 1):
            if not isinstance(first, Tensor) or _key(first) != _key(pool.result) or self.marks(second):
                continue
            factor = torch.as_tensor(second, dtype=exact_dtype(result.device), device=result.device)
            if factor.dim() and (factor.shape[0] not in (1, self._num_graphs) or factor.dim() > result.dim()):
                continue
            factor = factor.expand_as(result) if factor.dim() in (0, result.dim()) else factor.unsqueeze(-1)
            factor = 1 / factor if name.startswith("div") else factor
            pool.scale = factor.expand_as(result) if pool.scale is None else pool.scale * factor
            pool.result = result
            self.mark(result, number)


@torch.no_grad()
def read_readout(
    model: nn.Module, run: Callable[[], Any], batch: Tensor, calls: Sequence[int] | None = None
) -> Tensor | None:
    """The weight of each node in the pooled vector of its graph, [num_nodes]; None if it cannot be read.

    A pooled vector is the sum over nodes of weight times row, channel by channel: a weight is 1 for a sum, 1 / n for a
    mean, 1 for the largest value of a maximum, the attention for attention pooling. A node's weight is the mean over
    channels; of several pools, over all their channels. What is found is checked: it must give the pooled vectors.

    Args:
        model: The model, which returns one row per graph.
        run: Calls it.
        batch: The graph of each node.
        calls: Which calls of attention convolutions are its layers; None for all.
    """
    with ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        count = -1

        def mark(conv: nn.Module, args: Any, output: Any) -> None:
            nonlocal count
            count += 1
            if calls is None or count in calls:
                trace.mark(output, LAYERS)

        for conv in attention_convs(model):
            stack.callback(conv.register_forward_hook(mark).remove)
        trace = PoolTrace(batch.numel(), int(batch.max()) + 1 if batch.numel() else 0)
        stack.enter_context(trace)
        output = run()
    if batch.bincount().max() == 1:
        return torch.ones(batch.numel(), dtype=exact_dtype(batch.device), device=batch.device)
    read = trace.marks(output)
    pools = [pool for number, pool in enumerate(trace.pools, 1) if number in read and not pool.goes_back]
    weights = [_channel_weights(pool, batch) for pool in pools]
    found = [weight for weight in weights if weight is not None]
    if not found or len(found) < len(weights) or LAYERS in read:
        return None
    return torch.cat(found, dim=1).mean(dim=1)


def _channel_weights(pool: Pool, batch: Tensor) -> Tensor | None:
    """The weight of every node in every channel of a pool, [num_nodes, channels]; None if the check fails."""
    dtype = exact_dtype(batch.device)
    rows, num_graphs = pool.pooled.reshape(batch.numel(), -1).to(dtype), int(batch.max()) + 1
    values, weights = rows, torch.ones_like(rows)
    if pool.kind == "mean":
        weights = weights / batch.bincount()[batch].unsqueeze(1)
    if pool.kind == "max":
        weights = winners(rows, batch)
    elif pool.factors is not None:
        gates, others = _gate(pool.factors, pool.pooled.shape, batch)
        if gates is not None:
            weights, values = weights * gates.to(dtype), others.to(dtype)
    if pool.scale is not None:
        weights = weights * pool.scale.reshape(num_graphs, -1).to(dtype)[batch]
    sums = values.new_zeros(num_graphs, values.shape[1]).index_add_(0, batch, weights * values)
    result = pool.result.reshape(num_graphs, -1).to(dtype) if pool.result.numel() == sums.numel() else None
    tolerance = torch.finfo(pool.pooled.dtype).eps ** 0.5
    fits = result is not None and bool((sums - result).abs().max() <= tolerance * result.abs().max())
    return weights if fits else None


def _gate(factors: tuple[Tensor, Tensor], shape: torch.Size, batch: Tensor) -> tuple[Tensor | None, Tensor]:
    """The factor that weighs nodes and the other one, [num_nodes, channels] each; None if neither weighs nodes.

    It is the one with fewer columns; of two of the same shape, the one that adds up to 1 over the nodes of each graph.
    """
    full = [torch.broadcast_to(one, torch.broadcast_shapes(*(f.shape for f in factors))) for one in factors]
    rows = [one.reshape(batch.numel(), -1) for one in full]
    for first, second in ((0, 1), (1, 0)):
        if factors[first].numel() < factors[second].numel():
            return rows[first], rows[second]
    for first, second in ((0, 1), (1, 0)):
        sums = rows[first].new_zeros(int(batch.max()) + 1, rows[first].shape[1]).index_add_(0, batch, rows[first])
        if bool(((sums[batch] - 1).abs() < 1e-3).all()):
            return rows[first], rows[second]
    return None, rows[0] * rows[1]


def winners(rows: Tensor, batch: Tensor) -> Tensor:
    """The share that each node has in its graph's largest value of each channel; nodes that tie split it.

    >>> winners(torch.tensor([[1.0, 5.0], [3.0, 5.0], [2.0, 0.0]]), torch.tensor([0, 0, 1])).tolist()
    [[0.0, 0.5], [1.0, 0.5], [1.0, 1.0]]
    """
    index = batch.unsqueeze(1).expand_as(rows)
    size = (int(batch.max()) + 1 if batch.numel() else 0, rows.shape[1])
    largest = rows.new_full(size, -torch.inf).scatter_reduce(0, index, rows, "amax")
    wins = (rows == largest.gather(0, index)).to(exact_dtype(batch.device))
    count = wins.new_zeros(size).scatter_add(0, index, wins)
    return wins / count.gather(0, index)


def _key(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())
