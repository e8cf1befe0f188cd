from __future__ import annotations

from pathlib import Path

import ogb.nodeproppred.dataset_pyg as ogb_loader
import pytest
import torch
from torch_geometric.utils import contains_self_loops, is_undirected

from attree.data import Arxiv
from attree.errors import ArgumentError, MissingDataError

needs_arxiv = pytest.mark.needs("ogb/ogbn_arxiv/raw")


@pytest.mark.long
@needs_arxiv
def test_public_split_and_directed_edges(data_root: str) -> None:
    data = Arxiv(split="public", symmetrize=False, root=data_root)
    graph = data.graph
    assert (graph.num_nodes, graph.num_edges) == (169_343, 1_166_243)
    assert (data.num_features, data.num_classes) == (128, 40)
    assert graph.y.shape == (169_343,)
    assert graph.y.unique().numel() == 40
    masks = torch.stack([graph.train_mask, graph.val_mask, graph.test_mask])
    assert masks.sum(dim=1).tolist() == [90_941, 29_799, 48_603]
    assert bool((masks.sum(dim=0) == 1).all())


@pytest.mark.long
@needs_arxiv
def test_paper_split_and_symmetrised_edges(data_root: str) -> None:
    graph = Arxiv(root=data_root).graph
    directed = Arxiv(symmetrize=False, root=data_root).graph
    assert is_undirected(graph.edge_index)
    both = torch.cat([directed.edge_index, directed.edge_index.flip(0)], dim=1)
    expected = (both[0] * 169_343 + both[1]).unique()
    assert torch.equal((graph.edge_index[0] * 169_343 + graph.edge_index[1]).sort().values, expected)
    assert contains_self_loops(graph.edge_index) == contains_self_loops(directed.edge_index)

    sizes = graph.y.bincount()
    assert torch.equal(graph.y[graph.train_mask].bincount(), sizes.clamp(max=100))
    assert torch.equal(graph.test_mask, ~graph.train_mask)
    assert int(graph.val_mask.sum()) == 500
    assert not (graph.val_mask & graph.train_mask).any()
    assert torch.equal(graph.train_mask, directed.train_mask)


@needs_arxiv
def test_reading_allows_no_further_classes(data_root: str) -> None:
    before = set(torch.serialization.get_safe_globals())
    Arxiv(root=data_root).setup()
    assert set(torch.serialization.get_safe_globals()) == before


def test_no_files_and_no_network_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(url: str) -> bool:
        raise OSError("Name or service not known")

    monkeypatch.setattr(ogb_loader, "decide_download", offline)
    # Twice: OGB takes the folder a failed download leaves for an outdated dataset and asks on the console.
    for _ in range(2):
        with pytest.raises(MissingDataError, match=r"Arxiv could neither .*not known.*arxiv.zip .* there"):
            Arxiv(root=str(tmp_path)).prepare_data()


@pytest.mark.parametrize("arguments", [{"split": "time"}, {"seed": -1}, {"num_val": 0}])
def test_bad_arguments_are_refused_at_once(arguments: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=f"`{next(iter(arguments))}` to be"):
        Arxiv(**arguments)
