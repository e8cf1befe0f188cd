"""Attention reduction in any PyG attention model, by batches of copies of the part that a target depends on.

Each pair gets its own copy of its target's subgraph, and one forward pass of the model runs over many copies at once.
In every attention softmax of the pass the edge of each copy is reduced. The model is taken as it is; it must only
compute a target's class scores from the target's own subgraph, which is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.capture import Attention, capture_attention, eval_mode
from attree.attention.edge_hook import EdgeHook, hook_edges
from attree.attention.looped_graph import LoopedGraph
from attree.attention.softmax_hook import attention_convs, hook_softmax
from attree.attribution.flows import stream_frontiers
from attree.attribution.pairs import Pairs
from attree.attribution.start import Start
from attree.errors import UnsupportedModelError, expect
from attree.faithfulness.copies.subgraph_copies import Copies, Subgraphs
from attree.faithfulness.model_call import ModelCall
from attree.faithfulness.protocol import Protocol, reduced_softmax
from attree.faithfulness.reduction import Progress, Reduction, ReductionWriter
from attree.memory import REDUCTION_MEMORY, chunk_bounds
from attree.ragged import Rows, expand, group
from attree.subject import ModelInputs
from attree.subject.head import Head


class CopiesReducer:
    """Reduces edges of one forward pass, `model(x, edge_index, *args, **kwargs)`, of any PyG attention model.

    Among the further arguments, tensors with one row per edge or per node go with the edges and nodes of the copies
    (edge_attr, edge_weight, positions, ...); everything else is passed on as it is.

    Node-level models return one row of class scores per node. Graph-level models take the graph of each node as an
    argument named `batch` and return one row per graph; targets then are graph ids, and each pair's copy is of its
    whole graph (see `graph_pairs`). Scores are logits or log-probabilities.

    Args:
        model: The model.
        x: Node features.
        edge_index: The graph's edges.
        *args: Further positional arguments of the model.
        graph: The looped graph of `edge_index`, if at hand.
        memory: Bytes of working memory for one batch of copies; one copy is never cut.
        head: What the outputs mean.
        **kwargs: Further keyword arguments of the model.

    Raises:
        UnsupportedModelError: If the model is not one that attention can be reduced in; the message says why.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        edge_index: Tensor,
        *args: Any,
        graph: LoopedGraph | None = None,
        memory: int = REDUCTION_MEMORY,
        head: Head | None = None,
        **kwargs: Any,
    ) -> None:
        expect(memory > 0, "memory", "a number of bytes > 0", memory)
        self.model = model
        self.memory = memory
        self.head = Head() if head is None else head
        self._inputs = ModelInputs.of(model, x, edge_index, *args, **kwargs)
        self.graph = LoopedGraph(edge_index, x.shape[0]) if graph is None else graph
        hidden = max(_width(conv) for conv in attention_convs(model))
        self._pass: tuple[Attention, ModelCall] | None = None
        self._bytes_per_node = x[:1].numel() * x.element_size() + 6 * hidden * self._call.itemsize
        self._bytes_per_edge = 6 * hidden * self._call.itemsize + 64
        # After the forward pass, which refuses a graph of other edges.
        self._rows = group(edge_index[1], self.graph.num_nodes)

    @property
    def attention(self) -> Attention:
        """What the model attended to in the forward pass."""
        return self._forward()[0]

    @property
    def _call(self) -> ModelCall:
        return self._forward()[1]

    def _forward(self) -> tuple[Attention, ModelCall]:
        if self._pass is None:
            inputs = self._inputs
            attention = capture_attention(
                self.model, inputs.x, inputs.edge_index, *inputs.args, graph=self.graph, **inputs.kwargs
            )
            self._pass = attention, ModelCall(self._inputs, attention.output)
        return self._pass

    def forget(self) -> None:
        """Drop the forward pass: whatever is asked next is answered by a new one, with the weights of then."""
        self._pass = None

    @torch.no_grad()
    def reduce(
        self, pairs: Pairs, protocol: Protocol, with_probability: bool = False, progress: Progress | None = None
    ) -> Reduction:
        """Reduce every pair's edge, one at a time; pairs whose edge carries no flow change nothing."""
        pairs.check(self.graph, self.attention.num_layers)
        writer = ReductionWriter(pairs, self._call.logits, self.head, with_probability)
        flow = pairs.flow.nonzero().view(-1)
        alone = Rows(torch.arange(flow.numel() + 1, device=flow.device), pairs.edges[flow])
        done = 0
        for begin, end, output in self._outputs(pairs.targets, pairs.owner[flow], alone, protocol):
            writer.fill(flow[begin:end], output)
            done += end - begin
            if progress is not None:
                progress(done, flow.numel())
        return writer.result

    @torch.no_grad()
    def reduce_sets(self, targets: Tensor, owner: Tensor, sets: Rows, protocol: Protocol) -> Tensor:
        """The outputs of targets when sets of edges are reduced, all edges of a set at once: a row each set.

        Args:
            targets: The targets.
            owner: For each set the position of its target in `targets`, ascending.
            sets: The edges of each set, as positions in `graph.edge_index`.
            protocol: What happens to them.
        """
        outputs = [output for _, _, output in self._outputs(targets, owner, sets, protocol)]
        logits = self._call.logits
        return torch.cat([logits[:0], *(output.to(logits.dtype) for output in outputs)])

    def _outputs(
        self, targets: Tensor, owner: Tensor, sets: Rows, protocol: Protocol
    ) -> Iterator[tuple[int, int, Tensor]]:
        """As `reduce_sets`, for consecutive sets `begin` to `end` that fit into memory together."""
        with eval_mode(self.model), reducing(self.model, protocol) as run:
            for begin, end, subgraphs in self._subgraphs(targets):
                cost = self._cost(subgraphs)
                self._check(run, subgraphs, cost, targets[begin:end])
                first, last = torch.searchsorted(owner, owner.new_tensor([begin, end])).tolist()
                part = owner[first:last] - begin
                for low, high in chunk_bounds(cost[part], self.memory):
                    rows = torch.arange(first + low, first + high, device=owner.device)
                    where, place = expand(sets.ptr, rows)
                    copies = Copies(subgraphs, part[low:high], sets.items[place], where)
                    output = run(copies, self._inputs_on(copies))
                    found = self._rows_of(copies, targets[part[low:high] + begin])
                    yield first + low, first + high, output[found]

    def _subgraphs(self, targets: Tensor) -> Iterator[tuple[int, int, Subgraphs]]:
        """What the targets `begin` to `end` depend on, for consecutive chunks of targets."""
        graph = self.graph
        if self._call.batch is not None:
            nodes = group(self._call.batch, self._call.logits.shape[0])
            owner, place = expand(nodes.ptr, targets)
            yield 0, targets.numel(), Subgraphs.entering(graph, targets.numel(), owner, nodes.items[place], self._rows)
            return
        ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * self.attention.num_layers
        begin = 0
        for frontier in stream_frontiers(graph, Start.at_nodes(targets, torch.float32), ones, memory=self.memory):
            size = frontier.targets.numel()
            yield begin, begin + size, Subgraphs.entering(graph, size, frontier.owner, frontier.node, self._rows)
            begin += size

    def _cost(self, subgraphs: Subgraphs) -> Tensor:
        """Bytes that a copy of each part takes in a forward pass."""
        nodes, edges = (size.float() for size in subgraphs.sizes)
        return nodes * self._bytes_per_node + edges * self._bytes_per_edge

    def _inputs_on(self, copies: Copies) -> ModelInputs:
        """The arguments of the same call on copies; each copy is a graph of its own."""
        return self._call.on(
            copies.edge_index,
            lambda value: value[copies.node],
            lambda value: value[copies.edge],
            copies.copy,
            copies.part.numel(),
        )

    def _rows_of(self, copies: Copies, target: Tensor) -> Tensor:
        """Which row of the output on copies belongs to the target of each."""
        if self._call.batch is not None:
            return torch.arange(target.numel(), device=target.device)
        return copies.nodes_of_copies(target)

    def _check(self, run: CopyRun, subgraphs: Subgraphs, cost: Tensor, targets: Tensor) -> None:
        """Refuse models whose scores of a target change when it is computed from its subgraph, among other copies."""
        every = torch.arange(targets.numel(), device=targets.device)
        for low, high in chunk_bounds(cost, self.memory):
            # The last copy is a decoy without features: a model that mixes copies will show it.
            part = torch.cat([every[low:high], every[high - 1 : high]])
            copies = Copies(subgraphs, part)
            inputs = self._inputs_on(copies)
            inputs.x[copies.start[-1] :] = 0
            scores = run(copies, inputs)[self._rows_of(copies, targets[part])[:-1]]
            expected = self._call.logits[targets[part[:-1]]]
            finite = expected.isfinite()  # where it has diverged, nothing can be told
            difference = float((scores - expected).abs().where(finite, 0).max())
            scale = max(float(expected.abs().where(finite, 0).max()), 1.0)
            if not difference <= torch.finfo(scores.dtype).eps ** 0.5 * scale:
                raise UnsupportedModelError(
                    f"Expected {type(self.model).__name__} to compute the class scores of a target from its own graph, "
                    f"or from the nodes within {self.attention.num_layers} hops (one a call of an attention layer), "
                    f"but without the rest they differ by {difference:.2g}: it has other paths, such as batch "
                    "statistics or pooling over nodes."
                )


class CopyRun:
    """Runs a model on copies, with the edge of each copy reduced in every attention softmax."""

    def __init__(self, model: nn.Module, protocol: Protocol) -> None:
        self.model = model
        self.protocol = protocol
        self._copies: Copies | None = None
        self.edges = EdgeHook()

    def __call__(self, copies: Copies, inputs: ModelInputs) -> Tensor:
        """The model's output on copies."""
        self._copies = copies
        output: Tensor = inputs.call(self.model)
        return output

    def reduce_softmax(self, conv: MessagePassing, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """Hook of the softmax, see `hook_softmax`."""
        edges = self.edges.scored(conv, scores.shape[0])
        assert self._copies is not None
        reduced = None if edges is None else self._copies.reduced_in(edges)
        if reduced is None:
            raise UnsupportedModelError(
                f"Expected {type(conv).__name__} to apply its softmax to one score per edge of the graph it is given, "
                f"but it scored others: the protocol `{self.protocol}` is not defined there."
            )
        return reduced_softmax(self.protocol, scores, reduced, softmax)


@contextmanager
def reducing(model: nn.Module, protocol: Protocol) -> Iterator[CopyRun]:
    """While open, the returned run reduces edges in `model`; hooks are gone afterwards."""
    run = CopyRun(model, protocol)
    with ExitStack() as stack:
        convs = stack.enter_context(hook_softmax(model, run.reduce_softmax))
        stack.enter_context(hook_edges(convs, run.edges))
        yield run


def _width(conv: MessagePassing) -> int:
    """Numbers that a convolution keeps per node, all heads together."""
    return int(getattr(conv, "heads", 1)) * int(getattr(conv, "out_channels", 1))
