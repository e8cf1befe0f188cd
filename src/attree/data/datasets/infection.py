"""Infection: a directed random graph in which one path explains the label of each target."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from attree.data.checks import Counts
from attree.data.datasets.array_files import Layout, load_authors
from attree.data.ground_truth import GroundTruth
from attree.data.node_data import NodeDataModule, stated_depth
from attree.data.splits import check_split_arguments, paper_masks, random_fraction
from attree.defaults import MAX_LAYERS, MAX_SIZE
from attree.errors import expect, expect_bool, expect_int, expect_number
from attree.tensors.arrays import check_edge_index
from attree.tensors.ragged import pointers

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
