"""On an accelerator, everything is computed there and is what the host computes: fits, gradients, messages too.

The accelerator is torch's PrivateUse1 with a driver in Python (`helpers.pretend_device`). Its tensors refuse to meet
those of the host, and its messages between processes refuse tensors of the host, as NCCL does. Torch keeps such a
device for the rest of a process, so each test has processes of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT as PyGGAT

import attree
from attree.attribution import METHODS, subject_pairs
from attree.callbacks import ExplainCallback
from attree.data import GroundTruth, Infection
from attree.evaluation.columns import Exchange, PairColumns, gathered
from attree.explain_run import ExplainCall, missing_parts
from attree.explain_run.write_part import OpenCall
from attree.faithfulness import PROTOCOLS, CopiesReducer, ExactReducer, Reduction
from attree.metrics import AUROC, FaithfulnessComparison, Kendall, Pearson
from attree.models import GAT, NodeClassifier
from attree.penalties import PENALTIES, AttentionPenalties, AttentionPenaltyCallback, TrueEdges
from attree.subject import Subject
from helpers.cli import fit as fit_tiny
from helpers.graphs import NODES, messy_graph, randomize
from helpers.pretend_device import ACCELERATOR, PretendedAccelerator, add_accelerator, pretend
from helpers.processes import spawn

pytestmark = pytest.mark.long

TARGETS = [0, 3, 9]


def on_accelerators(work: Callable[..., None], *arguments: Any, processes: int = 1) -> None:
    """Run a function in processes of its own, where torch has the accelerator."""
    spawn(begin, (work, *arguments), processes)


def begin(rank: int, work: Callable[..., None], *arguments: Any) -> None:
    torch.set_num_threads(1)
    add_accelerator()  # before the first gradient
    work(rank, *arguments)


@contextmanager
def accelerator() -> Iterator[torch.device]:
    with pretend(ACCELERATOR) as device, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield device


def small_graph() -> Data:
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(NODES, 5, generator=generator), torch.randint(0, 3, (NODES,), generator=generator)
    return Data(x=x, edge_index=messy_graph(0), y=y, train_mask=torch.ones(NODES, dtype=torch.bool))


def net() -> nn.Module:
    return randomize(GAT(5, 3, hidden_channels=4, num_layers=2, heads=2), seed=1).eval()


def stacked() -> nn.Module:
    """A net of PyG, with what stands beside attention."""
    return randomize(PyGGAT(5, 8, 2, 3, jk="cat", norm="batch", heads=2), seed=2, scale=0.5).eval()


NETS = {"net": net, "stacked": stacked}


def truth() -> GroundTruth:
    graph = small_graph()
    entering = graph.edge_index[:, graph.edge_index[1] == 0]
    return GroundTruth(torch.tensor([0]), entering[:, :3], torch.tensor([0, 3]))


def assert_same(values: Tensor, expected: Tensor, device: torch.device, name: str = "") -> None:
    assert values.device == device, name
    torch.testing.assert_close(values.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-9, equal_nan=True, msg=name)


def compare_methods(rank: int, make: str, names: list[str], sets: bool) -> None:
    """Scores by gradients, by training and by attention, and the effects of edges, with weights that are trained."""
    expected = attree.evaluate(NETS[make](), small_graph(), TARGETS, names, "removal", sets=sets)
    with accelerator() as device:
        model, graph = NETS[make]().to(device), small_graph().to(device)
        assert all(weight.requires_grad and weight.device == device for weight in model.parameters())
        result = attree.evaluate(model, graph, TARGETS, names, "removal", sets=sets)
        for name in names:
            assert_same(result.pair_scores[name], expected.pair_scores[name], device, name)
        for protocol, reduction in expected.reductions.items():
            assert_same(result.reductions[protocol].delta_pc, reduction.delta_pc, device, protocol)
        assert result.metrics == pytest.approx(expected.metrics, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("make", NETS)
@pytest.mark.parametrize("group", ["gradients", "others"])
def test_every_method(make: str, group: str) -> None:
    by_gradients = [
        *("saliency", "guided_backprop", "integrated_gradients", "attention_gradient"),
        *("gnn_explainer", "pg_explainer", "graph_mask"),
    ]
    names = by_gradients if group == "gradients" else [name for name in METHODS if name not in by_gradients]
    on_accelerators(compare_methods, make, names, group == "others")


def compare_engines(rank: int) -> None:
    for make in NETS.values():
        for protocol in PROTOCOLS:
            for engine in (ExactReducer, CopiesReducer):
                compare_reductions(make, protocol, engine)


def compare_reductions(make: Callable[[], nn.Module], protocol: str, engine: type) -> None:
    def reduction_on(where: torch.device | str) -> Reduction:
        graph = small_graph().to(where)
        subject = Subject.of(make().to(where), graph.x, graph.edge_index)
        reduction: Reduction = engine(subject).record().reduce(subject_pairs(subject, TARGETS), PROTOCOLS[protocol])
        return reduction

    expected = reduction_on("cpu")
    with accelerator() as device:
        reduction = reduction_on(device)
        assert_same(reduction.delta_pc, expected.delta_pc, device, protocol)
        assert_same(reduction.delta_ne, expected.delta_ne, device, protocol)
        assert_same(reduction.changed, expected.changed, device, protocol)


def test_reductions() -> None:
    on_accelerators(compare_engines)


def compare_penalties(rank: int) -> None:
    """The term that each penalty adds to the loss, and the gradients of both."""

    def gradients(name: str, where: torch.device | str) -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(0)
        penalty = TrueEdges(truth=truth(), share=0.9) if name == "true_edges" else PENALTIES[name]()
        penalties, model, graph = AttentionPenalties([penalty]), net().to(where).train(), small_graph().to(where)
        with penalties.watch(model) as watched:
            output = model(graph.x, graph.edge_index)
        term = watched.penalty(output, graph)
        (nn.functional.cross_entropy(output, graph.y) + term).backward()
        return term, [weight.grad for weight in model.parameters() if weight.grad is not None]

    for name in PENALTIES:
        expected_term, expected = gradients(name, "cpu")
        with accelerator() as device:
            term, moved = gradients(name, device)
            assert_same(term, expected_term, device, name)
            assert len(moved) == len(expected) > 0
            for one, other in zip(moved, expected, strict=True):
                assert_same(one, other, device, name)


def test_penalties() -> None:
    on_accelerators(compare_penalties)


def compare_explanations(rank: int, folder: Path) -> None:
    for make in NETS.values():
        expected = attree.explain(make(), small_graph(), 3)
        checks = attree.attention_tests(make(), small_graph(), TARGETS, labels=small_graph().y, steps=5)
        with accelerator() as device:
            graph = small_graph().to(device)
            explanation = attree.explain(make().to(device), graph, 3)
            assert str(explanation) == str(expected)
            explanation.page(folder / "page.html")
            explanation.plot()
            moved = attree.attention_tests(make().to(device), graph, TARGETS, labels=graph.y, steps=5)
            assert moved.to_dict() == pytest.approx(checks.to_dict(), abs=1e-6, nan_ok=True)


def test_explain_and_tests_of_attention(tmp_path: Path) -> None:
    on_accelerators(compare_explanations, tmp_path)
    assert (tmp_path / "page.html").exists()


class Places(Callback):
    """Notes where weights, their gradients and batches are in each step."""

    def __init__(self) -> None:
        self.devices: set[torch.device] = set()

    def on_before_optimizer_step(self, trainer: Trainer, module: LightningModule, optimizer: Any) -> None:
        for weight in module.parameters():
            assert weight.grad is not None
            self.devices |= {weight.device, weight.grad.device}

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, number: int) -> None:
        self.devices.add(batch.x.device)


def fit(where: torch.device | str, folder: Path, resume: Path | None = None) -> tuple[dict[str, float], Path]:
    """Three epochs of attree's module with penalties, every epoch explained; or the last of them, resumed."""
    seed_everything(0)
    data = Infection(num_nodes=120, edge_probability=0.01, num_layers=2, seed=3)
    module, places = NodeClassifier(GAT(data.num_features, data.num_classes, num_layers=2)), Places()
    on_host = where == "cpu"
    trainer = Trainer(
        max_epochs=3,
        log_every_n_steps=1,
        accelerator="cpu" if on_host else "auto",
        strategy=SingleDeviceStrategy(device=where, accelerator=None if on_host else PretendedAccelerator()),
        callbacks=[
            ExplainCallback(num_targets=5, figures=0 if on_host else 1),
            AttentionPenaltyCallback({"entropy": 0.1, "true_edges": 0.5}),
            places,
        ],
        logger=TensorBoardLogger(folder, name="host" if on_host else "away"),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=data, ckpt_path=resume)
    assert places.devices == {torch.device(where)}
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert trainer.checkpoint_callback is not None
    numbers = {name: value for name, value in logged.items() if not name.endswith("seconds")}
    return numbers, Path(trainer.checkpoint_callback.best_model_path)  # type: ignore[attr-defined]


def compare_fits(rank: int, folder: Path) -> None:
    expected, _ = fit("cpu", folder)
    with accelerator() as device:
        numbers, checkpoint = fit(device, folder)
        assert "explain/gatt/removal/within_pearson" in numbers
        assert numbers == pytest.approx(expected, abs=1e-6, nan_ok=True)
        assert list(folder.glob("away/**/page.html"))
    saved = torch.load(checkpoint, weights_only=False)["state_dict"]
    assert {weight.device for weight in saved.values()} == {torch.device("cpu")}


def test_a_fit_with_penalties_and_explanations(tmp_path: Path) -> None:
    on_accelerators(compare_fits, tmp_path)


def pair_columns(rank: int, where: torch.device | str) -> PairColumns:
    """The pairs of one of two processes: four pairs or six."""
    generator, size = torch.Generator().manual_seed(rank), 4 + 2 * rank
    values = torch.rand(5, size, generator=generator).to(where)
    owner = torch.arange(size).to(where) // 2 * 2 + rank
    deltas = {"removal": (values[1].double(), values[2].double(), values[3] > 0.5)}
    return PairColumns(owner, {"gatt": values[0]}, deltas, values[4] > 0.5)


def compare_messages(rank: int, folder: Path) -> None:
    """What two processes with an accelerator each gather is what one process has; metrics are synchronised there."""
    with accelerator() as device:
        dist.init_process_group(ACCELERATOR, init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(torch.ones(1))
        columns = gathered(pair_columns(rank, device))
        assert gathered(None) is None
        mine = pair_columns(rank, device)
        exchange, column = Exchange(len(mine.owner), device), mine.deltas["removal"][0]
        whole, at_first = exchange.everywhere(column), exchange.joined(column, 0)
        assert torch.equal(at_first.cpu(), whole.cpu() if rank == 0 else whole.cpu()[:0])
        assert exchange.summed(torch.tensor([1.0, float(rank)])).tolist() == [2.0, 1.0]
        metrics = {"pearson": Pearson(), "kendall": Kendall(), "auroc": AUROC()}
        comparison = FaithfulnessComparison(["gatt"]).to(device)
        comparison.update(mine.scores, *mine.deltas["removal"])
        for name, metric in metrics.items():
            metric.to(device).update(mine.scores["gatt"], mine.deltas["removal"][2 if name == "auroc" else 0])
        values = {name: metric.compute() for name, metric in metrics.items()}
        values |= {f"gatt/{name}": value for name, value in comparison.compute()["gatt"].items()}
        assert all(value.device == device for value in values.values())
        dist.barrier()
        dist.destroy_process_group()
    if rank > 0:
        assert columns is None
        return
    parts = [pair_columns(0, "cpu"), pair_columns(1, "cpu")]
    order = torch.cat([part.owner for part in parts]).argsort(stable=True)
    scores = torch.cat([part.scores["gatt"] for part in parts])[order]
    pc, ne, changed = (torch.cat([part.deltas["removal"][place] for part in parts])[order] for place in range(3))
    assert columns is not None
    torch.testing.assert_close(columns.scores["gatt"], scores, rtol=0, atol=0)
    for column, other in zip(columns.deltas["removal"], (pc, ne, changed), strict=True):
        torch.testing.assert_close(column, other, rtol=0, atol=0)
    assert columns.labels is not None
    assert columns.owner.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 5, 5]
    alone_metrics = {"pearson": Pearson(), "kendall": Kendall(), "auroc": AUROC()}
    for name, metric in alone_metrics.items():
        metric.update(scores, changed if name == "auroc" else pc)
        assert float(values[name].cpu()) == pytest.approx(float(metric.compute()), abs=1e-6)


def test_messages_between_processes(tmp_path: Path) -> None:
    on_accelerators(compare_messages, tmp_path, processes=2)


def compare_parts(rank: int, run: Path, more: dict[str, Any]) -> None:
    """The rows, parts and fingerprint of a call of `attree explain` whose workers have an accelerator."""
    methods = ["gatt", "random"] if more.get("by_neighbourhood") else ["gatt", "random", "saliency"]
    with accelerator() as device:
        call = ExplainCall(run, methods=methods, part_rows=500, out=run / "out", **{"targets": "0-29", **more})
        missing_parts(call)
        opened, moved = OpenCall(call), OpenCall(replace(call, device=ACCELERATOR))
        assert moved.explained.subject.device == device
        assert moved.bounds == opened.bounds
        for begin, end in opened.bounds:
            assert moved.explained.table(begin, end).equals(opened.explained.table(begin, end))
        moved.parts.check()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"protocols": []},
        {"protocols": [], "by_neighbourhood": True},
        {"targets": "errors:9"},
        {"targets": "truth:9"},
    ],
)
def test_parts_of_a_run(more: dict[str, Any], tmp_path: Path) -> None:
    on_accelerators(compare_parts, fit_tiny(tmp_path), more)
