"""Run a model with chosen edges reduced in every softmax of its attention convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.eager import eval_mode
from attree.attention.edge_hook import EdgeHook, hook_edges
from attree.attention.softmax_hook import hook_softmax
from attree.errors import UnsupportedModelError
from attree.faithfulness.protocol import ReductionProtocol, reduced_softmax

Locate = Callable[[Tensor], Tensor | None]
"""Gives the positions of the reduced edges in a layer's own edge list [2, E']; None if the list is not the graph's."""


class ReducedRun:
    """Runs a model with edges reduced; made by `reduced_run`.

    Args:
        protocol: What happens to the reduced edges.
    """

    def __init__(self, protocol: ReductionProtocol) -> None:
        self.protocol = protocol
        self.edges = EdgeHook()
        self._locate: Locate = lambda edges: None

    def __call__(self, call: Callable[[], Any], locate: Locate) -> Any:
        """What `call()` returns with the edges reduced that `locate` finds."""
        self._locate = locate
        return call()

    def reduce(self, conv: MessagePassing, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """Called in place of the softmax."""
        edges = self.edges.scored(conv, scores.shape[0])
        reduced = None if edges is None else self._locate(edges)
        if reduced is None:
            got = f"{scores.shape[0]} scores are not one for each" if edges is None else "its edges are others"
            raise UnsupportedModelError(
                f"Expected {type(conv).__name__} to apply its softmax to one score per edge of the graph it is given, "
                f"but {got}: the protocol `{self.protocol}` is not defined there."
            )
        return reduced_softmax(self.protocol, scores, reduced, softmax)


@contextmanager
def reduced_run(model: nn.Module, protocol: ReductionProtocol) -> Iterator[ReducedRun]:
    """While open, the returned run reduces edges in `model`; hooks are gone afterwards."""
    run = ReducedRun(protocol)
    with ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        stack.enter_context(torch.no_grad())
        convs = stack.enter_context(hook_softmax(model, run.reduce))
        stack.enter_context(hook_edges(convs, run.edges))
        yield run
