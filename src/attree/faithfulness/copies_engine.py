"""Attention reduction by forward passes over copies of the targets' subgraphs, for any PyG attention model.

Each pair gets its own copy of its target's subgraph, and one forward pass runs over many copies at once. The pair's
edge is deleted from its copy, or reduced in every attention softmax of the pass, as the protocol says. The model's
output for a target must depend only on the target's subgraph; this is checked.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import MultiheadAttention
from torch_geometric.nn import MessagePassing

from attree.attention.global_attention_calls import global_modules
from attree.attention.marked_tensors import tensors_in
from attree.attention.stand_ins import eval_mode
from attree.attribution.pairs import Pairs
from attree.attribution.subgraphs import neighbourhoods
from attree.faithfulness.effect_measures import Progress, ReductionEngine, ReductionPass, ReductionWriter
from attree.faithfulness.protocol import ReducedRun, ReductionProtocol, reduced_run
from attree.faithfulness.shared_rows import SharedRows, sharing
from attree.faithfulness.wide_floats import ExactRun, WideSubject
from attree.subject import Part, Subject
from attree.subject.arguments import Kind
from attree.subject.facts import facts_of
from attree.subject.model_call import NotLocalError, check_local, target_outputs
from attree.tensors.arrays import Rows, expand
from attree.tensors.memory import REDUCTION_MEMORY, chunk_bounds
from attree.tensors.precision import difference, exact_dtype, resolution

READS_PADDING = (
    "on copies its outputs differ: it attends over all nodes by sums that may count the padding of a batch (PyG's "
    "linear attentions do), so that its output for a graph depends on the sizes of the others; a graph that is passed "
    "alone, or with graphs of its own size, has none"
)
"""Why graphs of different sizes cannot be copied out of their batch."""

OTHER_NODES = "not all of its layers run on the nodes and edges of the data, so any edge may reach any output"
"""Why no neighbourhood suffices for the nodes of some models, such as those that pool nodes between layers."""

BY_PLACE = "its outputs on copies depend on their order, as where nodes of equal scores are dropped or merged by place"
"""Why copies of some models that pool nodes between layers differ from the whole batch."""

WIDEST = 2
"""Number of hops by which copies may be wider than the network is deep."""


class CopiesReducer(ReductionEngine):
    """Reduces edges by forward passes over copies of the targets' subgraphs.

    Arguments with one row per edge, node or graph are copied with them; all other arguments are passed on unchanged.

    Args:
        subject: The subject to explain.
        memory: Bytes of working memory for one batch of copies; a single copy is never split.

    Raises:
        NotLocalError: If the model cannot be run on copies; the message says why.
    """

    way = "forward passes over copies of subgraphs"

    def __init__(self, subject: Subject, memory: int = REDUCTION_MEMORY) -> None:
        super().__init__(subject, memory)
        outputs, call = subject.outputs, subject.call
        if outputs.level != "graph" and not subject.layers.runs_on_data:
            raise NotLocalError(call.name, OTHER_NODES)
        if outputs.nodes is not None:
            raise NotLocalError(call.name, "it returns outputs of chosen nodes only, which a copy may lack")
        ids = len(call.of_kind(Kind.IDS))
        if outputs.level == "edge" and ids == 0:
            raise NotLocalError(call.name, "it returns one output per edge that it runs on")
        if ids > int(outputs.level == "edge"):
            raise NotLocalError(call.name, "an argument holds node ids, which change in a copy")
        if outputs.level == "graph" and call.batch is None:
            raise NotLocalError(call.name, "no argument separates its graphs, so copies would be taken for one graph")

        self._wide = WideSubject(subject)

    def record(self) -> CopiesPass:
        """Run the model with its current weights."""
        return CopiesPass(self._wide.run(), self.memory, facts_of(self.subject.call))


class CopiesPass(ReductionPass):
    """One forward pass, and further ones over copies of subgraphs with edges reduced.

    If outputs on copies of the neighbourhoods differ from those on the whole graph, because nodes at their boundary
    lack their own entering edges, the copies become wider by a hop or two. Then all pairs are measured: an edge that
    carries no flow to a target may change what its nodes read of their edges.

    Args:
        run: The subject in the type to run it in, with the current weights.
        memory: Bytes of working memory for one batch of copies.
        facts: What is known of calls of the structure of the user's call.
    """

    def __init__(self, run: ExactRun, memory: int, facts: dict[Hashable, Any]) -> None:
        super().__init__(run.subject, run.attention, run.subject.output.to(exact_dtype(run.subject.device)))
        self.resolution = resolution(run.dtype)
        self._context = run.context
        self._memory, self._facts = memory, facts
        self._wider = 0
        self._checked: set[int] = set()
        convs = (module for module in self.subject.model.modules() if isinstance(module, MessagePassing))
        hidden = max(map(_width, convs), default=1)
        itemsize = self.subject.output.element_size()
        arguments = self.subject.call.of_kind(Kind.NODE) or [self.subject.output]
        features = max(row[:1].numel() * row.element_size() for value in arguments for row in tensors_in(value))
        self._bytes_per_node = features + 6 * hidden * itemsize
        self._bytes_per_edge = 6 * hidden * itemsize + 64
        self._global_modules = list(global_modules(self.subject.model).values())
        heads = [int(getattr(module, "num_heads", 1)) for module in self._global_modules]
        self._bytes_per_pair = 4 * max(heads, default=0) * itemsize

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""
        return self.attention.num_layers

    @property
    def reach(self) -> int:
        """Number of hops whose edges can affect a target: those of the layers, and the further ones of wider copies."""
        return self.num_layers + self._wider

    @torch.no_grad()
    def measure(self, pairs: Pairs, protocol: ReductionProtocol, writer: ReductionWriter, progress: Progress) -> None:
        """Reduce every pair's edge in a copy of its own; pairs that cannot have an effect keep 0."""
        self.check(pairs.targets)
        # Where messages come from edges in other ways than along them, edges without a flow may have an effect, too.
        only_flows = not self._wider and self.subject.graph.messages is None
        places = pairs.flow.nonzero().view(-1) if only_flows else torch.arange(len(pairs), device=pairs.edges.device)
        alone = Rows(torch.arange(places.numel() + 1, device=places.device), pairs.edges[places])
        done, outputs = 0, [self.output[:0]]
        for begin, end, output in self._outputs(pairs.targets, pairs.owner[places], alone, protocol):
            writer.fill(places[begin:end], output)
            if not self.subject.layers.runs_on_data:
                outputs.append(output.to(self.output.dtype))
            done += end - begin
            progress(done, places.numel())
        if not self.subject.layers.runs_on_data:
            self._check_order(pairs.targets, pairs.owner[places], pairs.edges[places], torch.cat(outputs), protocol)

    def _check_order(
        self, targets: Tensor, owner: Tensor, edges: Tensor, outputs: Tensor, protocol: ReductionProtocol
    ) -> None:
        """Raise unless copies in the reverse order give the same outputs.

        A model that drops or merges nodes may sort equal scores by the place that a node has among all copies.
        """
        alone = Rows(torch.arange(owner.numel() + 1, device=owner.device), edges.flip(0))
        expected = outputs.flip(0)
        reverse = self._outputs(targets.flip(0), (targets.numel() - 1 - owner).flip(0), alone, protocol)
        for begin, end, output in reverse:
            if difference(output, expected[begin:end], output.dtype) is not None:
                raise NotLocalError(self.subject.call.name, BY_PLACE)

    @torch.no_grad()
    def reduce_sets(self, targets: Tensor, owner: Tensor, sets: Rows, protocol: ReductionProtocol) -> Tensor:
        """Return the outputs of targets when all edges of a set are reduced at once, one row per set."""
        self.check(targets)
        outputs = [output for _, _, output in self._outputs(targets, owner, sets, protocol)]
        return torch.cat([self.output[:0], *(output.to(self.output.dtype) for output in outputs)])

    def check(self, targets: Tensor) -> None:
        """Raise unless copies of the targets' subgraphs give the same outputs as the whole graph; each is checked once.

        Raises:
            NotLocalError: They do not; the message says why.
        """
        if self._checked.issuperset(targets.tolist()):
            return
        first: NotLocalError | None = None
        for wider in range(self._wider, WIDEST + 1):
            self._wider = wider
            try:
                self._check(targets)
                return
            except NotLocalError as error:
                first = error if first is None else first
        assert first is not None
        raise first

    def _outputs(
        self, targets: Tensor, owner: Tensor, sets: Rows, protocol: ReductionProtocol
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Yield the outputs of `reduce_sets` for consecutive sets `begin` to `end` that fit into memory together."""
        with self._context(), reduced_run(self.subject.model, protocol) as run:
            for begin, end, part in self._parts(targets):
                first, last = torch.searchsorted(owner, owner.new_tensor([begin, end])).tolist()
                which = owner[first:last] - begin
                outputs = partial(self._on_copies, part, which, Rows(sets.ptr[first : last + 1], sets.items), run)
                with sharing(self.subject.call, part, run, self._facts, which.numel(), outputs) as shared:
                    for low, high in chunk_bounds(self._cost(part)[which], self._memory):
                        numbers = torch.arange(low, high, device=which.device)
                        yield first + low, first + high, outputs(numbers, shared)

    def _on_copies(
        self, part: Part, which: Tensor, sets: Rows, run: ReducedRun, numbers: Tensor, shared: SharedRows | None
    ) -> Tensor:
        """Return the outputs of the targets of some sets, from one pass over a copy for each.

        Args:
            part: A part with one graph per target.
            which: The graph of each set.
            sets: The edges of each set.
            run: Reduces them.
            numbers: Which sets.
            shared: What copies share; None for nothing.
        """
        whole = self.subject.graph
        copy, place = expand(sets.ptr, numbers)
        copies = part.take(which[numbers], whole.types)
        call = self.subject.call.on(copies)
        graph = call.graph
        reduced = copies.looped_ids(whole, graph, copy, sets.items[place])
        if shared is not None:
            shared.take(which[numbers], run.columns(graph, reduced))
        return target_outputs(self.subject.call, copies, run(call, graph, reduced))

    @property
    def _reads_padding(self) -> bool:
        """Whether the model has linear attention over the graphs of a batch, which may count their padding."""
        batch = self.subject.call.batch
        sizes = torch.empty(0) if batch is None else batch.bincount()
        is_linear = any(not isinstance(module, MultiheadAttention) for module in self._global_modules)
        return is_linear and sizes.unique().numel() > 1

    def _parts(self, targets: Tensor) -> Iterator[tuple[int, int, Part]]:
        """Yield the subgraphs that the targets `begin` to `end` depend on, for consecutive chunks of targets."""
        per_edge = self._bytes_per_node + self._bytes_per_edge
        return neighbourhoods(self.subject, targets, per_edge, self._memory, wider=self._wider)

    def _cost(self, part: Part) -> Tensor:
        """Return the bytes that a copy of each subgraph of a part takes in a forward pass."""
        nodes, edges = (bounds.diff().float() for bounds in part.bounds)
        return nodes * self._bytes_per_node + edges * self._bytes_per_edge + nodes.square() * self._bytes_per_pair

    @torch.no_grad()
    def _check(self, targets: Tensor) -> None:
        """Raise if the output of a target changes when it is computed from a copy."""
        with self._context(), eval_mode(self.subject.model):
            for begin, end, part in self._parts(targets):
                expected = self.output[self.subject.rows(targets[begin:end])]
                try:
                    check_local(self.subject.call, part, expected)
                except NotLocalError:
                    if not self._reads_padding:
                        raise
                    raise NotLocalError(self.subject.call.name, READS_PADDING) from None
        self._checked.update(targets.tolist())


def _width(conv: MessagePassing) -> int:
    """Return the number of values that a convolution stores per node, over all heads."""
    return int(getattr(conv, "heads", 1)) * int(getattr(conv, "out_channels", 1))
