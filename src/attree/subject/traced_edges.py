"""Find out by experiments which edge of the data each message of a model comes from.

1. The model runs without a random half of the edges, and without the other half. A step whose edges stay the same in
   both runs has edges of its own: nearest neighbours of features, an argument with a second set of edges.
2. The model runs on a graph in which every edge has ends of its own, which are copies of its nodes. A message between
   two copies then shows the edge that it comes from, however the model selects, sorts or reverses edges.
3. If features choose edges, too, only messages that are passed with any features come from edges.
4. A message that has the ends of an edge, but comes from none so far, gets this edge if runs without it agree.
5. What was found must predict the messages of the first two runs: a message is missing exactly without its edge.

Messages that come from two edges at once (a model that joins both directions of data that has both) belong to the edge
of their own direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attree.attention.bypass_and_locality import with_noise
from attree.attention.graph import Graph, edge_ids, plain
from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attention.message_edges import NO_EDGE, MessageEdges, MessageGraph, StepEdges, occurrence
from attree.attention.stand_ins import eval_mode
from attree.errors import UnsupportedModelError
from attree.subject.graph_part import Part
from attree.subject.model_call import ModelCall
from attree.tensors.arrays import find

MORE_RUNS = 8
"""Number of further runs without half of the edges, for messages whose owners must be guessed from their ends."""

NOISY_RUNS = 4
"""Number of runs with random features, for layers that choose some of their edges by features."""

WAY_OUT = "Compute them before the model is called, and pass them as `data.edge_index`."
"""How to explain a model whose edges could not be traced."""


def trace_owners(call: ModelCall, graph: Graph, error: UnsupportedModelError) -> MessageEdges:
    """Return the edges that the messages of a call come from.

    Args:
        call: The call of a model.
        graph: Its graph.
        error: What to raise if the call has nothing to trace.

    Raises:
        UnsupportedModelError: If they could not be found out.
    """
    if graph.types is not None:
        raise error
    lists = _edge_lists(call)
    other = {step: edges for step, edges in lists.items() if edges is None or edge_ids(graph, None, edges) is None}
    if not other or any(edges is None for edges in other.values()):
        raise error
    name, count = call.name, graph.original_edge_index.shape[1]
    if _mixes_nodes(call):
        raise _untraced(name, "it gives them features in which the rows are not those of the nodes")
    halves = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(graph.device).tensor_split(2)
    try:
        without = [_edge_lists(call.without_edges(half)) for half in halves]
    except Exception as reason:
        raise _untraced(name, f"it fails without some edges ({_one_line(reason)})") from reason
    if any(lists_of_half.keys() != lists.keys() for lists_of_half in without):
        raise _untraced(name, "it calls other layers without some edges")
    try:
        copies = _on_copies(call, graph)
    except Exception:
        copies = None
    runs = list(zip(halves, without, strict=True))
    more_runs: list[tuple[Tensor, dict[int, Any]]] = []
    steps = {}
    for step, edges in other.items():
        owners = _Owners.none(edges)
        if not all(_is_same(lists_of_run[step], edges) for _, lists_of_run in runs):
            if copies is not None and step in copies:
                of_copies = _owners_of_copies(graph, edges, copies[step])
                owners = of_copies or _owners_in_order(name, edges, copies[step], step, runs, count)
            if not _predict(owners, edges, step, runs, count):
                owners = _of_any_features(owners, edges, [lists_of_run.get(step) for lists_of_run in _with_noise(call)])
            if not _predict(owners, edges, step, runs, count):
                raise _untraced(name, "the edges of its layers depend on those of the data in no way that is known")
            for is_reversed in (False, True):
                guess = _owners_by_ends(graph, edges, owners, is_reversed)
                if guess is not None:
                    more_runs = more_runs or _more_runs(call, count)
                    owners = guess if _predict(guess, edges, step, [*runs, *more_runs], count) else owners
        adds_nodes = edges.numel() > 0 and int(edges.max()) >= graph.num_nodes
        if adds_nodes and not all(_keeps_others(owners, edges, lists_of_run.get(step)) for _, lists_of_run in runs):
            raise _untraced(name, "edges of the nodes that it adds depend on those of the data")
        steps[step] = StepEdges(edges, owners.owner)
    return MessageEdges(steps)


def with_messages(graph: Graph, messages: MessageEdges) -> Graph:
    """Return a graph with the edges that messages come from."""
    message_graph = MessageGraph(graph, messages)
    return graph.traced(messages, message_graph if message_graph.has_others else None)


def _untraced(name: str, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"Expected {name} to run its layers on edges that can be traced back to those of the data, but {reason}. "
        f"{WAY_OUT}"
    )


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


class _EdgeLists(Watcher):
    """Keeps the edges of every step; None for edges that are no list."""

    def __init__(self) -> None:
        self.lists: dict[int, Tensor | None] = {}

    def propagate(self, call: LayerCall, arguments: dict[str, Any]) -> None:
        edges = plain(call.edges)
        is_list = isinstance(edges, Tensor) and edges.layout == torch.strided and call.num_steps > 0
        self.lists[call.number] = edges.clone() if is_list else None


@torch.no_grad()
def _edge_lists(call: ModelCall) -> dict[int, Any]:
    """Return the edges of every step of a call."""
    watcher = _EdgeLists()
    with eval_mode(call.model), instrument(call.model, watcher) as instrumented:
        instrumented.run(call.run)
    return dict(watcher.lists)


@dataclass(frozen=True)
class _Copies:
    """The messages of one step that come from edges, in a run in which every edge has ends of its own.

    Attributes:
        ends: The ends of each message in the graph, [2, M].
        edge: The position of the edge that it comes from.
        is_reversed: Whether it runs against this edge.
    """

    ends: Tensor
    edge: Tensor
    is_reversed: Tensor


def _on_copies(call: ModelCall, graph: Graph) -> dict[int, _Copies]:
    """Run a call on a graph in which every edge has ends of its own."""
    edges, device = graph.original_edge_index, graph.device
    count, num_nodes = edges.shape[1], graph.num_nodes
    numbers = torch.arange(count, device=device)
    nodes = torch.arange(num_nodes, device=device)
    is_loop = edges[0] == edges[1]
    node = torch.cat([nodes, edges[0], edges[1]])
    edge_of = torch.cat([torch.full_like(nodes, NO_EDGE), numbers, numbers])
    is_start = torch.cat([torch.zeros_like(nodes, dtype=torch.bool), ~is_loop, torch.zeros_like(is_loop)])
    ends = torch.stack([num_nodes + numbers, torch.where(is_loop, num_nodes + numbers, num_nodes + count + numbers)])
    if call.batch is not None:  # nodes stay sorted by their graph
        order = node.argsort(stable=True)
        node, edge_of, is_start, ends = node[order], edge_of[order], is_start[order], order.argsort()[ends]
    lists = _edge_lists(call.on(Part(node, ends)))
    copies_of_steps = {}
    for step, of_step in lists.items():
        inside = of_step[:, (of_step < node.numel()).all(dim=0)]
        from_edge = (edge_of[inside[0]] == edge_of[inside[1]]) & (inside[0] != inside[1]) & (edge_of[inside[0]] >= 0)
        source, destination = inside[:, from_edge]
        copies_of_steps[step] = _Copies(node[inside[:, from_edge]], edge_of[source], is_start[destination])
    return copies_of_steps


@dataclass(frozen=True)
class _Owners:
    """The owner of each message of a step, and a second edge without which it is not missing either, [M]; or -1."""

    owner: Tensor
    second: Tensor

    @classmethod
    def none(cls, edges: Tensor) -> _Owners:
        """Return the owners of messages that come from no edge."""
        return cls(torch.full_like(edges[0], NO_EDGE), torch.full_like(edges[0], NO_EDGE))


def _owners_of_copies(graph: Graph, edges: Tensor, copies: _Copies) -> _Owners | None:
    """Return the owner of each message of a step from a run in which every edge has ends of its own.

    None if several messages have the same ends, and their order does not tell them apart.
    """
    size = int(max(graph.num_nodes - 1, int(edges.max()) if edges.numel() else 0)) + 1
    keys = edges[0] * size + edges[1]
    of_copies = copies.ends[0] * size + copies.ends[1]
    owner = torch.full_like(keys, NO_EDGE)
    second = owner.clone()
    proper = edges[0] != edges[1]
    places = (proper & torch.isin(keys, of_copies)).nonzero().view(-1)
    if torch.equal(keys[places], of_copies):  # in the same order, so that duplicates are told apart too
        owner[places] = copies.edge
        return _Owners(owner, second)
    order = copies.is_reversed.long().argsort(stable=True)
    order = order[of_copies[order].argsort(stable=True)]  # by ends; own direction first
    ascending = of_copies[order]
    rank = occurrence(ascending)
    first, (counts,) = ascending[rank == 0], ascending.unique_consecutive(return_counts=True)[1:]
    number, _ = find(first, keys[places])
    times = torch.zeros_like(first).index_add_(0, number, torch.ones_like(number))
    begin = counts.cumsum(0) - counts
    reversed_first = copies.is_reversed[order][begin]
    last = begin + counts - 1
    reversed_last = copies.is_reversed[order][last]
    is_clear = (counts == 1) | ((counts == 2) & ~reversed_first & reversed_last)
    if bool(((times > 0) & ~(is_clear & (times == 1))).any()):
        return None
    owner[places] = copies.edge[order][begin[number]]
    second[places] = torch.where(counts[number] == 2, copies.edge[order][last[number]], NO_EDGE)
    return _Owners(owner, second)


def _owners_in_order(
    name: str, edges: Tensor, copies: _Copies, step: int, runs: list[tuple[Tensor, dict[int, Any]]], count: int
) -> _Owners:
    """Return the owners if the messages that come from edges are in the order of the run on copies, among others.

    Of messages with the same ends, the first or the last ones may come from edges: runs without edges tell.
    """
    proper = edges[0] != edges[1]
    ends = list(zip(*edges.tolist(), strict=True))
    of_copies = list(zip(*copies.ends.tolist(), strict=True))
    for last in (False, True):
        places, num_left = [], len(of_copies)
        for place in reversed(range(len(ends))) if last else range(len(ends)):
            waiting = num_left - 1 if last else len(of_copies) - num_left
            if num_left and ends[place] == of_copies[waiting]:
                places.append(place)
                num_left -= 1
        owner = torch.full_like(edges[0], NO_EDGE)
        if num_left == 0:
            owner[torch.tensor(places[::-1] if last else places, dtype=torch.long)] = copies.edge
            is_right = True
            for deleted, lists in runs:
                is_deleted = torch.zeros(count + 1, dtype=torch.bool).index_fill(0, deleted.cpu(), True)
                without = lists.get(step)
                is_right &= _is_same(without, edges[:, proper & ~is_deleted.to(edges.device)[owner]])
            if is_right:
                return _Owners(owner, torch.full_like(owner, NO_EDGE))
    raise _untraced(
        name, "some of its messages have the same ends, and it does not say which edge each of them comes from"
    )


def _owners_by_ends(graph: Graph, edges: Tensor, owners: _Owners, is_reversed: bool) -> _Owners | None:
    """Return owners for messages without one that have the ends of an edge; None if there are no such messages.

    Models that choose edges by the numbers of their nodes, and models that do not run on copies, need such a guess.

    Args:
        graph: The graph.
        edges: The edges of the step.
        owners: The owners that are known.
        is_reversed: Look for edges against the direction of messages.
    """
    data_edges = graph.original_edge_index.flip(0) if is_reversed else graph.original_edge_index
    size = int(max(graph.num_nodes - 1, int(edges.max()) if edges.numel() else 0)) + 1
    keys, order = (data_edges[0] * size + data_edges[1]).sort()
    of_messages = edges[0] * size + edges[1]
    place, is_found = find(keys, of_messages)
    is_found &= (owners.owner < 0) & (edges[0] != edges[1])
    if not bool(is_found.any()):
        return None
    return _Owners(torch.where(is_found, order[place], owners.owner), owners.second)


def _more_runs(call: ModelCall, count: int) -> list[tuple[Tensor, dict[int, Any]]]:
    """Return runs without other random halves of the edges: the edges that are deleted, and those of every step."""
    device, runs = call.edge_index.device, []
    for seed in range(1, MORE_RUNS + 1):
        half = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[: count // 2].to(device)
        runs.append((half, _edge_lists(call.without_edges(half))))
    return runs


def _mixes_nodes(call: ModelCall) -> bool:
    """Whether the first layer reads features whose rows are not those of the nodes, as if these were numbered anew.

    Other features of some nodes then change rows of other nodes, and leave rows of these nodes as they are.
    """
    if not call.has_features or not call.x.is_floating_point():
        return False
    half = torch.randperm(call.num_nodes, generator=torch.Generator().manual_seed(0))[: call.num_nodes // 2]
    half = half.to(call.x.device)
    usual, noisy = (_first_features(of) for of in (call, call.with_features(with_noise(call.x, half, 0))))
    if usual is None or noisy is None or usual.shape != noisy.shape or usual.shape[0] < call.num_nodes:
        return False
    differs = (usual != noisy).reshape(usual.shape[0], -1).any(dim=1)[: call.num_nodes]
    is_noisy = torch.zeros_like(differs).index_fill_(0, half, True)
    return bool((differs & ~is_noisy).any()) and bool((is_noisy & ~differs).any())


class _FirstFeatures(Watcher):
    """Keeps what the first layer reads."""

    def __init__(self) -> None:
        self.features: Tensor | None = None

    def begin(self, call: LayerCall) -> None:
        if call.number == 0:
            features = call.features[0] if isinstance(call.features, tuple | list) else call.features
            self.features = features.clone() if isinstance(features, Tensor) and features.dim() else None


@torch.no_grad()
def _first_features(call: ModelCall) -> Tensor | None:
    """Return the features that the first layer of a call reads; None if they are not one tensor."""
    watcher = _FirstFeatures()
    with eval_mode(call.model), instrument(call.model, watcher) as instrumented:
        instrumented.run(call.run)
    return watcher.features


def _keeps_others(owners: _Owners, edges: Tensor, without: Any) -> bool:
    """Whether all messages without owners are also those of a run without some edges, self-loops apart."""
    if not isinstance(without, Tensor):
        return False
    size = int(max(edges.max(), without.max())) + 1 if without.numel() else int(edges.max()) + 1
    others = edges[:, (owners.owner < 0) & (edges[0] != edges[1])]
    return bool(torch.isin(others[0] * size + others[1], without[0] * size + without[1]).all())


def _is_same(edges: Any, others: Tensor) -> bool:
    """Whether two lists have the same edges in the same order, self-loops apart."""
    return isinstance(edges, Tensor) and torch.equal(*(of[:, of[0] != of[1]] for of in (edges, others)))


def _with_noise(call: ModelCall) -> list[dict[int, Any]]:
    """Return the edges of every step in runs with random features; none if the model has no features to replace."""
    if not call.has_features or not call.x.is_floating_point():
        return []
    every = torch.arange(call.num_nodes, device=call.x.device)
    return [_edge_lists(call.with_features(with_noise(call.x, every, seed))) for seed in range(NOISY_RUNS)]


def _of_any_features(owners: _Owners, edges: Tensor, lists: list[Any]) -> _Owners:
    """Return the owners of messages that are passed with any features; others come from features, so from no edge."""
    stays = torch.full_like(owners.owner, bool(lists), dtype=torch.bool)
    for other in lists:
        size = int(max(edges.max(), other.max())) + 1 if edges.numel() and other.numel() else 1
        stays &= torch.isin(edges[0] * size + edges[1], other[0] * size + other[1])
    return _Owners(*(torch.where(stays, of, NO_EDGE) for of in (owners.owner, owners.second)))


def _predict(owners: _Owners, edges: Tensor, step: int, runs: list[tuple[Tensor, dict[int, Any]]], count: int) -> bool:
    """Whether owners predict the messages of a step in runs without some edges."""
    return all(_predicts(owners, edges, without.get(step), deleted, count) for deleted, without in runs)


def _predicts(owners: _Owners, edges: Tensor, without: Any, deleted: Tensor, count: int) -> bool:
    """Whether the messages without some edges are those whose owners are left, among messages that have owners."""
    if not isinstance(without, Tensor):
        return False
    is_deleted = torch.zeros(count + 1, dtype=torch.bool, device=edges.device)
    is_deleted[deleted] = True
    size = int(max(edges.max() if edges.numel() else 0, without.max() if without.numel() else 0)) + 1
    keys, keys_without = (of[0] * size + of[1] for of in (edges, without))
    owned = torch.isin(keys, keys[owners.owner >= 0])
    none = owners.owner < 0
    stays = none | ~is_deleted[owners.owner] | ((owners.second >= 0) & ~is_deleted[owners.second])
    expected = keys[owned & stays].sort().values
    return torch.equal(expected, keys_without[torch.isin(keys_without, keys[owned])].sort().values)
