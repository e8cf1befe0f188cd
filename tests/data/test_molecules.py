"""Generated molecules: valences, rings and scores, recomputed with NetworkX from the graphs alone."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch_geometric.utils import to_networkx

from attree.data import Molecules
from attree.errors import ArgumentError

VALENCE = {"C": 4, "N": 3, "O": 2, "F": 1}
PART = {"C": 0.35, "N": -0.85, "O": -0.75, "F": 0.3}


def test_molecules_are_connected_and_keep_valences_and_rings() -> None:
    data = Molecules(num_graphs=60)
    assert len(data.graphs) == 60
    sizes = set()
    for graph in data.graphs:
        molecule = to_networkx(graph, to_undirected=True)
        atoms = [data.node_types[kind] for kind in graph.x.argmax(1).tolist()]
        assert 9 <= len(atoms) <= 24
        assert nx.is_connected(molecule)
        assert all(molecule.degree(node) <= VALENCE[atom] for node, atom in enumerate(atoms))
        (closed,) = graph.rings
        assert molecule.number_of_edges() - len(atoms) + 1 == len(closed)
        # Rings share no bond, so they are all simple cycles of the molecule's cycle space that are as short as listed.
        assert sorted(map(len, nx.minimum_cycle_basis(molecule))) == sorted(closed)
        sizes |= set(closed)
        score = sum(PART[atom] for atom in atoms) - 0.3 * sum(degree >= 3 for _, degree in molecule.degree())
        score += sum(0.6 - 1.5 * (ring > 6) for ring in closed)
        assert float(graph.score) == pytest.approx(score, abs=1e-5)
    assert sizes == {5, 6, 8}


def test_labels_are_above_the_median_and_seeds_repeat() -> None:
    data, again, other = Molecules(num_graphs=50), Molecules(num_graphs=50), Molecules(num_graphs=50, seed=1)
    scores = torch.cat([graph.score for graph in data.graphs])
    labels = torch.cat([graph.y for graph in data.graphs])
    assert torch.equal(labels.bool(), scores > scores.quantile(0.5))
    assert torch.equal(scores, torch.cat([graph.score for graph in again.graphs]))
    assert not torch.equal(scores, torch.cat([graph.score for graph in other.graphs]))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="num_graphs"):
        Molecules(num_graphs=1)
