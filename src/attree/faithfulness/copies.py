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
from attree.attribution.neighbourhoods import neighbourhoods
from attree.attribution.pairs import Pairs
from attree.errors import expect_memory
from attree.faithfulness.protocol import PROTOCOLS, ReductionProtocol
from attree.faithfulness.reduced_run import ReducedRun, reduced_run
from attree.faithfulness.reduction import Progress, Reduction, ReductionWriter
from attree.subject import Part, Subject
from attree.subject.arguments import Kind
from attree.subject.part_check import NotLocalError, check_local, target_outputs
from attree.tensors.limits import REDUCTION_MEMORY, chunk_bounds, exact_dtype
from attree.tensors.ragged import Rows, expand


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
            raise NotLocalError(call.name, "an argument holds node ids, which change in a copy")
        if outputs.level == "graph" and call.batch is None:
            raise NotLocalError(call.name, "no argument tells its graphs apart, so copies would run together")
        self.subject = subject
        self.memory = memory

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
        self._memory = reducer.memory
        self.attention: Attention = subject.attention
        # In float32, the logarithms in dNE would add noise that rank statistics rank.
        self._output = subject.output.to(exact_dtype(subject.device))
        self._checked: set[int] = set()
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
            for begin, end, part in self._parts(targets):
                self._check(run, part, targets[begin:end])

    def _outputs(
        self, targets: Tensor, owner: Tensor, sets: Rows, protocol: ReductionProtocol
    ) -> Iterator[tuple[int, int, Tensor]]:
        """As `reduce_sets`, for consecutive sets `begin` to `end` that fit into memory together."""
        whole, types = self._subject.graph, self._subject.graph.types
        with reduced_run(self._subject.model, protocol) as run:
            for begin, end, part in self._parts(targets):
                self._check(run, part, targets[begin:end])
                first, last = torch.searchsorted(owner, owner.new_tensor([begin, end])).tolist()
                which = owner[first:last] - begin
                for low, high in chunk_bounds(self._cost(part)[which], self._memory):
                    where, place = expand(sets.ptr, torch.arange(first + low, first + high, device=owner.device))
                    copies = part.take(which[low:high], types)
                    call = self._subject.call.on(copies)
                    graph = call.graph
                    reduced = copies.looped_ids(whole, graph, where, sets.items[place])
                    output = run(call.run, graph, reduced)
                    yield first + low, first + high, target_outputs(self._subject.call, copies, output)

    def _parts(self, targets: Tensor) -> Iterator[tuple[int, int, Part]]:
        """What the targets `begin` to `end` depend on, for consecutive chunks of targets."""
        per_edge = self._bytes_per_node + self._bytes_per_edge
        return neighbourhoods(self._subject, targets, per_edge, self._memory)

    def _cost(self, part: Part) -> Tensor:
        """Bytes that a copy of each graph of a part takes in a forward pass."""
        nodes, edges = (bounds.diff().float() for bounds in part.bounds)
        return nodes * self._bytes_per_node + edges * self._bytes_per_edge

    def _check(self, run: ReducedRun, part: Part, targets: Tensor) -> None:
        """Refuse models whose scores of a target change when it is computed from a copy; each target is tried once."""
        if self._checked.issuperset(targets.tolist()):
            return
        nothing = part.node[:0]
        expected = self._output[self._subject.rows(targets)]
        check_local(self._subject.call, part, expected, lambda call: run(call.run, call.graph, nothing))
        self._checked.update(targets.tolist())


def _width(conv: MessagePassing) -> int:
    """Numbers that a convolution keeps per node, all heads together."""
    return int(getattr(conv, "heads", 1)) * int(getattr(conv, "out_channels", 1))
