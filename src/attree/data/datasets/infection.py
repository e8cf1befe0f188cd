"""Infection and HeteroInfection: random graphs in which one path explains the label of each target."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from attree.data.checks import Counts, HeteroCounts
from attree.data.datasets.third_party import Layout, load_authors
from attree.data.ground_truth import GroundTruth
from attree.data.node_data import HeteroDataModule, NodeDataModule, offsets, stated_depth
from attree.data.splits import check_split_arguments, paper_masks, random_fraction
from attree.defaults import MAX_LAYERS, MAX_SIZE
from attree.errors import expect, expect_bool, expect_int, expect_number
from attree.tensors.arrays import check_edge_index, pointers

LAYOUT: Layout = {"edge_index": (np.int64, 2), "infected": (np.bool_, 1)}


class Infection(NodeDataModule):
    """The Infection benchmark of "When Comparing to Ground Truth is Wrong" (KDD 2021), with per-target truth.

    A directed Erdos-Renyi graph in which some nodes are infected. Features are one-hot [infected, normal]. The label
    of an infected node is 0. The label of any other node is its distance from the nearest infected node along the
    edges, or `num_layers` + 1 if that is farther than the network can see. Targets are the nodes with exactly one
    shortest path of length 1 .. `num_layers` from an infected node; the edges of that path are the true edges. Half of
    the nodes are for training, the others for testing. The validation nodes are a sample of the test nodes, for
    monitoring only (see `paper_masks`): selecting on them leaks test labels.

    Args:
        num_nodes: Number of nodes N.
        edge_probability: Probability of each of the N (N - 1) directed edges. The default gives a mean degree
            of 2; divide it by k when you multiply `num_nodes` by k.
        num_layers: Depth L of the networks that the labels are meant for; a network of another depth is refused.
        num_infected: Number of infected nodes. By default 5 % of the nodes for one or two layers and 2 % for more: the
            paper's 250 and 100 of 5,000.
        seed: Seed of the graph and of the split.
        source: `generated`, or `authors` for the graph of the paper's authors (2 or 3 layers). With `authors`, the
            seed draws only the split.
        num_val: Number of test nodes to use as validation nodes, for monitoring.
        root: Data folder (default: `$ATTREE_DATA`, or `data`); the authors' files are
            `<root>/gatt_paper/infection_<L>hop.npz`.
        any_depth: Accept networks of other depths.
        **sampling: Settings of neighbour sampling in training: see `NodeDataModule`.
    """

    name = "Infection"

    def __init__(
        self,
        num_nodes: int = 5000,
        edge_probability: float = 0.0004,
        num_layers: int = 3,
        num_infected: int | None = None,
        seed: int = 0,
        source: Literal["generated", "authors"] = "generated",
        num_val: int = 500,
        root: str | None = None,
        any_depth: bool = False,
        **sampling: Any,
    ) -> None:
        super().__init__(**sampling)
        expect_int(num_nodes, "num_nodes", 2, MAX_SIZE)
        expect_number(edge_probability, "edge_probability", above=0, at_most=1)
        expect_int(num_layers, "num_layers", 1, MAX_LAYERS)
        if num_infected is None:
            num_infected = max(1, round((0.05 if num_layers <= 2 else 0.02) * num_nodes))
        expect_int(num_infected, "num_infected", 1, num_nodes - 1)
        expect_bool(any_depth, "any_depth")
        expect(source in ("generated", "authors"), "source", "`generated` or `authors`", source)
        check_split_arguments(seed, num_val)
        if source == "authors":
            expect(num_layers in (2, 3), "num_layers", "2 or 3 with `source: authors`", num_layers)
            fixed = (num_nodes, edge_probability, num_infected)
            authors = (5000, 0.0004, {2: 250, 3: 100}[num_layers])
            expect(
                fixed == authors,
                "num_nodes, edge_probability, num_infected",
                f"{authors} (or left out) with `source: authors`",
                fixed,
            )
        self.num_layers = num_layers
        self.any_depth = any_depth
        self.num_infected = num_infected
        hops = (f"{hop} hop{'s' if hop > 1 else ''}" for hop in range(1, num_layers + 1))
        self.class_names = ("infected", *hops, "farther")
        self.counts = Counts(num_nodes, 10086 if source == "authors" else None, 2, num_layers + 2)

    def check_network(self, module: nn.Module) -> None:
        """Raise if a network is known to have another depth than `num_layers`."""
        super().check_network(module)
        layers = stated_depth(module)
        expect(
            self.any_depth or layers in (None, self.num_layers),
            "num_layers",
            f"that of the network, {layers}, which its labels are meant for, unless `any_depth` is true",
            self.num_layers,
        )

    def load(self) -> tuple[Data, GroundTruth | None]:
        """Generate the graph or read the authors' graph, and derive labels and paths from it."""
        graph_rng, split_rng = np.random.default_rng(self.hparams["seed"]).spawn(2)
        if self.hparams["source"] == "authors":
            arrays = load_authors(self.root, f"infection_{self.num_layers}hop.npz", LAYOUT, _check)
            edge_index, infected = arrays["edge_index"], arrays["infected"]
        else:
            size = self.hparams["num_nodes"]
            edge_index = directed_erdos_renyi(size, self.hparams["edge_probability"], graph_rng)
            infected = torch.zeros(size, dtype=torch.bool)
            infected[torch.from_numpy(graph_rng.permutation(size)[: self.num_infected])] = True
        y, truth = infection_paths(edge_index, infected, self.num_layers)
        x = torch.stack([infected, ~infected], dim=1).float()
        graph = Data(x=x, edge_index=edge_index, y=y)
        paper_masks(graph, random_fraction(y.numel(), 0.5, split_rng), self.hparams["num_val"], split_rng)
        return graph, truth


def _check(arrays: dict[str, Tensor]) -> None:
    """Raise unless the authors' edges are between the authors' nodes."""
    check_edge_index(arrays["edge_index"], arrays["infected"].numel())


def directed_erdos_renyi(num_nodes: int, edge_probability: float, rng: np.random.Generator) -> Tensor:
    """Draw a directed Erdos-Renyi graph G(n, p) without self-loops in time and memory linear in its edges.

    The number of edges of G(n, p) is binomial. Given that number, the edges are a uniform sample of distinct pairs. So
    both are drawn directly.

    Returns:
        `edge_index` of shape [2, E], sorted by source, then destination.
    """
    num_pairs = num_nodes * (num_nodes - 1)
    num_edges = rng.binomial(num_pairs, edge_probability)
    links = np.sort(rng.choice(num_pairs, size=num_edges, replace=False, shuffle=False))
    source, destination = np.divmod(links, num_nodes - 1)
    destination += destination >= source
    return torch.from_numpy(np.stack([source, destination]).astype(np.int64))


def infection_paths(edge_index: Tensor, infected: Tensor, max_distance: int) -> tuple[Tensor, GroundTruth]:
    """Return each node's distance from the nearest infected node, and the unique shortest paths as ground truth.

    A breadth-first search starts at all infected nodes at once, follows the edges and counts shortest paths:

        count(v) = sum of count(u) over edges u -> v with distance(u) = distance(v) - 1,  count(infected) = 1

    A node is a target if its distance is 1 .. `max_distance` and its count is 1, over all infected nodes together. Its
    true edges are those of that path, from the infected node to the target.

    Args:
        edge_index: Directed edges without duplicates, shape [2, E].
        infected: Boolean mask, shape [N].
        max_distance: Longest path considered; nodes farther away have distance `max_distance` + 1.

    Returns:
        Distances of shape [N] (0 for infected nodes) and the ground truth, targets ascending.

    >>> chain = torch.tensor([[0, 1, 2], [1, 2, 3]])
    >>> distance, truth = infection_paths(chain, torch.tensor([True, False, False, False]), max_distance=2)
    >>> distance.tolist(), truth.targets.tolist(), truth.edges_of(2).tolist()
    ([0, 1, 2, 3], [1, 2], [[0, 1], [1, 2]])
    """
    source, destination = edge_index
    far = max_distance + 1
    distance = torch.full_like(infected, far, dtype=torch.long).masked_fill_(infected, 0)
    count = infected.long()
    parent = torch.full_like(distance, -1)
    for step in range(1, far):
        onward = (distance[source] == step - 1) & (distance[destination] == far)
        tail, head = source[onward], destination[onward]
        # Only "one" and "more than one" matter; clamping keeps deep searches from overflowing.
        count.index_add_(0, head, count[tail]).clamp_(max=2)
        distance[head] = step
        parent[head] = tail

    targets = ((count == 1) & (distance > 0)).nonzero().view(-1)
    length = distance[targets]
    ptr = pointers(length)
    edges = edge_index.new_empty(2, int(ptr[-1]))
    node, slot = targets, ptr[1:] - 1
    while node.numel():
        edges[0, slot], edges[1, slot] = parent[node], node
        on_path = distance[node] > 1
        node, slot = parent[node[on_path]], slot[on_path] - 1
    return distance, GroundTruth(targets, edges, ptr)


CARRIERS = ("mosquito", "fly")
"""The kinds of carriers: mosquitoes infect, flies do not."""


class HeteroInfection(HeteroDataModule):
    """Heterogeneous graph of people, mosquitoes and flies in which only mosquitoes carry an infection.

    Some people are infected. A carrier feeds on random people and bites random people; flies do so exactly as
    mosquitoes do. The label of a person is 0 if infected, 1 if bitten by a mosquito that has fed on an infected person,
    and 2 otherwise. Targets are the people of label 1 with exactly one path infected person -> mosquito -> target; its
    two edges are the true edges. A method that ignores relations sees the same paths through flies. Features of people
    are one-hot [infected, healthy]; all carriers have the same feature. Half of the people are for training, the
    others for testing. The validation nodes are a sample of the test nodes, for monitoring only (see `paper_masks`).

    Args:
        num_people: Number of people.
        num_mosquitoes: Number of mosquitoes.
        num_flies: Number of flies.
        meals: Mean number of people that a carrier feeds on, and mean number that it bites.
        infected: Share of the people who are infected.
        seed: Seed of the graph and of the split.
        num_val: Number of test nodes to use as validation nodes, for monitoring.
    """

    name = "HeteroInfection"
    class_names = ("infected", "bitten by a carrier", "safe")

    def __init__(
        self,
        num_people: int = 3000,
        num_mosquitoes: int = 2000,
        num_flies: int = 2500,
        meals: float = 1.2,
        infected: float = 0.25,
        seed: int = 0,
        num_val: int = 500,
    ) -> None:
        super().__init__()
        for name, size in (("num_people", num_people), ("num_mosquitoes", num_mosquitoes), ("num_flies", num_flies)):
            expect_int(size, name, 2, MAX_SIZE)
        expect_number(meals, "meals", above=0, at_most=num_people)
        expect_number(infected, "infected", above=0, below=1)
        check_split_arguments(seed, num_val)
        relations = [relation for kind in CARRIERS for relation in _relations(kind)]
        self.counts = HeteroCounts(
            nodes={"person": num_people, "mosquito": num_mosquitoes, "fly": num_flies},
            edges=dict.fromkeys(relations),
            features={"person": 2, "mosquito": 1, "fly": 1},
            classes=3,
            node_type="person",
        )

    def load(self) -> tuple[HeteroData, GroundTruth | None]:
        """Draw the meals and the bites, and derive labels and paths from them."""
        graph_rng, split_rng = np.random.default_rng(self.hparams["seed"]).spawn(2)
        people, meals = self.counts.nodes["person"], self.hparams["meals"]
        infected = torch.from_numpy(graph_rng.random(people) < self.hparams["infected"])
        graph = HeteroData()
        graph["person"].x = torch.stack([infected, ~infected], dim=1).float()
        for kind in CARRIERS:
            size = self.counts.nodes[kind]
            feeds, bites = _relations(kind)
            graph[kind].x = torch.ones(size, 1)
            graph[feeds].edge_index = _random_pairs(people, size, meals / people, graph_rng)
            graph[bites].edge_index = _random_pairs(people, size, meals / people, graph_rng).flip(0)
        y, truth = _infections(graph, infected)
        person = graph["person"]
        person.y = y
        paper_masks(person, random_fraction(people, 0.5, split_rng), self.hparams["num_val"], split_rng)
        return graph, truth


def _relations(kind: str) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    """Return the two relations of a kind of carrier: person feeds carrier, carrier bites person."""
    return ("person", "feeds", kind), (kind, "bites", "person")


def _random_pairs(rows: int, columns: int, probability: float, rng: np.random.Generator) -> Tensor:
    """Draw each pair (row, column) with a probability; return the pairs in ascending order, [2, E]."""
    total = rows * columns
    pairs = np.sort(rng.choice(total, size=rng.binomial(total, min(probability, 1.0)), replace=False, shuffle=False))
    return torch.from_numpy(np.stack(np.divmod(pairs, columns)).astype(np.int64))


def _infections(graph: HeteroData, infected: Tensor) -> tuple[Tensor, GroundTruth]:
    """Return the labels of all people, and the ground truth of those with exactly one path of infection.

    The number of paths to a person is the sum, over the mosquitoes that bit the person, of the number of infected
    people that the mosquito has fed on.
    """
    feeds, bites = (graph[relation].edge_index for relation in _relations("mosquito"))
    people, mosquitoes = infected.numel(), graph["mosquito"].num_nodes
    is_infected = infected[feeds[0]]
    sources = torch.zeros(mosquitoes, dtype=torch.long).index_add_(
        0, feeds[1][is_infected], torch.ones_like(feeds[1][is_infected])
    )
    paths = torch.zeros(people, dtype=torch.long).index_add_(0, bites[1], sources[bites[0]])
    y = torch.where(infected, 0, torch.where(paths > 0, 1, 2))
    # A mosquito may have fed on the same person that it bit. Such a person is infected, so it is not a target.
    source_of = torch.zeros(mosquitoes, dtype=torch.long).index_put_((feeds[1][is_infected],), feeds[0][is_infected])
    last = (paths[bites[1]] == 1) & (sources[bites[0]] == 1) & ~infected[bites[1]]
    carrier, target = bites[:, last]
    order = target.argsort()
    carrier, target = carrier[order], target[order]
    begin = offsets(graph)
    union = carrier + begin["mosquito"]
    edges = torch.stack([torch.stack([source_of[carrier], union]), torch.stack([union, target])], dim=2)
    return y, GroundTruth(target, edges.view(2, -1), torch.arange(0, 2 * target.numel() + 1, 2))
