"""What strangers' Lightning projects do: other loaders in a test, data that draw, two optimisers, casts."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import seed_everything
from torch import Tensor
from torch.utils.data import Dataset
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_mean_pool

import attree
from helpers.plain_projects import PlainGraphs, PlainNodes, explain, make_trainer, node_graph, small_graphs
from helpers.small_fits import curves


class TestedGraphs(PlainGraphs):
    """Graph classification with a test."""

    def test_step(self, data: Batch, batch_idx: int) -> None:
        self.validation_step(data, batch_idx)


@pytest.mark.parametrize("by", ["the same trainer", "a checkpoint"])
def test_a_test_on_other_graphs_draws_from_those(by: str, tmp_path: Path) -> None:
    seed_everything(0)
    graphs, module, callback = small_graphs(), TestedGraphs(), explain(num_targets=4)
    run = make_trainer(tmp_path, [callback])
    run.fit(module, DataLoader(graphs[:12], batch_size=4), DataLoader(graphs[12:18], batch_size=4))
    drawn, path = callback.targets, tmp_path / "model.ckpt"
    assert drawn is not None
    run.save_checkpoint(path)
    if by == "a checkpoint":
        callback = explain(num_targets=4)
        run = make_trainer(tmp_path / "again", [callback])
    tested = graphs[18:]
    (found,) = run.test(module, DataLoader(tested, batch_size=3), verbose=False, ckpt_path=path)
    assert callback.targets is not None
    assert int(callback.targets.max()) < len(tested)
    batch = Batch.from_data_list([tested[position] for position in callback.targets.tolist()])
    expected = attree.evaluate(module, batch, "all", protocols=["removal"]).metrics
    for name, value in expected.items():
        assert found[f"test/{name}"] == pytest.approx(value, abs=1e-5, nan_ok=True), name


def test_a_validation_of_the_same_graph_keeps_its_targets_and_another_graph_gets_its_own(tmp_path: Path) -> None:
    seed_everything(0)
    callback, module = explain(), PlainNodes()
    run = make_trainer(tmp_path, [callback])
    run.fit(module, DataLoader([node_graph()]), DataLoader([node_graph()]))
    drawn = callback.targets
    callback.config = replace(callback.config, seed=9)
    run.validate(module, DataLoader([node_graph()]), verbose=False)
    assert drawn is not None
    assert torch.equal(drawn, callback.targets)
    small = node_graph().subgraph(torch.arange(25))
    (found,) = run.test(module, DataLoader([small]), verbose=False)
    assert callback.targets is not None
    assert int(callback.targets.max()) < 25
    expected = attree.evaluate(module, small, callback.targets, protocols=["removal"], seed=9).metrics
    assert found["test/explain/gatt/removal/pc_pearson"] == pytest.approx(
        expected["explain/gatt/removal/pc_pearson"], abs=1e-5
    )


class Drawing(Dataset[Data]):
    """Graphs with noise that is drawn as they are read, by three generators; counts what is read."""

    def __init__(self, graphs: list[Data]) -> None:
        self.graphs = graphs
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, position: int) -> Data:
        self.reads.append(position)
        graph = self.graphs[position].clone()
        graph.x = graph.x + torch.randn_like(graph.x) + random.random() + float(np.random.rand())  # noqa: NPY002
        return graph


class OwnLoaders(PlainGraphs):
    """A module that makes its loaders, drawing a split as it does."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs, self.opened = Drawing(small_graphs()), 0

    def train_dataloader(self) -> DataLoader:
        self.opened += 1
        torch.randperm(3)
        return DataLoader(self.graphs, batch_size=6, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Drawing(small_graphs()[:4]), batch_size=4)


def test_training_is_the_same_to_the_bit_where_data_draw(tmp_path: Path) -> None:
    weights, reads = [], []
    for callbacks in ([], [explain(num_targets=3, figures=1, save=True)]):
        seed_everything(0)
        module = OwnLoaders()
        make_trainer(tmp_path / str(len(callbacks)), callbacks).fit(module)
        assert module.opened == 1
        weights.append(torch.cat([one.detach().view(-1) for one in module.parameters()]))
        reads.append(len(module.graphs.reads))
    assert torch.equal(*weights)
    # The three targets, three to see whether the dataset repeats one graph, and two to see what it holds.
    assert reads[1] - reads[0] <= 8


def test_the_same_graph_in_two_loaders_is_explained_once(tmp_path: Path) -> None:
    """Datasets such as PyG's hand out a new object each time they are asked for their one graph."""
    callback = explain(subset="val", num_targets=40)
    run = make_trainer(tmp_path, [callback], max_epochs=1)
    run.fit(PlainNodes(), DataLoader([node_graph()]), DataLoader([node_graph()]))
    assert callback.targets is not None
    assert callback.targets.tolist() == node_graph().val_mask.nonzero().view(-1).tolist()
    everything = explain(num_targets=1000)
    run = make_trainer(tmp_path, [everything], max_epochs=1)
    run.fit(PlainNodes(), DataLoader([node_graph()]), DataLoader([node_graph()]))
    assert everything.targets is not None
    assert everything.targets.numel() == node_graph().num_nodes


class Manual(PlainNodes):
    """Manual optimisation with two optimisers, which both step every second batch."""

    automatic_optimization = False

    def training_step(self, data: Data, batch_idx: int) -> None:
        loss = super().training_step(data, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=1)
        self.manual_backward(loss)
        if batch_idx % 2:
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        halves = list(self.parameters())
        return [torch.optim.Adam(halves[:2]), torch.optim.SGD(halves[2:], lr=0.1)]


@pytest.mark.parametrize("validated", [True, False])
def test_explained_values_are_where_the_epochs_own_scalars_are(validated: bool, tmp_path: Path) -> None:
    graphs = [node_graph() for _ in range(4)]
    run = make_trainer(tmp_path, [explain(data=node_graph())], max_epochs=3)
    run.fit(Manual(), DataLoader(graphs), DataLoader(graphs[:1]) if validated else None)
    found = curves(Path(run.log_dir))
    own = [step for step, _ in found["train_loss"]]
    assert len(own) == 3
    assert [step for step, _ in found["explain/gatt/removal/faithfulness"]] == own
    assert "explain/gatt/removal/faithfulness" in run.logged_metrics
    assert float(run.callback_metrics["explain/gatt/removal/pc_pearson"]) == pytest.approx(
        found["explain/gatt/removal/pc_pearson"][-1][1], abs=1e-6
    )


class TakesBatch(PlainGraphs):
    """A forward that takes the whole batch, and calls it so."""

    def forward(self, batch: Batch) -> Tensor:  # type: ignore[override]
        x = self.second(self.first(batch.x, batch.edge_index).relu(), batch.edge_index)
        out: Tensor = self.lin(global_mean_pool(x, batch.batch))
        return out

    def training_step(self, data: Batch, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(data), data.y)

    def validation_step(self, data: Batch, batch_idx: int) -> None:
        self.log("val_acc", (self(data).argmax(-1) == data.y).float().mean(), batch_size=data.num_graphs)


def test_a_forward_that_takes_the_batch(tmp_path: Path) -> None:
    seed_everything(0)
    module, graphs = TakesBatch(), small_graphs()
    callback = explain()
    run = make_trainer(tmp_path, [callback])
    run.fit(module, DataLoader(graphs, batch_size=6))
    assert callback.targets is not None
    batch = Batch.from_data_list([graphs[position] for position in callback.targets.tolist()])
    plain = PlainGraphs()
    plain.load_state_dict(module.state_dict())
    expected = attree.evaluate(plain, batch, "all", protocols=["removal"]).metrics
    found = curves(Path(run.log_dir))
    for name, value in expected.items():
        assert found[name][-1][1] == pytest.approx(value, abs=1e-4, nan_ok=True), name


class Casts(PlainNodes):
    """Casts its features, as a module of half precision has to for graphs of full precision."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.gnn(x.to(next(self.parameters()).dtype), edge_index)


def test_half_precision_with_a_cast_in_forward(tmp_path: Path) -> None:
    run = make_trainer(
        tmp_path, [explain(protocols=["weight", "removal"], figures=1, save=True)], precision="bf16-true"
    )
    run.fit(Casts(), DataLoader([node_graph()]))
    assert "explain/gatt/removal/pc_pearson" in run.callback_metrics
