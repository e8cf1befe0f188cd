"""Modules for heterogeneous graphs and links: they learn, log what they say, and come back from a checkpoint."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from sklearn.metrics import roc_auc_score

from attree.data import HeteroInfection, Infection
from attree.errors import ArgumentError
from attree.models import GAT, HGT, HeteroClassifier, HeteroGAT, LinkPredictor, NodeClassifier
from attree.models import hetero_net as hetero_net_module
from attree.models.hetero_net import InputLinear
from attree.models.link_predictor import LinkAUROC, random_non_edges
from helpers.links import Blocks

SMALL = {"num_people": 200, "num_mosquitoes": 140, "num_flies": 120, "meals": 2.5, "infected": 0.1, "num_val": 50}


def fit(module: torch.nn.Module, data: object, folder: Path, epochs: int) -> Trainer:
    trainer = Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, datamodule=data)
    return trainer


def hetero_net(data: HeteroInfection, net: type = HGT, **options: object) -> HGT | HeteroGAT:
    return net(data.num_features, data.num_classes, hidden_channels=8, heads=2, **options)


@pytest.mark.parametrize("net", [HGT, pytest.param(HeteroGAT, marks=pytest.mark.long)])
def test_a_heterogeneous_network_learns_and_is_loaded_again(net: type, tmp_path: Path) -> None:
    data = HeteroInfection(**SMALL)
    module = HeteroClassifier(hetero_net(data, net), lr=0.02)
    trainer = fit(module, data, tmp_path, 40)
    assert set(trainer.callback_metrics) == {"train/loss", "val/loss", "val/acc"}
    final_loss = float(trainer.callback_metrics["train/loss"])
    (tested,) = trainer.test(module, datamodule=data, verbose=False)
    path = tmp_path / "model.ckpt"
    trainer.save_checkpoint(path)
    again = HeteroClassifier.load_from_checkpoint(path).eval()
    graph = data.graph
    expected = module.eval()(graph.x_dict, graph.edge_index_dict)
    assert torch.equal(again(graph.x_dict, graph.edge_index_dict), expected)
    right = (expected.argmax(dim=-1) == graph["person"].y).float()
    assert tested["test/acc"] == pytest.approx(float(right[graph["person"].test_mask].mean()))
    shares = graph["person"].y[graph["person"].train_mask].bincount() / graph["person"].train_mask.sum()
    blind = -float((shares * shares.log()).sum())  # the best loss without looking at the graph
    assert final_loss < 0.85 * blind


def test_a_map_of_bags_of_words_is_that_of_all_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hetero_net_module, "SPARSE_FROM", 1)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 300, generator=generator) * (torch.rand(40, 300, generator=generator) < 0.02)
    layer, plain = InputLinear(300, 5), torch.nn.Linear(300, 5)
    plain.load_state_dict(layer.state_dict())
    layer.train()
    products: list[bool] = []
    sparse = torch.sparse.mm
    monkeypatch.setattr(torch.sparse, "mm", lambda *given: (products.append(True), sparse(*given))[1])
    for _ in range(2):  # the second time from what was kept of the first
        for one in (layer, plain):
            one.zero_grad()
            one(x).square().sum().backward()
        torch.testing.assert_close(layer(x), plain(x))
        torch.testing.assert_close(layer.weight.grad, plain.weight.grad)
        torch.testing.assert_close(layer.bias.grad, plain.bias.grad)
    assert products
    with torch.no_grad():
        x[0] += 1  # changed in place: what was kept does not hold any more
    torch.testing.assert_close(layer(x), plain(x))
    products.clear()
    torch.testing.assert_close(layer.eval()(x), plain(x))
    assert not products
    assert pickle.loads(pickle.dumps(layer)).weight.shape == (5, 300)


def test_networks_say_what_does_not_fit() -> None:
    data = HeteroInfection(**SMALL)
    widths, relations = dict(data.num_features), data.edge_types
    assert HGT(widths, 3, relations, "person").node_type == "person"
    with pytest.raises(ArgumentError, match="`edge_types` to be the relations"):
        HGT(widths, 3)
    with pytest.raises(ArgumentError, match="`node_type` to be one of person, mosquito, fly"):
        HGT(widths, 3, relations, "bee")
    with pytest.raises(ArgumentError, match=r"`edge_types`.*one enters person"):
        HeteroGAT(widths, 3, [("person", "feeds", "fly")], "person")
    with pytest.raises(ArgumentError, match="`hidden_channels` to be a multiple of `heads`"):
        HGT(widths, 3, relations, "person", hidden_channels=9)
    with pytest.raises(ArgumentError, match="`aggr`"):
        HeteroGAT(widths, 3, relations, "person", aggr="max")
    with pytest.raises(ArgumentError, match="`in_channels`"):
        HGT(2, 3)


def test_data_of_another_kind_is_refused_before_anything_runs(tmp_path: Path) -> None:
    hetero, nodes = HeteroInfection(**SMALL), Infection(num_nodes=50, num_layers=2)
    with pytest.raises(ArgumentError, match="of nodes of one type, as HeteroClassifier classifies"):
        fit(HeteroClassifier(hetero_net(hetero)), nodes, tmp_path, 1)
    with pytest.raises(ArgumentError, match="of links, as LinkPredictor predicts"):
        fit(LinkPredictor(GAT(2, 4)), nodes, tmp_path, 1)
    with pytest.raises(ArgumentError, match="of nodes, as NodeClassifier classifies"):
        fit(NodeClassifier(GAT(2, 3)), hetero, tmp_path, 1)
    with pytest.raises(ArgumentError, match="`in_channels` 2, the features that Blocks has"):
        fit(LinkPredictor(GAT(5, 4)), Blocks(), tmp_path, 1)


def test_links_are_learned_and_measured_as_sklearn_does(tmp_path: Path) -> None:
    data = Blocks(test_fraction=0.2)
    module = LinkPredictor(GAT(2, 8, 8), lr=0.02)
    trainer = fit(module, data, tmp_path, 40)
    assert set(trainer.callback_metrics) == {"train/loss", "val/loss", "val/auc"}
    (tested,) = trainer.test(module, datamodule=data, verbose=False)
    graph = data.graph
    logits = module.eval()(graph.x, graph.edge_index, graph.edge_label_index).detach()
    assert tested["test/auc"] == pytest.approx(roc_auc_score(graph.edge_label, logits))
    assert tested["test/auc"] > 0.7
    path = tmp_path / "links.ckpt"
    trainer.save_checkpoint(path)
    again = LinkPredictor.load_from_checkpoint(path).eval()
    assert torch.equal(again(graph.x, graph.edge_index, graph.edge_label_index), logits)
    probabilities = module.predict_step(graph, 0)
    assert torch.allclose(probabilities.sum(dim=-1), torch.ones(graph.edge_label.numel()))
    assert torch.allclose(probabilities[:, 1], logits.sigmoid())


def test_the_area_is_undefined_without_both_kinds_of_pairs() -> None:
    area = LinkAUROC()
    area.update(torch.empty(0), torch.empty(0, dtype=torch.long))
    assert bool(area.compute().isnan())
    area.update(torch.tensor([0.2, 0.4]), torch.tensor([1, 1]))
    assert bool(area.compute().isnan())
    area.update(torch.tensor([0.3]), torch.tensor([0]))
    assert float(area.compute()) == 0.5


def test_drawn_pairs_are_no_edges_and_are_spread_evenly() -> None:
    edge_index = Blocks().load().edge_index
    torch.manual_seed(0)
    drawn = random_non_edges(edge_index, 60, 50_000)
    edges = set(map(tuple, edge_index.T.tolist()))
    assert drawn.shape == (2, 50_000)
    assert not edges & set(map(tuple, drawn.T.tolist()))
    assert bool((drawn[0] != drawn[1]).all())
    free = 60 * 59 - len(edges)
    counts = (drawn[0] * 60 + drawn[1]).bincount()
    assert int((counts > 0).sum()) == free
    assert int(counts.max()) < 3 * 50_000 / free
    complete = torch.combinations(torch.arange(4)).T
    assert random_non_edges(torch.cat([complete, complete.flip(0)], dim=1), 4, 5).numel() == 0
