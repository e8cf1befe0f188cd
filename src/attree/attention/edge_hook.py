"""See the edges that a convolution scores and sends messages along, and change the messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import add_self_loops, remove_self_loops

from attree.attention.graph import plain
from attree.attention.layer_records import edges_of, features_of, within_relations
from attree.errors import UnsupportedModelError


class EdgeHook:
    """Knows, for each convolution, the edges of the call that is running.

    PyG hands a layer's own edges, with the self-loops that it adds, to `edge_updater` and `propagate`. A convolution
    that calls its softmax before, in `forward`, scores the edges it was given, or these with self-loops: the list with
    as many edges as there are scores. `propagate` must then be called with the same list.
    """

    def __init__(self) -> None:
        self._given: dict[MessagePassing, tuple[Any, int | None]] = {}
        self._apart: set[MessagePassing] = set()
        self._seen: dict[MessagePassing, Tensor] = {}
        self._assumed: dict[MessagePassing, Tensor] = {}
        self._relations: dict[MessagePassing, tuple[Tensor, int]] = {}

    def given(self, conv: MessagePassing) -> Any:
        """The edges that a convolution was called with: a tensor, or a dict by edge type; None if there were none."""
        return self._given.get(conv, (None, None))[0]

    def has_two_node_sets(self, conv: MessagePassing) -> bool:
        """Whether sources and destinations of the running call are numbered apart: other types, or several of them."""
        return conv in self._apart

    def scored(self, conv: MessagePassing, num_scores: int) -> Tensor | None:
        """The edges that a convolution is scoring; None if no list of edges has as many."""
        if conv in self._seen:
            edges = self._seen[conv]
            return edges if edges.shape[1] == num_scores else None
        for edges in self._possible(conv):
            if edges.shape[1] == num_scores:
                self._assumed[conv] = edges
                return edges
        return None

    def next_relation(self, conv: MessagePassing) -> Tensor | None:
        """Which of its edges a convolution with a softmax for each relation scores now, as a mask; None for others.

        RGATConv's softmaxes come in the order of relations, so this is asked once for each of them.
        """
        if conv not in self._relations:
            return None
        edge_type, number = self._relations[conv]
        self._relations[conv] = edge_type, number + 1
        return edge_type == number

    def _possible(self, conv: MessagePassing) -> Iterator[Tensor]:
        edges, num_nodes = self._given.get(conv, (None, None))
        if isinstance(edges, Tensor):
            yield edges
            yield add_self_loops(remove_self_loops(edges)[0], num_nodes=num_nodes)[0]
            yield add_self_loops(edges, num_nodes=num_nodes)[0]

    def begin(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hook before a call: note the edges that the convolution is given."""
        features = features_of(conv, args, kwargs)
        (self._apart.add if isinstance(features, tuple | list | dict) else self._apart.discard)(conv)
        features = features[0] if isinstance(features, tuple | list) else features
        self._given[conv] = plain(edges_of(args, kwargs)), features.shape[0] if isinstance(features, Tensor) else None
        self._seen.pop(conv, None)
        self._assumed.pop(conv, None)

    def see(self, conv: MessagePassing, inputs: Any) -> None:
        """Hook before `edge_updater` and `propagate`: note the edges that the convolution uses."""
        edges = plain(inputs[0])
        assumed = self._assumed.pop(conv, None)
        if assumed is not None and not (isinstance(edges, Tensor) and torch.equal(assumed, edges)):
            raise UnsupportedModelError(
                f"Expected {type(conv).__name__}, which calls its softmax before it passes messages, to pass them "
                "along the edges that it was given, with or without self-loops, but it passes them along others."
            )
        self._seen[conv] = edges
        if within_relations(conv):
            self._relations[conv] = inputs[-1]["edge_type"], 0


@contextmanager
def hook_edges(convs: Iterable[MessagePassing], hook: EdgeHook) -> Iterator[None]:
    """While open, the hook sees the edges of these convolutions."""
    with ExitStack() as stack:
        for conv in convs:
            stack.callback(conv.register_forward_pre_hook(hook.begin, with_kwargs=True).remove)
            stack.callback(conv.register_edge_update_forward_pre_hook(hook.see).remove)
            stack.callback(conv.register_propagate_forward_pre_hook(hook.see).remove)
        yield


MessageHook = Callable[[MessagePassing, Tensor, Tensor], Tensor | None]
"""Called as `hook(conv, edges, messages)` once messages are computed; returns others to send instead, or None."""


@contextmanager
def hook_messages(convs: Iterable[MessagePassing], hook: MessageHook) -> Iterator[None]:
    """While open, the hook sees the messages of these convolutions, and the edges [2, E'] that they are sent along."""
    edges: dict[MessagePassing, Tensor] = {}

    def see_edges(conv: MessagePassing, inputs: Any) -> None:
        edges[conv] = inputs[0]

    def see_messages(conv: MessagePassing, inputs: Any, messages: Tensor) -> Tensor | None:
        return hook(conv, edges[conv], messages)

    with ExitStack() as stack:
        for conv in convs:
            stack.callback(conv.register_propagate_forward_pre_hook(see_edges).remove)
            stack.callback(conv.register_message_forward_hook(see_messages).remove)
        yield
