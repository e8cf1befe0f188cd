"""The readout of a graph-level model: the weight of each node in its graph, given or read from a forward pass.

The computation tree of a graph has the trees of all its nodes below its root. The weight of node i is 1 for a sum, 1 /
n for a mean, and for a maximum the share of channels whose value comes from node i.

A readout has many forms (`global_mean_pool`, an aggregation module, `scatter`, `index_add_`, `h.mean(0)`). In torch
they all are operations that turn one row per node into one row per graph: a sum, mean or maximum. A sum may then be
divided by a number per graph. If each row is first multiplied by a weight per node, as in attention pooling, that
weight counts. A pool whose result goes back to nodes (a norm over graphs, the sums inside a softmax) is not a readout.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from attree.attention.global_attention_calls import GlobalModuleCall, GlobalWatcher, watch_global
from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attention.marked_tensors import Provenance, storage_of, tensors_in
from attree.errors import expect
from attree.tensors.precision import exact_dtype, same

NamedReadout = Literal["sum", "mean", "max"]
Readout = NamedReadout | Tensor
"""Pooling of nodes into a graph: a name, or one weight per node."""

READOUTS: tuple[NamedReadout, ...] = ("sum", "mean", "max")

LAYERS = 0
"""The mark of the outputs of layers; pools are numbered from 1."""

_SCATTERED = {"scatter_add": "sum", "scatter_add_": "sum", "index_add": "sum", "index_add_": "sum"}
_SCATTERED_AS = {"sum": "sum", "mean": "mean", "amax": "max"}
_REDUCED = {"sum": "sum", "mean": "mean", "amax": "max", "max": "max"}


def check_readout(readout: Readout | None) -> None:
    """Raise unless `readout` is a known name, a tensor, or None."""
    is_readout = readout is None or isinstance(readout, Tensor) or readout in READOUTS
    expect(is_readout, "readout", "'sum', 'mean', 'max', one weight per node, or None", readout)


def readout_weights(
    readout: Readout | None,
    batch: Tensor,
    embedding: Tensor | None = None,
    read: Callable[[], Tensor | None] | None = None,
    warns: bool = True,
) -> Tensor:
    """Return the weight of every node in its graph, [num_nodes], in the widest type of the device.

    Args:
        readout: How nodes are pooled into a graph; None reads it from the model.
        batch: The graph of each node, [num_nodes].
        embedding: Output of the last layer, [num_nodes, channels]; needed for `max`.
        read: Reads the weights from the model, see `read_readout`. Without it, or without a result, the readout is a
            sum.
        warns: Warn if weights could not be read.

    >>> readout_weights("mean", torch.tensor([0, 0, 1])).tolist()
    [0.5, 0.5, 1.0]
    """
    check_readout(readout)
    if readout is None:
        weights = None if read is None else read()
        if weights is not None:
            return weights
        if read is not None and warns:
            warnings.warn(
                "The model's readout could not be read from its forward pass, so graphs are explained as sums over "
                "their nodes. Argument `readout` sets it: 'sum', 'mean', 'max' or one weight per node.",
                stacklevel=2,
            )
        readout = "sum"
    if isinstance(readout, Tensor):
        expect(readout.shape == batch.shape, "readout", f"{batch.numel()} weights, one per node", tuple(readout.shape))
        return readout.to(dtype=exact_dtype(batch.device)).to(batch.device)
    if readout == "max":
        expect(embedding is not None, "readout", "'sum' or 'mean', as no embedding was captured", readout)
        assert embedding is not None
        return winners(embedding, batch).mean(dim=1)
    ones = torch.ones(batch.numel(), dtype=exact_dtype(batch.device), device=batch.device)
    return ones if readout == "sum" else ones / batch.bincount()[batch]


@dataclass
class Pool:
    """One operation that pools nodes.

    Attributes:
        kind: `sum`, `mean` or `max`.
        pooled: The pooled tensor, [num_nodes, ...].
        factors: The two factors of `pooled`, if it is a product of two tensors with one row per node.
        result: The result, one row per graph.
        scale: The factor per graph that the result was multiplied by afterwards; None if there is none.
        goes_back: Whether a tensor with one row per node is computed from the result.
    """

    kind: str
    pooled: Tensor
    factors: tuple[Tensor, Tensor] | None
    result: Tensor
    scale: Tensor | None = None
    goes_back: bool = False


class PoolTrace(Provenance):
    """Dispatch mode that records the operations that turn rows of nodes into rows of graphs.

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
        """Record an operation that pools rows of nodes into rows of graphs, and later operations on its result."""
        if result is None or result.dim() == 0:
            return
        if result.shape[0] == self._num_nodes:
            for number in read - {LAYERS}:
                self.pools[number - 1].goes_back = True
            rows = [
                factor for factor in args[:2] if isinstance(factor, Tensor) and factor.shape[:1] == (self._num_nodes,)
            ]
            if name in ("mul", "mul_") and len(rows) == 2:
                self._products[storage_of(result)] = rows[0], rows[1]
        elif LAYERS in read and (pool := self._pooled(name, args, result)) is not None:
            kind, pooled = pool
            self.pools.append(Pool(kind, pooled.detach().clone(), self._products.get(storage_of(pooled)), result))
            self.mark(result, len(self.pools))
        elif name in ("div", "div_", "mul", "mul_"):
            self._scale(name, args, result)

    def _pooled(self, name: str, args: tuple[Any, ...], result: Tensor) -> tuple[str, Tensor] | None:
        """Return how an operation pools rows of nodes, and the pooled tensor; None if it does not pool."""
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
        """Record the scale if the result of a pool is divided or multiplied by a number per graph."""
        first, second = args[0], args[1]
        for number, pool in enumerate(self.pools, 1):
            if not isinstance(first, Tensor) or storage_of(first) != storage_of(pool.result) or self.marks(second):
                continue
            factor = torch.as_tensor(second, dtype=exact_dtype(result.device), device=result.device)
            if factor.dim() and (factor.shape[0] not in (1, self._num_graphs) or factor.dim() > result.dim()):
                continue
            factor = factor.expand_as(result) if factor.dim() in (0, result.dim()) else factor.unsqueeze(-1)
            factor = 1 / factor if name.startswith("div") else factor
            pool.scale = factor.expand_as(result) if pool.scale is None else pool.scale * factor
            pool.result = result
            self.mark(result, number)


class _LayerMarks(Watcher):
    """Marks the outputs of layers in a trace."""

    def __init__(self, trace: PoolTrace) -> None:
        self._trace = trace

    def end(self, call: LayerCall, output: Any) -> None:
        self._trace.mark(output, LAYERS)


class _GlobalMarks(GlobalWatcher):
    """Marks the outputs of modules that attend over all nodes; inside a layer, they count as part of it."""

    def __init__(self, trace: PoolTrace) -> None:
        self._trace = trace

    def end(self, call: GlobalModuleCall, output: Any) -> None:
        self._trace.mark(output, LAYERS)


@contextmanager
def record_pools(model: nn.Module, batch: Tensor) -> Iterator[PoolTrace]:
    """While open, record the operations by which a model pools the outputs of its layers into rows of graphs.

    Args:
        model: The model.
        batch: The graph of each node.
    """
    trace = PoolTrace(batch.numel(), int(batch.max()) + 1 if batch.numel() else 0)
    with instrument(model, _LayerMarks(trace)), watch_global(model, _GlobalMarks(trace)), trace:
        yield trace


def read_readout(trace: PoolTrace, output: Any, batch: Tensor) -> Tensor | None:
    """Return the weight of each node in the pooled vector of its graph, [num_nodes]; None if it cannot be read.

    In each channel, a pooled vector is the sum over nodes of weight times row. The weight is 1 for a sum, 1 / n for a
    mean, 1 for the largest value of a maximum, and the attention for attention pooling. The weight of a node is the
    mean over the channels of all pools. The weights are checked: they must reproduce the pooled vectors.

    Args:
        trace: The pools of one pass of a model, recorded for this batch.
        output: The output of the pass: one row per graph.
        batch: The graph of each node.
    """
    if batch.bincount().max() == 1:
        return torch.ones(batch.numel(), dtype=exact_dtype(batch.device), device=batch.device)
    read = trace.marks(output)
    pools = [pool for number, pool in enumerate(trace.pools, 1) if number in read and not pool.goes_back]
    weights = [_channel_weights(pool, batch) for pool in pools]
    readable = [weight for weight in weights if weight is not None]
    if not readable or len(readable) < len(weights) or LAYERS in read:
        return None
    return torch.cat(readable, dim=1).mean(dim=1)


def _channel_weights(pool: Pool, batch: Tensor) -> Tensor | None:
    """Return the weight of every node in every channel of a pool, [num_nodes, channels]; None if the check fails."""
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
    return weights if result is not None and same(sums, result, pool.pooled.dtype, floor=0.0) else None


def _gate(factors: tuple[Tensor, Tensor], shape: torch.Size, batch: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the factor that weighs nodes (None if there is none) and the other factor, [num_nodes, channels] each.

    The factor with fewer columns weighs nodes. If both have the same shape, the one that adds up to 1 in each graph
    does.
    """
    full = [torch.broadcast_to(factor, torch.broadcast_shapes(*(f.shape for f in factors))) for factor in factors]
    rows = [factor.reshape(batch.numel(), -1) for factor in full]
    for first, second in ((0, 1), (1, 0)):
        if factors[first].numel() < factors[second].numel():
            return rows[first], rows[second]
    for first, second in ((0, 1), (1, 0)):
        sums = rows[first].new_zeros(int(batch.max()) + 1, rows[first].shape[1]).index_add_(0, batch, rows[first])
        if bool(((sums[batch] - 1).abs() < 1e-3).all()):
            return rows[first], rows[second]
    return None, rows[0] * rows[1]


def winners(rows: Tensor, batch: Tensor) -> Tensor:
    """Return the share of each node in the largest value of its graph in each channel; ties are split evenly.

    >>> winners(torch.tensor([[1.0, 5.0], [3.0, 5.0], [2.0, 0.0]]), torch.tensor([0, 0, 1])).tolist()
    [[0.0, 0.5], [1.0, 0.5], [1.0, 1.0]]
    """
    index = batch.unsqueeze(1).expand_as(rows)
    size = (int(batch.max()) + 1 if batch.numel() else 0, rows.shape[1])
    largest = rows.new_full(size, -torch.inf).scatter_reduce(0, index, rows, "amax")
    wins = (rows == largest.gather(0, index)).to(exact_dtype(batch.device))
    count = wins.new_zeros(size).scatter_add(0, index, wins)
    return wins / count.gather(0, index)
