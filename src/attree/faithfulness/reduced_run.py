"""Run a model with chosen edges reduced in every softmax of its attention convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.conv_edges import EdgeHook, edge_ids, hook_edges
from attree.attention.eval_mode import eval_mode
from attree.attention.graph import Graph
from attree.attention.softmax_hook import hook_softmax
from attree.errors import UnsupportedModelError
from attree.faithfulness.protocol import ReductionProtocol, reduced_softmax


class ReducedRun:
    """Runs a model with edges reduced; made by `reduced_run`.

    Args:
        protocol: What happens to the reduced edges.
    """

    def __init__(self, protocol: ReductionProtocol) -> None:
        self.protocol = protocol
        self.edges = EdgeHook()
        self._graph: Graph | None = None
        self._reduced = torch.zeros(0, dtype=torch.bool)

    def __call__(self, call: Callable[[], Any], graph: Graph, reduced: Tensor) -> Any:
        """What a call returns with edges reduced.

        Args:
            call: Calls the model.
            graph: The graph that it is called on.
            reduced: Ids of the reduced edges in `graph.edge_index`. A self-loop is reduced as often as a layer has it,
                which may be never.
        """
        self._graph = graph
        self._reduced = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device).index_fill(0, reduced, True)
        return call()

    def reduce(self, conv: MessagePassing, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """Called in place of the softmax."""
        relation = self.edges.next_relation(conv)
        if scores.shape[0] == 0:
            return softmax(scores)
        assert self._graph is not None
        edges = self.edges.scored(conv, scores.shape[0] if relation is None else relation.numel())
        ids = None if edges is None else edge_ids(self._graph, self.edges.given(conv), edges)
        if ids is not None and relation is not None:
            ids = ids[relation]
        if ids is None:
            got = f"{scores.shape[0]} scores are not one for each" if edges is None else "its edges are others"
            raise UnsupportedModelError(
                f"Expected {type(conv).__name__} to apply its softmax to one score per edge of the graph it is given, "
                f"but {got}: the protocol `{self.protocol}` is not defined there."
            )
        return reduced_softmax(self.protocol, scores, self._reduced[ids].nonzero().view(-1), softmax)


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
