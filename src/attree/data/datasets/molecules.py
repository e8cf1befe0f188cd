"""Generated graphs that look like small molecules, with a label that rings, branches and atoms decide."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch.nn.functional import one_hot
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, to_undirected

from attree.data.checks import Counts
from attree.data.graph_data import GraphDataModule
from attree.defaults import MAX_SIZE
from attree.errors import expect_int

ATOMS = ("C", "N", "O", "F")
SHARES = (0.72, 0.12, 0.13, 0.03)
VALENCES = (4, 3, 2, 1)
"""The most bonds of an atom of each kind."""

OF_ATOMS = (0.35, -0.85, -0.75, 0.3)
OF_BRANCHES, OF_RINGS, OF_LARGE_RINGS = -0.3, 0.6, -1.5
LARGE = 7
"""The number of atoms from which a ring costs extra."""


class Molecules(GraphDataModule):
    """Random trees of atoms with rings, which stand in for drug-like molecules such as those of ZINC; nothing is read.

    A molecule has 9 to 24 atoms of four one-hot types, at most as many bonds at an atom as its valence, and up to three
    rings of 5, 6 or 8 atoms. Edges are bonds in both directions, without types. As in the penalised logP by which
    generators of molecules are compared, a score adds up parts: of atoms (C 0.35, N -0.85, O -0.75, F 0.3), of atoms
    with three bonds or more (-0.3), of rings (0.6), of rings of more than six atoms (-1.5 more). The label is whether
    the score is above the median. A molecule keeps its `score` and the sizes of its `rings`. There is no ground truth
    of edges: all atoms count, and a ring needs all of its bonds.

    Args:
        num_graphs: Number of molecules.
        val_fraction: Fraction of the graphs for validation.
        test_fraction: Fraction of the graphs for testing; the rest is for training.
        batch_size: Number of graphs in a step.
        seed: Seed of the molecules, of the split and of the order of training graphs.
    """

    name = "Molecules"
    class_names = ("low", "high")
    node_types = ATOMS

    def __init__(
        self,
        num_graphs: int = 1000,
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(val_fraction, test_fraction, batch_size, seed)
        expect_int(num_graphs, "num_graphs", 10, MAX_SIZE)
        self.counts = Counts(None, None, len(ATOMS), 2, graphs=num_graphs)

    def load(self) -> list[Data]:
        """Generate the molecules."""
        rng = np.random.default_rng(self.seed)
        graphs = [_molecule(rng) for _ in range(self.hparams["num_graphs"])]
        median = float(np.median([float(graph.score) for graph in graphs]))
        for graph in graphs:
            graph.y = (graph.score > median).long()
        return graphs


def _molecule(rng: np.random.Generator) -> Data:
    """Return one molecule with its score."""
    size = int(rng.integers(9, 25))
    free: list[int] = []
    atoms: list[int] = []
    bonds: list[tuple[int, int]] = []
    for atom in range(size):
        kind = 0 if atom == 0 else int(rng.choice(len(ATOMS), p=SHARES))
        atoms.append(kind)
        if atom:
            open_atoms = [other for other in range(atom) if free[other] > 0]
            if len(open_atoms) == 1 and sum(free) == 1:
                atoms[-1] = kind = 0  # a molecule that has one bond left goes on with carbon
            parent = open_atoms[int(rng.integers(len(open_atoms)))] if rng.random() < 0.5 else open_atoms[-1]
            bonds.append((parent, atom))
            free[parent] -= 1
        free.append(VALENCES[kind] - (atom > 0))
    rings = _close_rings(size, free, bonds, rng)
    ends = torch.tensor(bonds).t()
    degrees = torch.bincount(ends.flatten(), minlength=size)
    score = sum(OF_ATOMS[kind] for kind in atoms) + OF_BRANCHES * int((degrees >= 3).sum())
    score += sum(OF_RINGS + (OF_LARGE_RINGS if ring >= LARGE else 0.0) for ring in rings)
    edge_index = coalesce(to_undirected(ends))
    x = one_hot(torch.tensor(atoms), len(ATOMS)).float()
    return Data(x=x, edge_index=edge_index, score=torch.tensor([score]), rings=[rings])


def _close_rings(size: int, free: list[int], bonds: list[tuple[int, int]], rng: np.random.Generator) -> list[int]:
    """Close up to three rings of 5, 6 or 8 atoms that share no bond; return their sizes, and add their last bonds."""
    import networkx as nx

    tree = nx.Graph(bonds)
    ring_bonds: set[frozenset[int]] = set()
    rings = []
    for _ in range(int(rng.integers(4))):
        ring = int(rng.choice((5, 6, 8)))
        pairs = [
            (first, last, path)
            for first in range(size)
            for last, path in nx.single_source_shortest_path(tree, first, ring - 1).items()
            if first < last and len(path) == ring and free[first] > 0 and free[last] > 0
        ]
        pairs = [pair for pair in pairs if ring_bonds.isdisjoint(map(frozenset, pairwise(pair[2])))]
        if not pairs:
            continue
        first, last, path = pairs[int(rng.integers(len(pairs)))]
        ring_bonds.update(map(frozenset, pairwise(path)))
        bonds.append((first, last))
        free[first] -= 1
        free[last] -= 1
        rings.append(ring)
    return rings
