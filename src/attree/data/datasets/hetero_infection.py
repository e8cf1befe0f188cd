"""HeteroInfection: mosquitoes infect people, flies do not, and the path of each infection is known."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from attree.data.checks import HeteroCounts
from attree.data.ground_truth import GroundTruth
from attree.data.node_data import HeteroDataModule, offsets
from attree.data.splits import check_split_arguments, paper_masks, random_fraction
from attree.defaults import MAX_SIZE
from attree.errors import expect_int, expect_number

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
