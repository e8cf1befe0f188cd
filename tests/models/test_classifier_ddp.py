"""Two processes train and evaluate what one does, however unevenly the examples fall."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer

from attree.data import Infection, Planetoid, neighbor_loader
from attree.data.splits import EvaluationShard, TrainingShard, shard_mask
from attree.models import GAT, GraphClassifier, NodeClassifier
from helpers.mini_batches import Rings
from helpers.processes import spawn


class Process(LightningEnvironment):
    """One of several processes that were started by hand."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self.set_global_rank(rank)
        self.set_world_size(world_size)

    def local_rank(self) -> int:
        return self.global_rank()

    @property
    def creates_processes_externally(self) -> bool:
        return True


class FirstReads(Callback):
    """What a progress bar does: the first process alone reads metrics, while the others go on."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            assert 0 <= trainer.progress_bar_metrics.get("val/acc", 0.0) <= 1
            assert trainer.callback_metrics["train/loss"] > 0


def make_trainer(folder: Path, epochs: int, rank: int, world_size: int) -> Trainer:
    plain: dict[str, Any] = {
        "max_epochs": epochs,
        "accelerator": "cpu",
        "callbacks": [FirstReads()],
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    if world_size == 1:
        return Trainer(**plain)
    return Trainer(**plain, strategy="ddp", devices=world_size, plugins=[Process(rank, world_size)])


def join(folder: str, rank: int, world_size: int) -> None:
    """Meet the other processes over a file; Lightning uses a group that is already there."""
    torch.set_num_threads(1)
    if world_size > 1:
        rendezvous = f"file://{folder}/rendezvous"
        dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def infection(**arguments: Any) -> Infection:
    return Infection(num_nodes=201, edge_probability=0.01, num_layers=2, num_val=33, **arguments)


PENALTIES = {"entropy": 0.5, "true_edges": {"share": 0.5}, "effect": {"strength": 0.2, "targets": 4}, "gsat": 0.1}


def cases() -> dict[str, tuple[LightningDataModule, LightningModule, int]]:
    torch.manual_seed(0)
    return {
        "whole": (infection(), NodeClassifier(GAT(2, 4), lr=0.02), 4),
        "penalized": (infection(), NodeClassifier(GAT(2, 4, heads=2), lr=0.02, penalties=PENALTIES), 4),
        "sampled": (infection(num_neighbors=[3, 2], batch_size=7), NodeClassifier(GAT(2, 4), lr=0.02), 4),
        "one_node": (
            Infection(num_nodes=30, edge_probability=0.1, num_val=1),
            NodeClassifier(GAT(2, 5, num_layers=3)),
            1,
        ),
        "graphs": (Rings(), GraphClassifier(GAT(3, 2), lr=0.02), 3),
    }


def run(rank: int, world_size: int, folder: str) -> None:
    join(folder, rank, world_size)
    results = {}
    for name, (data, model, epochs) in cases().items():
        before = {key: value.clone() for key, value in model.state_dict().items()}
        trainer = make_trainer(Path(folder), epochs, rank, world_size)
        first = trainer.test(model, datamodule=data, verbose=False)[0]
        first |= trainer.validate(model, datamodule=data, verbose=False)[0]
        trainer.fit(model, datamodule=data)
        assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())
        last = {key: float(value) for key, value in trainer.callback_metrics.items()}
        results[name] = {"first": first, "last": last, "steps": trainer.global_step, "state": model.net.state_dict()}
    leave()
    torch.save(results, Path(folder, f"{rank}of{world_size}.pt"))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = str(tmp_path_factory.mktemp("ddp"))
    threads = torch.get_num_threads()
    run(0, 1, folder)
    torch.set_num_threads(threads)
    spawn(run, (2, folder))
    return [torch.load(Path(folder, name)) for name in ("0of1.pt", "0of2.pt", "1of2.pt")]


@pytest.mark.parametrize("case", ["whole", "sampled", "one_node", "graphs"])
def test_evaluation_is_that_of_one_process(outcome: list[dict[str, Any]], case: str) -> None:
    one, *both = (results[case]["first"] for results in outcome)
    assert set(one) == {"test/acc", "test/loss", "val/acc", "val/loss"}
    for two in both:
        assert two == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("case", ["whole", "penalized"])
def test_full_batch_training_is_that_of_one_process(outcome: list[dict[str, Any]], case: str) -> None:
    one, *both = (results[case] for results in outcome)
    logged = {f"train/attention_{name}" for name in PENALTIES} if case == "penalized" else set()
    assert logged <= set(one["last"])
    for two in both:
        assert two["last"] == pytest.approx(one["last"], rel=1e-3)
        assert two["steps"] == one["steps"] == 4
        for key, value in one["state"].items():
            torch.testing.assert_close(two["state"][key], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("case", "examples", "batch_size"), [("sampled", 100, 7), ("graphs", 26, 4)])
def test_processes_take_equal_steps_to_equal_weights(
    outcome: list[dict[str, Any]], case: str, examples: int, batch_size: int
) -> None:
    first, second = (results[case] for results in outcome[1:])
    share = -(-examples // 2)
    epochs = {"sampled": 4, "graphs": 3}[case]
    assert first["steps"] == second["steps"] == epochs * -(-share // batch_size)
    for key, value in first["state"].items():
        assert torch.equal(value, second["state"][key])
    assert {"train/loss", "val/loss", "val/acc"} <= set(first["last"])
    assert first["last"] == pytest.approx(second["last"])


@pytest.mark.parametrize(("total", "world_size"), [(10, 1), (10, 3), (11, 4), (2, 5)])
def test_shards(total: int, world_size: int) -> None:
    examples = range(total)
    mask = torch.arange(2 * total) % 2 == 0
    masks = torch.stack([shard_mask(mask, rank, world_size) for rank in range(world_size)])
    assert torch.equal(masks.sum(dim=0), mask.long())
    evaluated = [list(EvaluationShard(examples, rank, world_size)) for rank in range(world_size)]
    assert sorted(chain.from_iterable(evaluated)) == list(examples)
    orders = []
    for epoch in range(2):
        shards = [TrainingShard(examples, rank, world_size, seed=5) for rank in range(world_size)]
        for shard in shards:
            shard.set_epoch(epoch)
        shares = [list(shard) for shard in shards]
        assert len({len(share) for share in shares}) == 1
        seen = torch.tensor(list(chain.from_iterable(shares))).bincount(minlength=total)
        assert int(seen.min()) >= 1
        assert int(seen.sum()) - total < world_size
        orders.append(shares)
    assert total < 5 or orders[0] != orders[1]


def test_loaders_of_two_processes_share_the_seeds_and_draw_apart() -> None:
    graph = infection().graph
    seeds = graph.train_mask.nonzero().view(-1)
    loaders = [neighbor_loader(graph, seeds, [2], 20, rank=rank, world_size=2) for rank in range(2)]
    shares = [torch.cat([batch.n_id[: batch.batch_size] for batch in loader]) for loader in loaders]
    assert torch.equal(torch.cat(shares).sort().values, seeds)
    again = torch.cat([batch.n_id[: batch.batch_size] for batch in loaders[0]])
    assert torch.equal(again, shares[0])
    loaders[0].sampler.set_epoch(1)
    assert loaders[0].node_sampler.epoch == 1
    later = torch.cat([batch.n_id[: batch.batch_size] for batch in loaders[0]])
    assert not torch.equal(later, shares[0])


def fit_cora(rank: int, world_size: int, folder: str, root: str) -> None:
    join(folder, rank, world_size)
    accuracies = []
    for seed in range(3):
        torch.manual_seed(seed)
        # Two processes see half the batch each, so that a step is over as many nodes as with one.
        data = Planetoid(
            "Cora", seed=seed, root=root, num_neighbors=[10, 10], batch_size=128 // world_size, sampling_seed=seed
        )
        model = NodeClassifier(GAT(1433, 7, 64, 2), lr=0.001)
        trainer = make_trainer(Path(folder), 10, rank, world_size)
        trainer.limit_val_batches = 0
        trainer.fit(model, datamodule=data)
        accuracies.append(trainer.test(model, datamodule=data, verbose=False)[0]["test/acc"])
    leave()
    torch.save(accuracies, Path(folder, f"{world_size}.pt"))


@pytest.mark.slow
@pytest.mark.needs("planetoid/Cora/raw")
def test_two_processes_reach_the_accuracy_of_one_on_cora(data_root: str, tmp_path: Path) -> None:
    Planetoid("Cora", root=data_root).prepare_data()
    threads = torch.get_num_threads()
    fit_cora(0, 1, str(tmp_path), data_root)
    torch.set_num_threads(threads)
    spawn(fit_cora, (2, str(tmp_path), data_root), seconds=1200)
    one, two = (torch.tensor(torch.load(tmp_path / f"{size}.pt")) for size in (1, 2))
    assert float(one.mean()) > 0.8
    assert abs(float(one.mean() - two.mean())) < 0.02
