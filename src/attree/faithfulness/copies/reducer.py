"""Attention reduction in any PyG attention model, by batches of copies of the part that a target depends on.

Each pair gets its own copy of its target's subgraph, and one forward pass of the model runs over many copies at once.
In every attention softmax of the pass the edge of each copy is reduced. The model is taken as it is; it must only
compute a target's class scores from the target's own subgraph, which is checked.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention.capture import Attention
from attree.attention.provenance import tensors_in
from attree.attention.softmax_hook import attention_convs
from attree.attribution.flows import stream_frontiers
from attree.attribution.pairs import Pairs
from attree.errors import expect_memory
from attree.faithfulness.copies.subgraph_copies import Copies, Subgraphs
from attree.faithfulness.locality import NotLocalError, difference, loud_noise
from attree.faithfulness.protocol import PROTOCOLS, ReductionProtocol
from attree.faithfulness.reduced_run import ReducedRun, reduced_run
from attree.faithfulness.reduction import Progress, Reduction, ReductionWriter
from attree.subject import ModelCall, Part, Subject
from attree.subject.arguments import Kind
from attree.tensors.memory import REDUCTION_MEMORY, chunk_bounds
from attree.tensors.precision import exact_dtype
from attree.tensors.ragged import Rows, expand, group


class CopiesReducer:
    """Reduces edges by forward passes over copies of what targets depend on.

    Arguments with one row per edge, node or graph go with those of the copies; everything else is passed on as it is.

    Args:
        subject: What is explained.
        memory: Bytes of working memory for one batch of copies; one copy is never cut.

    Raises:
        NotLocalError: If the model cannot be run on copies; the message says why.
    """

    way = "forward passes over copies of subgraphs"

    def __init__(self, subject: Subject, memory: int = REDUCTION_MEMORY) -> None:
        expect_memory(memory)
        outputs, call = subject.outputs, subject.call
        if outputs.nodes is not None:
            raise NotLocalError(call.name, "its outputs are those of chosen nodes, which a copy may not have")
        ids = len(call.of_kind(Kind.IDS))
        if outputs.level == "edge" and ids == 0:
            raise NotLocalError(call.name, "its outputs are those of the edges that it runs on")
        if ids > int(outputs.level == "edge"):
            raise NotLocalError(call.name, "an argument holds ids of nodes, which are others in a copy")
        if outputs.level == "graph" and call.batch is None:
            raise NotLocalError(call.name, "no argument tells its graphs apart, so copies would run together")
        self.subject = subject
        self.memory = memory
        self.rows = group(subject.graph.original_edge_index[1], subject.graph.num_nodes)

    def record(self) -> CopiesPass:
        """Run the model with its weights of now."""
        return CopiesPass(self)


class CopiesPass:
    """One forward pass, ready to have edges reduced in copies of its parts.

    Args:
        reducer: What is explained, and the memory to do so.
    """

    def __init__(self, reducer: CopiesReducer) -> None:
        self._subject = subject = reducer.subject.fresh()
        self._rows = reducer.rows
        self._memory = reducer.memory
        self.attention: Attention = subject.attention
        # In float32, the logarithms in dNE would add noise that rank statistics rank.
        self._output = subject.output.to(exact_dtype(subject.device))
        self._queries = subject.outputs.ends
        hidden, itemsize = max(_width(conv) for conv in attention_convs(subject.model)), subject.output.element_size()
        given = subject.call.of_kind(Kind.NODE) or [subject.output]
        features = max(row[:1].numel() * row.element_size() for value in given for row in tensors_in(value))
        self._bytes_per_node = features + 6 * hidden * itemsize
        self._bytes_per_edge = 6 * hidden * itemsize + 64

    @torch.no_grad()
    def reduce(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        with_probability: bool = False,
        progress: Progress | None = None,
    ) -> Reduction:
        """Reduce every pair's edge, one at a time; pairs whose edge carries no flow change nothing."""
        pairs.check(self._subject.graph, self.attention.num_layers)
        writer = ReductionWriter(pairs, self._output, self._subject.head, with_probability)
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
    def reduce_sets(self, targets: Tensor, owner: Tensor, sets: Rows, protocol: ReductionProtocol) -> Tensor:
        """The outputs of targets when sets of edges are reduced, all edges of a set at once: a row each set.

        Args:
            targets: The targets.
            owner: For each set the position of its target in `targets`, ascending.
            sets: The edges of each set, as positions in `graph.edge_index`.
            protocol: What happens to them.
        """
        outputs = [output for _, _, output in self._outputs(targets, owner, sets, protocol)]
        return torch.cat([self._output[:0], *(output.to(self._output.dtype) for output in outputs)])

    def check(self, targets: Tensor) -> None:
        """Raise unless the model computes the outputs of some targets from copies of their parts.

        Raises:
            NotLocalError: It does not; the message says why.
        """
        with reduced_run(self._subject.model, PROTOCOLS["weight"]) as run:
            for begin, end, subgraphs in self._subgraphs(targets):
                self._check(run, subgraphs, self._cost(subgraphs), targets[begin:end])

    def _outputs(
        self, targets: Tensor, owner: Tensor, sets: Rows, protocol: ReductionProtocol
    ) -> Iterator[tuple[int, int, Tensor]]:
        """As `reduce_sets`, for consecutive sets `begin` to `end` that fit into memory together."""
        with reduced_run(self._subject.model, protocol) as run:
            for begin, end, subgraphs in self._subgraphs(targets):
                cost = self._cost(subgraphs)
                self._check(run, subgraphs, cost, targets[begin:end])
                first, last = torch.searchsorted(owner, owner.new_tensor([begin, end])).tolist()
                part = owner[first:last] - begin
                for low, high in chunk_bounds(cost[part], self._memory):
                    rows = torch.arange(first + low, first + high, device=owner.device)
                    where, place = expand(sets.ptr, rows)
                    copies = Copies(subgraphs, part[low:high], sets.items[place], where)
                    own = targets[part[low:high] + begin]
                    yield first + low, first + high, self._run(run, copies, own)

    def _run(self, run: ReducedRun, copies: Copies, targets: Tensor, seed: int | None = None) -> Tensor:
        """The outputs of the target of each copy; with a seed, noise is in the features of the first and the last."""
        part = self._part(copies, targets)
        call = self._subject.call.on(part)
        graph = call.graph
        if seed is not None:
            call = _with_decoys(call, part, seed)
        output = run(call.run, graph, copies.reduced_in(graph))
        if self._subject.level == "node":
            found = self._subject.call.rows_on(part, copies.nodes_of_copies(self._subject.nodes_of(targets)))
            kind = self._subject.node_type
            expected = part.node.numel() if kind is None or graph.types is None else len(graph.types.nodes(kind))
        else:
            found = torch.arange(targets.numel(), device=targets.device)
            expected = targets.numel()
        if not isinstance(output, Tensor) or output.shape != (expected, *self._output.shape[1:]):
            raise NotLocalError(self._subject.call.name, "on copies it returns other rows than those of the copies")
        return output[found]

    def _subgraphs(self, targets: Tensor) -> Iterator[tuple[int, int, Subgraphs]]:
        """What the targets `begin` to `end` depend on, for consecutive chunks of targets."""
        graph, batch = self._subject.graph, self._subject.outputs.batch
        if batch is not None:
            nodes = group(batch, self._output.shape[0])
            owner, place = expand(nodes.ptr, targets)
            yield 0, targets.numel(), Subgraphs.entering(graph, targets.numel(), owner, nodes.items[place], self._rows)
            return
        ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * self.attention.num_layers
        begin = 0
        roots = self._subject.roots(targets, torch.float32)
        for frontier in stream_frontiers(graph, roots, ones, memory=self._memory):
            size = frontier.targets.numel()
            yield begin, begin + size, Subgraphs.entering(graph, size, frontier.owner, frontier.node, self._rows)
            begin += size

    def _cost(self, subgraphs: Subgraphs) -> Tensor:
        """Bytes that a copy of each part takes in a forward pass."""
        nodes, edges = (size.float() for size in subgraphs.sizes)
        return nodes * self._bytes_per_node + edges * self._bytes_per_edge

    def _part(self, copies: Copies, targets: Tensor) -> Part:
        """The part that the model is called on; each copy is a graph of its own, with the rows that its graph has."""
        batch, ends = self._subject.call.batch, self._queries
        graph_of = None if batch is None else batch[copies.first_nodes]
        queries = None if ends is None else torch.stack([copies.nodes_of_copies(end[targets]) for end in ends])
        return copies.with_graphs(graph_of, queries)

    def _check(self, run: ReducedRun, subgraphs: Subgraphs, cost: Tensor, targets: Tensor) -> None:
        """Refuse models whose scores of a target change when it is computed from its subgraph, among other copies."""
        every = torch.arange(targets.numel(), device=targets.device)
        for low, high in chunk_bounds(cost, self._memory):
            # Decoys with loud features stand in front and behind: a model that mixes copies, or reads the first or the
            # last rows, will show it. The order is another than that of the targets.
            part = torch.cat([every[low : low + 1], every[low:high].flip(0), every[high - 1 : high]])
            scores = self._run(run, Copies(subgraphs, part), targets[part], seed=low)[1:-1]
            expected = self._output[self._subject.rows(targets[part[1:-1]])]
            found = difference(scores, expected, scores.dtype)
            if found is not None:
                raise NotLocalError(
                    self._subject.call.name,
                    f"without the rest they differ by {found:.2g}: it has paths beside attention, such as norms "
                    "or pooling over nodes, features computed from all edges, or code that depends on the position of "
                    "a node",
                )


def _with_decoys(call: ModelCall, part: Part, seed: int) -> ModelCall:
    """A call on copies with loud noise in the features of the first and the last copy."""
    assert part.graph is not None
    assert part.num_graphs is not None
    decoy = (part.graph == 0) | (part.graph == part.num_graphs - 1)
    features = call.features

    def noisy(rows: Tensor, own: Tensor) -> Tensor:
        rows = rows.clone()
        rows[own] = loud_noise(rows[own], rows, seed) if rows.is_floating_point() else 0
        return rows

    if features is None:
        return call
    if call.types is None:
        return call.with_features(noisy(features, decoy))
    nodes = {kind: call.types.nodes(kind) for kind in features}
    changed = {kind: noisy(rows, decoy[nodes[kind].start : nodes[kind].stop]) for kind, rows in features.items()}
    return call.changed(lambda _, value: changed if value is features else value)


def _width(conv: MessagePassing) -> int:
    """Numbers that a convolution keeps per node, all heads together."""
    return int(getattr(conv, "heads", 1)) * int(getattr(conv, "out_channels", 1))
