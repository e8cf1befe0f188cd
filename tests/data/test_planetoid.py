from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_geometric import datasets

from attree.data import Planetoid
from attree.errors import ArgumentError, MissingDataError

SIZES = [
    ("Cora", 2708, 10556, 1433, 7),
    ("CiteSeer", 3327, 9104, 3703, 6),
    ("PubMed", 19717, 88648, 500, 3),
]


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes"),
    [pytest.param(*sizes, marks=pytest.mark.needs(f"planetoid/{sizes[0]}/raw")) for sizes in SIZES],
)
def test_real_files(data_root: str, name: str, nodes: int, edges: int, features: int, classes: int) -> None:
    paper, public = Planetoid(name, root=data_root), Planetoid(name, split="public", root=data_root)
    assert (paper.graph.num_nodes, paper.graph.num_edges) == (nodes, edges)
    assert (paper.num_features, paper.num_classes) == (features, classes)
    assert paper.graph.y.unique().numel() == classes
    assert paper.truth is None
    assert paper.graph.y[paper.graph.train_mask].bincount().tolist() == [100] * classes
    assert int(paper.graph.test_mask.sum()) == nodes - 100 * classes
    assert int(paper.graph.val_mask.sum()) == 500
    masks = torch.stack([public.graph.train_mask, public.graph.val_mask, public.graph.test_mask])
    assert masks.sum(dim=1).tolist() == [20 * classes, 500, 1000]
    assert int(masks.sum(dim=0).max()) == 1


@pytest.mark.needs("planetoid/Cora/raw")
def test_seed_decides_the_split(data_root: str) -> None:
    first, again, other = (Planetoid(seed=seed, root=data_root).graph for seed in (0, 0, 1))
    assert torch.equal(first.train_mask, again.train_mask)
    assert torch.equal(first.val_mask, again.val_mask)
    assert not torch.equal(first.train_mask, other.train_mask)


def test_no_files_and_no_network_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(self: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(datasets.Planetoid, "download", offline)
    data = Planetoid("PubMed", root=str(tmp_path))
    assert (data.num_features, data.num_classes) == (500, 3)
    with pytest.raises(MissingDataError, match=r"PubMed could neither .*raw/ind.pubmed.* there, set `root`"):
        data.prepare_data()
    assert not (tmp_path / "planetoid" / "PubMed").exists()


@pytest.mark.needs("planetoid/Cora/raw")
def test_damaged_files_are_reported(data_root: str, tmp_path: Path) -> None:
    raw = tmp_path / "planetoid" / "Cora" / "raw"
    raw.mkdir(parents=True)
    for file in Path(data_root, "planetoid/Cora/raw").iterdir():
        content = file.read_bytes()
        (raw / file.name).write_bytes(content[: len(content) // 2] if file.name.endswith("allx") else content)
    with pytest.raises(MissingDataError, match=r"Cora was not read: .*ind.cora.allx is not a pickle .* is damaged"):
        Planetoid(root=str(tmp_path)).setup()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "Corra"}, "`name` to be one of Cora, CiteSeer, PubMed, but got 'Corra'"),
        ({"split": "random"}, "`split` to be `paper` or `public`"),
        ({"seed": -2}, "`seed`"),
        ({"num_val": 0}, "`num_val`"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Planetoid(**arguments)


@pytest.mark.needs("planetoid/Cora/raw")
def test_features_are_normalised_unless_asked_otherwise(data_root: str) -> None:
    normal, stored = Planetoid(root=data_root).graph.x, Planetoid(normalize_features=False, root=data_root).graph.x
    assert stored.unique().tolist() == [0.0, 1.0]
    torch.testing.assert_close(normal, stored / stored.sum(dim=1, keepdim=True))
