"""Subjects of a model on parts of a graph on disk: the exact neighbourhoods of some targets.

The output for a target depends on the nodes within L hops of it, for L layers. A network that also reads degrees (a
GCN) depends on the edges that enter these nodes, one hop more. Which of the two holds is found by an experiment: the
model runs on larger neighbourhoods of a few targets, and then on copies of the exact ones, between decoys. A network
that reads the whole graph (a norm over all nodes, global attention) gives other outputs there, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from attree.attention.capture import check_model
from attree.attention.eval_mode import eval_mode, score_tensor
from attree.attention.graph import Graph, Origin
from attree.attribution import AttributionMethod, FlowMethod
from attree.data.on_disk import OnDiskGraph, Room, Surroundings, TooLargeError, cut_out, joined_cuts
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.source import Reading, TargetLabels, explained_by_user
from attree.subject import Head, Part, Subject
from attree.subject.arguments import parameters
from attree.subject.part_check import NotLocalError, check_local
from attree.subject.roots import Targets, as_targets
from attree.subject.structure import model_structure

PROBES = 4
"""Number of targets of the experiment; as many others are beside them."""

CANDIDATES = 256
"""Number of nodes from which those with few edges around them are taken."""

EXPERIMENT_MEMORY = 2**26
"""Bytes that the experiment may take even if the budget is smaller."""

PROBE_EDGES = 2**14
"""A neighbourhood with more edges than this is no probe."""

_FACTS: WeakKeyDictionary[OnDiskGraph, WeakKeyDictionary[nn.Module, tuple[Any, int, int, Surroundings]]]
_FACTS = WeakKeyDictionary()
"""By graph and model: the structure of the model, its number of layers and of hops, and a small neighbourhood."""


class DiskSubjects:
    """Makes the subjects of a model on the neighbourhoods of targets of a graph on disk.

    Args:
        model: The model, on the device to run on.
        graph: The graph.
        call: Function that calls the model with a `Data`; None uses its forward.
        head: Meaning of the outputs: `mode`, `return_type` and `label`.

    Attributes:
        num_layers: Number of layers that the output depends on.
        hops: Number of hops that the output, and the effect of deleting an edge, depend on.
    """

    def __init__(self, model: nn.Module, graph: OnDiskGraph, *, call: Any = None, **head: Any) -> None:
        check_model(model)
        expect("x" in graph, "graph", "one with node features `x`", f"one with {', '.join(graph.attributes)}")
        self.model, self.graph, self._call, self._head = model, graph, call, head
        weights = [weight for weight in model.parameters() if weight.is_floating_point()]
        self._dtype = weights[0].dtype if weights else torch.float32
        self._device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
        self._takes_ids = call is None and any(parameter.name == "n_id" for parameter in parameters(model))
        self.room = self._room()
        self._proper_edges = graph.num_edges - len(graph.array("self_loops"))
        self._wide_room = replace(self.room, memory=max(graph.memory, EXPERIMENT_MEMORY))
        facts = _FACTS.setdefault(graph, WeakKeyDictionary())
        structure = model_structure(model), id(call)
        if model not in facts or facts[model][0] != structure:
            self.num_layers = self._subject_on(self._cut(self._near[:1], 1, closed=False)).num_layers
            self.hops = self._find_reach()
            probes = np.split(self._probes(self.hops), self._probes(self.hops).size)
            smallest = min((self._cut(node, self.hops, closed=False) for node in probes), key=_num_edges)
            facts[model] = structure, self.num_layers, self.hops, smallest
        _, self.num_layers, self.hops, self._elsewhere = facts[model]

    def targets(self, targets: Targets) -> Tensor:
        """Check the ids of targets, and return them as a tensor."""
        return as_targets(targets, self.graph.num_nodes, torch.device("cpu"))

    def hops_for(self, methods: Iterable[AttributionMethod]) -> int:
        """Return the number of hops that some methods read. Most read as far as the output does.

        `avgatt` also reads the attention of late layers at edges far from the target, which depends on nodes that are
        up to L hops farther away.
        """
        far = [2 * self.num_layers for method in methods if isinstance(method, FlowMethod) and _reads_beyond(method)]
        return max([self.num_layers, *far]) + self.hops - self.num_layers

    def around(self, targets: Tensor, hops: int | None = None) -> Surroundings:
        """Cut out the neighbourhood of some targets; raise a `TooLargeError` if it does not fit.

        A small neighbourhood elsewhere is always there, too: what a model does is found by experiments, and a target
        without edges shows nothing.
        """
        hops = self.hops if hops is None else hops
        # At L hops, the pairs of a target are also the edges between its outermost nodes.
        cut = self._cut(targets.unique().numpy(), hops, closed=hops == self.num_layers, room=self.room)
        return joined_cuts([cut, self._elsewhere])

    def data(self, cut: Surroundings) -> Data:
        """Read the attributes of nodes and edges, and return them as a graph on the model's device."""
        data = Data(edge_index=torch.from_numpy(cut.edge_index))
        for name, of in self.graph.attributes.items():
            values = self.graph.rows(name, cut.nodes if of == "node" else cut.edges, self._type_of(name))
            data[name] = values
        data.num_nodes = cut.nodes.size
        if self._takes_ids:
            data.n_id = torch.from_numpy(cut.nodes)
        if self.graph.class_names is not None:
            data.class_names = self.graph.class_names
        return data.to(self._device)

    def subject(self, cut: Surroundings) -> tuple[Subject, TargetLabels]:
        """Return the subject of the model on a neighbourhood, with the labels of its nodes. It knows the whole ids."""
        reading = Reading(self._call, "node", head=Head(**self._head))
        explained = explained_by_user(self.model, self.data(cut), "all", None, reading, None, 0)
        subject = explained.subject
        self._set_origin(subject.graph, cut)
        labels = TargetLabels() if explained.labels is None else explained.labels
        names = [str(node) for node in cut.nodes.tolist()] if labels.node_names is None else labels.node_names
        return subject, replace(labels, node_names=names, dataset=self.graph.name)

    def _subject_on(self, cut: Surroundings) -> Subject:
        return Subject.of_data(self.model, self.data(cut), call=self._call, level="node")

    def _set_origin(self, graph: Graph, cut: Surroundings) -> None:
        """Tell a graph which ids its nodes and edges have in the whole graph."""
        loops, nodes = self.graph.array("self_loops"), torch.from_numpy(cut.nodes)
        data_edges = torch.from_numpy(cut.edges - np.searchsorted(loops, cut.edges))
        proper = cut.edge_index[0] != cut.edge_index[1]
        edges = torch.cat([data_edges[torch.from_numpy(proper)], self._proper_edges + nodes])
        graph.origin = Origin(nodes.to(graph.device), edges.to(graph.device))

    def _type_of(self, name: str) -> torch.dtype | None:
        """Return the type in which the model reads an attribute: labels as they are, features in the model's type."""
        is_read = name != "y" and self.graph.array(name).dtype.kind == "f"
        return self._dtype if is_read else None

    def _cut(self, targets: np.ndarray, hops: int, *, closed: bool, room: Room | None = None) -> Surroundings:
        return cut_out(self.graph, targets, hops, closed=closed, room=self._wide_room if room is None else room)

    def _room(self) -> Room:
        """Return how much fits into the budget of the graph, by rough sizes of a pass of the exact engine.

        A node takes its attributes, its features in float64 twice, and eight rows of the widest layer in float64. An
        edge takes its ids, its attributes, and four messages of the widest layer in float64.
        """
        widest = max((weight.shape[0] for weight in self.model.parameters() if weight.dim() >= 2), default=0)
        graph, sizes = self.graph, {"node": 0.0, "edge": 0.0}
        for name, of in graph.attributes.items():
            array = graph.array(name)
            kind = self._type_of(name)
            width = math.prod(array.shape[1:])
            sizes[of] += width * (array.dtype.itemsize if kind is None else kind.itemsize + 16)
        return Room(graph.memory, 64 + sizes["node"] + 64 * widest, 160 + sizes["edge"] + 32 * widest)

    @cached_property
    def _near(self) -> np.ndarray:
        """Return some nodes that have edges around them, those with the fewest first."""
        count = self.graph.num_nodes
        expect(count > 0, "graph", "one with nodes", "one without")
        nodes = np.unique(np.linspace(0, count - 1, min(CANDIDATES, count)).round().astype(np.int64))
        degrees = self.graph.degrees(nodes)
        # A node without edges shows nothing of a model; three edges are as good as one, and more likely distinct.
        return nodes[np.lexsort((nodes, degrees == 0, np.where(degrees == 0, 2**62, np.maximum(degrees, 3))))]

    def _find_reach(self) -> int:
        """Return the number of hops that outputs depend on; raise if they depend on the whole graph."""
        reason = ""
        for hops in (self.num_layers, self.num_layers + 1):
            small = self._probes(hops + 1)
            try:
                self._check(self._cut(np.sort(small), hops + 1, closed=False), np.sort(small[:PROBES]), hops)
            except NotLocalError as error:
                reason = error.reason
            else:
                return hops
        name = type(self.model).__name__
        raise UnsupportedModelError(
            f"Expected {name} to depend on the neighbourhood of a node only, but {reason}. A graph on disk is never "
            "run as a whole: load it with `to_data()` if it fits into memory."
        )

    def _probes(self, hops: int) -> np.ndarray:
        """Return a few nodes whose neighbourhoods are small; if there are none, one with few edges."""
        room, probes = Room(PROBE_EDGES, per_edge=1.0), []
        for node in self._near.tolist():
            try:
                self._cut(np.array([node]), hops, closed=False, room=room)
            except TooLargeError:
                continue
            probes.append(node)
            if len(probes) == 2 * PROBES:
                break
        return np.array(probes or self._near[:1].tolist(), dtype=np.int64)

    def _check(self, larger: Surroundings, probes: np.ndarray, hops: int) -> None:
        """Raise a `NotLocalError` if the outputs of probes change when the model runs on so many hops alone."""
        subject = self._subject_on(larger)
        call, graph = subject.call, subject.graph
        targets = torch.from_numpy(np.searchsorted(larger.nodes, probes)).to(graph.device)
        inner = [Part.around(graph, target, hops - 1).node for target in targets.split(1)]
        owner = torch.cat([torch.full_like(nodes, number) for number, nodes in enumerate(inner)])
        part = Part.entering(graph, targets.numel(), owner, torch.cat(inner))
        positions = torch.arange(targets.numel(), device=graph.device)
        with eval_mode(call.model), torch.no_grad():
            expected = score_tensor(call.run())[targets]
            check_local(call, replace(part, target=part.find(positions, targets)), expected)


def _num_edges(cut: Surroundings) -> int:
    return cut.edges.size


def _reads_beyond(method: FlowMethod) -> bool:
    """Whether a method reads attention where the output does not depend on it."""
    return method.hops(2) > 2


def check_plain(**options: Any) -> None:
    """Raise if an option was given that a graph on disk does not have.

    Args:
        **options: The options by name: None, or what the user passed.
    """
    for name, value in options.items():
        fits = value is None or (name == "level" and value == "node")
        if not fits:
            raise ArgumentError(
                f"Expected no argument `{name}` for a graph on disk, whose targets are its nodes, but got {value!r}: "
                "load the graph with `to_data()` if it fits into memory."
            )


def check_untrained(methods: Mapping[str, AttributionMethod]) -> None:
    """Raise if a method is trained on a whole graph, which is never read from disk."""
    trained = [name for name, method in methods.items() if method.needs_training]
    if trained:
        raise ArgumentError(
            f"Expected argument `methods` to be methods that explain targets one by one for a graph on disk, but "
            f"got {', '.join(trained)}, which is trained on a whole graph."
        )
