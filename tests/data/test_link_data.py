"""Link data: which edges are seen, which are told, and that they are the same in every process."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data

from attree.data import Counts, LinkDataModule, PlanetoidLinks
from attree.errors import ArgumentError


class Ring(LinkDataModule):
    """A ring of 100 nodes, each joined to the next two both ways."""

    name = "Ring"
    counts = Counts(100, 400, 3, 1)

    def load(self) -> Data:
        ids = torch.arange(100)
        edges = torch.cat([torch.stack([ids, (ids + step) % 100]) for step in (1, 2)], dim=1)
        edge_index = torch.cat([edges, edges.flip(0)], dim=1)
        return Data(x=torch.ones(100, 3), edge_index=edge_index, y=torch.zeros(100, dtype=torch.long))


def pairs(edge_index: torch.Tensor) -> set[tuple[int, int]]:
    return {(min(i, j), max(i, j)) for i, j in edge_index.T.tolist()}


def told(part: Data, label: int) -> set[tuple[int, int]]:
    return pairs(part.edge_label_index[:, part.edge_label == label])


def test_no_part_sees_the_edges_that_it_is_to_tell() -> None:
    data = Ring(seed=3)
    data.setup("fit")
    train, val, test = (data.parts[part] for part in ("train", "val", "test"))
    every = pairs(data.load().edge_index)
    assert pairs(train.edge_index) == told(train, 1)
    assert not told(val, 1) & pairs(val.edge_index)
    assert not told(test, 1) & pairs(test.edge_index)
    assert pairs(val.edge_index) == pairs(train.edge_index)
    assert pairs(test.edge_index) == pairs(train.edge_index) | told(val, 1)
    assert pairs(test.edge_index) | told(test, 1) == every
    assert (len(told(val, 1)), len(told(test, 1))) == (10, 20)  # 5 % and 10 % of 200
    for part in (val, test):
        assert not told(part, 0) & every
        assert int((part.edge_label == 0).sum()) == int((part.edge_label == 1).sum())


def test_the_split_depends_on_the_seed_and_leaves_the_random_states_alone() -> None:
    torch.manual_seed(1)
    random.seed(1)
    first = Ring(seed=0).graph
    drawn = torch.rand(1), random.random()
    torch.manual_seed(2)
    random.seed(2)
    again, other = Ring(seed=0).graph, Ring(seed=1).graph
    assert torch.equal(first.edge_label_index, again.edge_label_index)
    assert not torch.equal(first.edge_label_index, other.edge_label_index)
    torch.manual_seed(1)
    random.seed(1)
    assert (torch.rand(1), random.random()) == drawn


def test_processes_share_the_pairs_each_once() -> None:
    whole = Ring().graph
    shares = []
    for rank in range(3):
        data = Ring()
        data.trainer = SimpleNamespace(global_rank=rank, world_size=3)  # type: ignore[assignment]
        share = next(iter(data.test_dataloader()))
        assert torch.equal(share.edge_index, whole.edge_index)
        shares += list(zip(share.edge_label_index.T.tolist(), share.edge_label.tolist(), strict=True))
    expected = zip(whole.edge_label_index.T.tolist(), whole.edge_label.tolist(), strict=True)
    assert sorted(shares) == sorted(expected)


@pytest.mark.needs("planetoid/Cora/raw")
def test_cora_links_have_the_sizes_of_the_usual_split(data_root: str) -> None:
    data = PlanetoidLinks("Cora", root=data_root)
    assert data.num_features == 1433
    assert data.graph.edge_label.long().bincount().tolist() == [527, 527]
    assert data.parts["val"].edge_label.numel() == 2 * 263
    assert data.parts["train"].edge_label_index.size(1) == 5278 - 527 - 263


@pytest.mark.parametrize(
    ("arguments", "said"), [({"val_fraction": 0.6, "test_fraction": 0.5}, "val_fraction"), ({"seed": -1}, "seed")]
)
def test_bad_arguments(arguments: dict, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Ring(**arguments)
