from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric import datasets

from attree.data import WebKB
from attree.errors import ArgumentError, MissingDataError


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "edges_in_paper", "split_sizes"),
    [
        pytest.param("Cornell", 183, 298, 295, [87, 59, 37], marks=pytest.mark.needs("webkb/cornell/raw")),
        pytest.param("Texas", 183, 325, 309, [87, 59, 37], marks=pytest.mark.needs("webkb/texas/raw")),
        pytest.param("Wisconsin", 251, 515, 499, [120, 80, 51], marks=pytest.mark.needs("webkb/wisconsin/raw")),
    ],
)
def test_real_files(
    data_root: str, name: str, nodes: int, edges: int, edges_in_paper: int, split_sizes: list[int]
) -> None:
    data = WebKB(name, root=data_root)
    assert (data.graph.num_nodes, data.graph.num_edges) == (nodes, edges)
    assert int((data.graph.edge_index[0] != data.graph.edge_index[1]).sum()) == edges_in_paper
    assert (data.num_features, data.num_classes) == (1703, 5)
    masks = torch.stack([data.graph.train_mask, data.graph.val_mask, data.graph.test_mask])
    assert masks.sum(dim=1).tolist() == split_sizes
    assert int(masks.sum(dim=0).max()) == 1
    assert data.truth is None


@pytest.mark.needs("webkb/texas/raw")
@pytest.mark.parametrize(("split", "index"), [("paper", 0), (0, 0), (7, 7)])
def test_each_split_is_that_of_its_file(data_root: str, split: str | int, index: int) -> None:
    graph = WebKB("Texas", split=split, root=data_root).graph
    file = np.load(f"{data_root}/webkb/texas/raw/texas_split_0.6_0.2_{index}.npz", allow_pickle=False)
    for mask in ("train_mask", "val_mask", "test_mask"):
        assert np.array_equal(graph[mask].numpy(), file[mask].astype(bool))


@pytest.mark.parametrize("arguments", [{"name": "Kornell"}, {"split": "public"}, {"split": 10}, {"split": -1}])
def test_bad_arguments_are_refused_at_once(arguments: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=f"`{next(iter(arguments))}` to be"):
        WebKB(**arguments)


def test_no_files_and_no_network_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(self: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(datasets.WebKB, "download", offline)
    with pytest.raises(MissingDataError, match=r"Texas could neither .*raw/texas_split_0.6_0.2_\{0..9\}.npz there"):
        WebKB("Texas", root=str(tmp_path)).prepare_data()
