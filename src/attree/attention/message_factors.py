"""The weight of each message of a layer: read from what the layer sends and sums up, with attention or without.

The weight of an edge is the factor of the source's features in the output: c in `message = c * x_j + ...`, times k if
the aggregation is k times the sum of messages (k is 1 for a sum, 1 / n for a mean of n). In GATConv and similar
convolutions, c is the weight of the softmax and k is 1. A user's convolution may multiply by edge weights, mix two
softmaxes or take the mean. So c and k are read from the convolution's own methods: `message` is called with other
features x_j, and `aggregate` with other messages, while all weights stay the same. The result is checked against the
real call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing, RGATConv
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

from attree.attention.instruments import KNOWN, PLAIN
from attree.tensors.precision import same


def _is_plain(conv: MessagePassing) -> bool:
    """Whether a layer is one of PyG's that are known to leave the arguments of `message` as they are."""
    return type(conv) in PLAIN


def is_known(conv: MessagePassing) -> bool:
    """Whether a convolution is known to sum messages that are weighted by its softmax."""
    if isinstance(conv, RGATConv) and conv.mod is not None:  # changes the weights after the softmax
        return False
    return type(conv) in KNOWN and type(conv.aggr_module) is SumAggregation


class WeightReader:
    """Reads the weights of the messages of one call of a convolution, from what a `Watcher` sees of the call.

    Args:
        conv: The convolution.
        softmaxes: The weights that were computed for this step before it passes messages.
    """

    def __init__(self, conv: MessagePassing, softmaxes: Iterable[Tensor] = ()) -> None:
        self._conv = conv
        self._heads = int(getattr(conv, "heads", 1))
        self._softmaxes: list[Tensor] = list(softmaxes)
        self._replayed: Iterator[Tensor] | None = None
        self._factors: Tensor | None = None
        self._unclear: str | None = "it calls no `message`"

    def result(self) -> tuple[Tensor | None, str | None]:
        """Return the weights of the messages of this call, [edges, heads], or the reason why they could not be read."""
        return (None, self._unclear) if self._unclear else (self._factors, None)

    @property
    def is_probing(self) -> bool:
        """Whether the softmax runs only to read weights, not in the pass of the model."""
        return self._replayed is not None

    def softmax(self, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """Run the softmax; while messages are recomputed, return the weights of the real call."""
        if self._replayed is not None:
            return next(self._replayed)
        weights = softmax(scores)
        self._softmaxes.append(weights)
        return weights

    def message(self, message: Callable[..., Tensor], arguments: dict[str, Any]) -> Tensor:
        """Return the messages, and read the factor of each source."""
        before = len(self._softmaxes)
        is_plain = not self._softmaxes and _is_plain(self._conv)
        arguments_before = {
            name: value.clone() if isinstance(value, Tensor) and not is_plain else value
            for name, value in arguments.items()
        }
        messages = message(**arguments)
        returned, inside = self._edges_first(messages), self._softmaxes[before:]
        arguments_before = {name: self._edges_first(value, messages.dim()) for name, value in arguments_before.items()}

        def again(replaced: dict[str, Any]) -> Tensor:
            self._replayed = iter(inside)
            try:
                in_place = {
                    name: self._edges_back(value, messages.dim())
                    for name, value in (arguments_before | replaced).items()
                }
                return self._edges_first(message(**in_place))
            finally:
                self._replayed = None

        weights = self._softmaxes[0] if len(self._softmaxes) == 1 else None
        if weights is not None:
            weights = (weights.unsqueeze(1) if weights.dim() == 1 else weights.flatten(1)).to(returned.dtype)
            self._heads = weights.shape[1]
            weights = weights if weights.shape[0] == returned.shape[0] else None
        self._factors = None if self._softmaxes else _plain_factors(arguments_before, returned)
        if self._factors is None:
            self._factors = factors_of_messages(again, arguments_before, returned, weights, self._heads)
        if self._factors is None and not self._softmaxes:
            # A layer without attention, whose message is another function of its source: it counts as it is.
            self._factors = returned.new_ones(returned.shape[0], 1)
        self._unclear = None if self._factors is not None else "its messages are no multiples of neighbours' features"
        return messages

    def _edges_first(self, value: Any, dims: int | None = None) -> Any:
        """Return a value of messages, of this many dimensions, with their edges along the first one."""
        if not isinstance(value, Tensor) or value.dim() == 0 or dims not in (None, value.dim()):
            return value
        return value.movedim(self._conv.node_dim % value.dim(), 0)

    def _edges_back(self, value: Any, dims: int) -> Any:
        """Undo `_edges_first`."""
        if not isinstance(value, Tensor) or dims in (0, 1) or value.dim() != dims:
            return value
        return value.movedim(0, self._conv.node_dim % dims)

    def aggregate(self, aggregate: Callable[[Tensor], Tensor], messages: Tensor, index: Tensor) -> Tensor:
        """Return the aggregated messages, and read the factor of each sum."""
        returned = aggregate(messages)
        if not self._softmaxes and _is_plain(self._conv) and type(self._conv.aggr_module) is MeanAggregation:
            assert self._factors is not None
            count = index.bincount(minlength=returned.shape[0]).clamp(min=1)
            self._factors = self._factors / count.to(self._factors.dtype)[index].unsqueeze(1)
            return returned
        is_plain = type(self._conv).aggregate is MessagePassing.aggregate
        if self._unclear or (is_plain and type(self._conv.aggr_module) is SumAggregation):
            return returned
        assert self._factors is not None
        messages, sums = self._edges_first(messages), self._edges_first(returned)
        dims = messages.dim()
        factors = factors_of_sums(
            lambda inputs: self._edges_first(aggregate(self._edges_back(inputs, dims))),
            messages,
            sums,
            index,
            self._factors.shape[1],
        )
        if factors is not None:
            self._factors = self._factors * factors.index_select(0, index)
        elif self._softmaxes:
            self._unclear = "it does not add up its messages"
        else:
            self._factors = self._factors * shares_of_aggregation(messages, sums, index)
        return returned


def factors_of_messages(
    message: Callable[[dict[str, Any]], Tensor],
    arguments: dict[str, Any],
    returned: Tensor,
    softmax: Tensor | None,
    heads: int,
) -> Tensor | None:
    """Return the factor of the source features in each message, [edges, heads]; None if there is no such factor.

    Args:
        message: Calls the convolution's `message` with some arguments replaced; the softmax weights stay the same.
        arguments: The arguments of the real call.
        returned: The messages of the real call, [edges, ...].
        softmax: The weights of the softmax, [edges, heads]; None if it has not one weight per edge and head.
        heads: Number of heads.
    """
    edges = returned.shape[0]
    if edges == 0:
        return returned.new_zeros(0, heads)
    if returned.numel() % (edges * heads):
        return None
    messages = returned.reshape(edges, heads, -1)
    sources = {
        name: value
        for name, value in arguments.items()
        if name.endswith("_j") and isinstance(value, Tensor) and value.is_floating_point() and value.shape[0] == edges
    }
    for name, value in sources.items():
        values = _by_head(value, messages)
        if values is None:
            continue
        signs = _signs(value)
        base = message({name: torch.zeros_like(value)}).reshape(messages.shape)
        slope = message({name: signs}).reshape(messages.shape) - base
        signs_by_head = _by_head(signs, messages)
        assert signs_by_head is not None
        factor = (slope * signs_by_head).mean(dim=-1)
        expected = base + factor.unsqueeze(-1) * values
        if bool(factor.any()) and same(expected, messages, floor=0.0):
            # Prefer the weights of the softmax: they have no rounding errors.
            return softmax if softmax is not None and same(factor, softmax, floor=0.0) else factor
    if softmax is not None and sources and _is_common_function(message, sources, softmax, messages.shape):
        return softmax
    return None


def _plain_factors(arguments: dict[str, Any], returned: Tensor) -> Tensor | None:
    """Return the factors, [edges, 1], of messages that are their sources, times one weight per edge if there is one.

    None if they are not. Such messages (GCN, SAGE, GIN) are found without further calls of `message`.
    """
    edges = returned.shape[0]
    sources = [value for name, value in arguments.items() if name.endswith("_j") and isinstance(value, Tensor)]
    weights = [value for name, value in arguments.items() if isinstance(value, Tensor) and value.shape == (edges,)]
    others = [value for value in weights if value.is_floating_point()]
    if len(sources) != 1 or len(others) > 1 or edges == 0 or sources[0].shape != returned.shape:
        return None
    if not returned.is_floating_point() or returned.dim() < 2 or not bool(sources[0].any()):
        return None
    if not others:
        return returned.new_ones(edges, 1) if torch.equal(sources[0], returned) else None
    weight = others[0].view(-1, *[1] * (returned.dim() - 1))
    return others[0].unsqueeze(1).to(returned.dtype) if torch.equal(weight * sources[0], returned) else None


def factors_of_sums(
    aggregate: Callable[[Tensor], Tensor], messages: Tensor, returned: Tensor, index: Tensor, heads: int
) -> Tensor | None:
    """Return the factor between each node's aggregation and the sum of its messages, [nodes, heads]; None if none.

    Args:
        aggregate: Aggregates other messages of the same edges.
        messages: The messages, [edges, ...].
        returned: The aggregated messages, [nodes, ...].
        index: The destination of each edge.
        heads: Number of heads.
    """
    if returned.shape[1:] != messages.shape[1:] or returned[:1].numel() % heads:
        return None
    nodes = returned.shape[0]
    count = torch.zeros(nodes, dtype=messages.dtype, device=index.device)
    count.index_add_(0, index, torch.ones_like(index, dtype=count.dtype))
    ones = aggregate(torch.ones_like(messages)).reshape(nodes, heads, -1)
    factor = ones.mean(dim=-1) / count.clamp(min=1).unsqueeze(1)
    sums = messages.new_zeros(nodes, *messages.shape[1:]).index_add_(0, index, messages).reshape(nodes, heads, -1)
    return factor if same(factor.unsqueeze(-1) * sums, returned.reshape(sums.shape), floor=0.0) else None


def shares_of_aggregation(messages: Tensor, returned: Tensor, index: Tensor) -> Tensor:
    """Return the share of each message in an aggregation that is no sum, [edges, 1].

    For a maximum or minimum, it is the share of the channels in which the message is taken; ties are split. For any
    other aggregation, all messages of a node have equal shares.

    Args:
        messages: The messages, [edges, ...].
        returned: The aggregated messages, [nodes, ...].
        index: The destination of each edge.
    """
    if returned.shape[1:] == messages.shape[1:]:
        is_taken = (messages == returned.index_select(0, index)).reshape(messages.shape[0], -1).to(messages.dtype)
        count = is_taken.new_zeros(returned.shape[0], is_taken.shape[1]).index_add_(0, index, is_taken)
        if bool((count.index_select(0, index) > 0).all()):
            return (is_taken / count.index_select(0, index)).mean(dim=1, keepdim=True)
    return 1 / index.bincount(minlength=returned.shape[0])[index].to(messages.dtype).unsqueeze(1)


def warn_unread(where: str, what: str) -> None:
    """Warn that the weights of a softmax are used, because those of the messages are unknown."""
    warnings.warn(
        f"The weights of the messages of {where} could not be read: {what}. The weights of its softmax are used "
        "instead.",
        stacklevel=2,
    )


def _by_head(value: Tensor, messages: Tensor) -> Tensor | None:
    """Reshape the features of each edge to [edges, heads or 1, channels]; None if they do not fit the messages."""
    edges, _, channels = messages.shape
    if value.numel() == messages.numel():
        return value.reshape(messages.shape)
    return value.reshape(edges, 1, channels) if value.numel() == edges * channels else None


def _signs(value: Tensor) -> Tensor:
    """Return random features 1 and -1 of the same shape; multiplication by them is exact."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randint(0, 2, value.shape, generator=generator) * 2 - 1).to(value)


def _is_common_function(
    message: Callable[[dict[str, Any]], Tensor], sources: dict[str, Tensor], softmax: Tensor, shape: torch.Size
) -> bool:
    """Whether messages are the softmax weights times one function of the source, the same for all edges."""
    equal_sources = {name: _signs(value[:1]).expand_as(value).clone() for name, value in sources.items()}
    messages = message(equal_sources).reshape(shape)
    weights = softmax.unsqueeze(-1)
    common = (weights * messages).sum(dim=0) / weights.square().sum(dim=0)
    return bool(messages.any()) and same(weights * common, messages, floor=0.0)
