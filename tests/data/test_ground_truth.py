from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attree.data import GroundTruth
from attree.errors import ArgumentError

pair = st.tuples(st.integers(0, 6), st.integers(0, 6))
true_edges = st.lists(st.lists(pair, max_size=5), min_size=1, max_size=4)


def build(per_target: list[list[tuple[int, int]]]) -> GroundTruth:
    """Targets 10, 11, ... with the given true edges."""
    sizes = torch.tensor([0] + [len(edges) for edges in per_target])
    flat = [edge for edges in per_target for edge in edges]
    edges = torch.tensor(flat, dtype=torch.long).view(-1, 2).t()
    return GroundTruth(torch.arange(10, 10 + len(per_target)), edges, sizes.cumsum(0))


# Queries reach beyond the largest true node, where keys of pairs could collide.
@given(true_edges, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 40)), min_size=1))
def test_labels_are_set_membership_per_target(
    per_target: list[list[tuple[int, int]]], queries: list[tuple[int, int, int]]
) -> None:
    queries = [(position % len(per_target), source, destination) for position, source, destination in queries]
    queries += [(k, *edge) for edges in per_target for edge in edges for k in range(len(per_target))]
    position, source, destination = torch.tensor(queries).t()
    expected = [(s, d) in per_target[k] for k, s, d in queries]
    assert build(per_target).labels(position, source, destination).tolist() == expected


@given(st.lists(pair, max_size=6), st.lists(pair, min_size=1))
def test_labels_shared_by_all_targets(edges: list[tuple[int, int]], queries: list[tuple[int, int]]) -> None:
    truth = GroundTruth(torch.tensor([4, 9]), torch.tensor(edges, dtype=torch.long).view(-1, 2).t(), None)
    source, destination = torch.tensor(queries).t()
    for position in (0, 1):
        labels = truth.labels(torch.full_like(source, position), source, destination)
        assert labels.tolist() == [query in edges for query in queries]


def test_labels_of_millions_of_nodes_do_not_overflow() -> None:
    big = 3_000_000
    nodes = torch.arange(big - 4, big)
    truth = GroundTruth(nodes, torch.stack([nodes, nodes]), torch.arange(5))
    position = torch.arange(4)
    assert truth.labels(position, nodes, nodes).all()
    assert not truth.labels(position.flip(0), nodes, nodes).any()


def test_edges_of_a_target() -> None:
    truth = build([[(0, 1), (1, 2)], [], [(3, 3)]])
    assert truth.edges_of(10).tolist() == [[0, 1], [1, 2]]
    assert truth.edges_of(11).shape == (2, 0)
    assert truth.edges_of(12).tolist() == [[3], [3]]
    with pytest.raises(ArgumentError, match="Node 3 has no ground truth"):
        truth.edges_of(3)


def test_to_moves_every_tensor() -> None:
    truth = build([[(0, 1)], [(2, 3)]])
    moved = truth.to("meta")
    assert moved.ptr is not None
    assert {moved.targets.device.type, moved.edges.device.type, moved.ptr.device.type} == {"meta"}
    zero = torch.zeros(1, dtype=torch.long)
    assert (
        truth.labels(zero, zero, zero + 1).tolist() == truth.to("cpu").labels(zero, zero, zero + 1).tolist() == [True]
    )


@pytest.mark.parametrize(
    ("targets", "edges", "ptr", "message"),
    [
        (torch.tensor([[1]]), torch.zeros(2, 0).long(), None, "`targets` to be a 1-dimensional"),
        (
            torch.tensor([1.0]),
            torch.zeros(2, 0).long(),
            None,
            "`targets` to be a 1-dimensional tensor of 64-bit",
        ),
        (torch.tensor([1, 1]), torch.zeros(2, 0).long(), None, "`targets` to be distinct"),
        (torch.tensor([-1]), torch.zeros(2, 0).long(), None, "`targets` to be node ids >= 0"),
        (torch.tensor([1]), torch.zeros(3, 2).long(), None, r"`edges` to be of shape \[2, M\]"),
        (
            torch.tensor([1]),
            torch.zeros(2, 2).long(),
            torch.tensor([0]),
            "`ptr` to be non-decreasing offsets from 0 to 2, 2 of",
        ),
        (torch.tensor([1]), torch.zeros(2, 2).long(), torch.tensor([0, 1]), "`ptr` to be non-decreasing"),
        (
            torch.tensor([1, 2]),
            torch.zeros(2, 2).long(),
            torch.tensor([0, 3, 2]),
            "`ptr` to be non-decreasing",
        ),
    ],
)
def test_bad_tensors_are_refused(
    targets: torch.Tensor, edges: torch.Tensor, ptr: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        GroundTruth(targets, edges, ptr)
