from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric import datasets
from torch_geometric.data import Data

from attree.data import HIN, MUTAG, Counts, GraphDataModule
from attree.errors import ArgumentError, MissingDataError


class Toy(GraphDataModule):
    """100 graphs of one to three nodes, a quarter of class 1."""

    name = "Toy"
    counts = Counts(None, None, 1, 2, graphs=100)

    def __init__(
        self, val_fraction: float = 0.1, test_fraction: float = 0.3, batch_size: int = 8, seed: int = 0
    ) -> None:
        super().__init__(val_fraction, test_fraction, batch_size, seed)

    def load(self) -> list[Data]:
        return [
            Data(
                x=torch.full((1 + k % 3, 1), float(k)),
                edge_index=torch.zeros(2, 0, dtype=torch.long),
                y=torch.tensor([int(k % 4 == 0)]),
            )
            for k in range(100)
        ]


def order(loader: object) -> list[float]:
    """Ids of the graphs in the order a loader gives them."""
    return [float(graph.x[0]) for batch in loader for graph in batch.to_data_list()]


def test_split_is_stratified_disjoint_and_seeded() -> None:
    data = Toy()
    assert {part: len(members) for part, members in data.split.items()} == {"train": 60, "val": 10, "test": 30}
    assert sorted(k for members in data.split.values() for k in members) == list(range(100))
    ones = {part: sum(k % 4 == 0 for k in members) for part, members in data.split.items()}
    assert ones["train"] == 15
    assert {ones["val"], ones["test"]} <= {2, 3, 7, 8}
    assert Toy().split == data.split
    assert Toy(seed=1).split != data.split


def test_loaders_give_their_parts() -> None:
    data = Toy()
    epochs = data.train_dataloader()
    first = order(epochs)
    epochs.sampler.set_epoch(1)
    second = order(epochs)
    assert sorted(first) == sorted(second) == data.split["train"]
    assert first != second
    assert order(data.train_dataloader()) == first
    assert order(data.val_dataloader()) == data.split["val"]
    assert order(data.test_dataloader()) == data.split["test"]
    assert order(data.predict_dataloader()) == list(range(100))
    assert [batch.num_graphs for batch in data.test_dataloader()] == [8, 8, 8, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"val_fraction": 0.0}, "`val_fraction`"),
        ({"test_fraction": 1.0}, "`test_fraction`"),
        ({"val_fraction": 0.5, "test_fraction": 0.5}, "below 1, so that graphs are left to train on, but got 1.0"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"seed": -1}, "`seed`"),
    ],
)
@pytest.mark.parametrize("dataset", [MUTAG, HIN])
def test_bad_arguments_are_refused_at_once(
    dataset: type[GraphDataModule], arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        dataset(**arguments)


def test_a_part_too_small_for_all_classes_is_refused() -> None:
    with pytest.raises(ArgumentError, match="`val_fraction` to be enough for one graph of each class"):
        _ = Toy(val_fraction=0.01).split


@pytest.mark.needs("tu/MUTAG/raw")
def test_mutag(data_root: str) -> None:
    data = MUTAG(root=data_root)
    assert (len(data.graphs), data.num_features, data.num_classes) == (188, 7, 2)
    assert sum(graph.num_nodes for graph in data.graphs) == 3371
    assert torch.cat([graph.y for graph in data.graphs]).bincount().tolist() == [63, 125]
    assert all(torch.equal(graph.x.sum(dim=1), torch.ones(graph.num_nodes)) for graph in data.graphs)
    assert {part: len(members) for part, members in data.split.items()} == {"train": 131, "val": 19, "test": 38}
    assert set(data.graphs[0].keys()) == {"x", "edge_index", "y"}


@pytest.mark.needs("hin/hin.npz")
def test_hin(data_root: str) -> None:
    data = HIN(root=data_root)
    assert (len(data.graphs), data.num_features, data.num_classes) == (1760, 5, 2)
    assert torch.cat([graph.y for graph in data.graphs]).bincount().tolist() == [880, 880]
    for graph in data.graphs:
        assert graph.validate()
        assert graph.is_undirected()
        assert torch.equal(graph.x.sum(dim=1), torch.ones(graph.num_nodes))
    batch = next(iter(data.test_dataloader()))
    assert batch.x.dtype == torch.float
    assert batch.edge_index.dtype == batch.y.dtype == torch.long


def test_absent_mutag_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(self: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(datasets.TUDataset, "download", offline)
    with pytest.raises(MissingDataError, match=r"MUTAG could neither .* raw/MUTAG_.* there"):
        MUTAG(root=str(tmp_path)).prepare_data()


def test_absent_or_foreign_hin_file_says_what_to_do(tmp_path: Path) -> None:
    data = HIN(root=str(tmp_path))
    with pytest.raises(MissingDataError, match=r"hin.npz does not exist. Store the graphs published"):
        data.prepare_data()
    (tmp_path / "hin").mkdir()
    np.savez(tmp_path / "hin" / "hin.npz", x=np.ones((2, 5)), y=np.ones(1))
    with pytest.raises(MissingDataError, match="lacks the arrays node_ptr, edge_index, edge_ptr"):
        data.prepare_data()
