"""Everything stays on the device of the model and its data, shown on devices that are not there.

What needs gradients (GNNExplainer, fits, ...) is shown in test_pretend_accelerator.py, on a device with a driver.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT as PyGGAT
from torch_geometric.nn import global_mean_pool

import attree
from attree.attention import capture_attention
from attree.attribution import GAttExplainer, make_methods, subject_pairs
from attree.callbacks import ExplainCallback
from attree.data import GroundTruth
from attree.defaults import RESOLUTION_FLOAT32
from attree.evaluation import Evaluation
from attree.faithfulness import PROTOCOLS, CopiesReducer, ExactReducer, reduce_attention
from attree.metrics import AUROC, FaithfulnessComparison, Kendall, Pearson, Spearman, TruthAUROC
from attree.models import GAT
from attree.penalties import PenalizedStep, TrueEdges
from attree.subject import Subject
from attree.tensors import precision
from helpers.graphs import NODES, messy_graph, randomize
from helpers.pretend_device import Elsewhere, PretendedAccelerator, frozen, pretend

TARGETS = [0, 3, 9]
ROUNDING = RESOLUTION_FLOAT32 / 2 + 1e-5
"""How far an effect measured in float32 is from one in float64: half a step of its resolution, and rounding errors."""


@pytest.fixture(params=["xla", "mps"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A device that has float64, and one that raises on it."""
    with pretend(request.param) as device, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Devices of type mps have no float64")
        yield device


def small_graph() -> Data:
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(NODES, 5, generator=generator), torch.randint(0, 3, (NODES,), generator=generator)
    return Data(x=x, edge_index=messy_graph(0), y=y)


def net() -> nn.Module:
    return frozen(randomize(GAT(5, 3, hidden_channels=4, num_layers=2, heads=2), seed=1))


def stacked() -> nn.Module:
    """A net of PyG, with what stands beside attention."""
    return frozen(randomize(PyGGAT(5, 8, 2, 3, jk="cat", norm="batch", heads=2), seed=2, scale=0.5))


class GraphNet(nn.Module):
    """One row of logits per graph."""

    def __init__(self) -> None:
        super().__init__()
        self.gnn = PyGGAT(5, 8, 2)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.out(global_mean_pool(self.gnn(x, edge_index), batch))


def assert_same(found: Tensor, expected: Tensor, device: torch.device, tolerance: float | None = None) -> None:
    """The numbers of the host, on the device, in the type of the host unless that is too wide for it."""
    assert found.device == device
    if tolerance is None:
        tolerance = 1e-5 if found.dtype == torch.float32 else 1e-9
    torch.testing.assert_close(found.cpu().double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def assert_metrics(found: Evaluation, expected: Evaluation, device: torch.device) -> None:
    """The metrics of the host; where effects are rounded to a coarser step, as near as that leaves them."""
    if device.type != "mps":
        assert found.metrics == pytest.approx(expected.metrics, abs=1e-6, nan_ok=True)
        return
    # Ranks of changes that float32 cannot tell from none differ a little.
    assert found.metrics == pytest.approx(expected.metrics, abs=0.05, nan_ok=True)
    for protocol, reduction in expected.reductions.items():
        for measure, effects in (("pc", reduction.delta_pc), ("ne", reduction.delta_ne)):
            # Noise of size h moves a correlation with values of standard deviation s by at most 2 h / s.
            bound = 2 * ROUNDING / float(effects.std(correction=0))
            names = [name for name in expected.metrics if name.endswith(f"/{protocol}/{measure}_pearson")]
            for name in names:
                assert found.metrics[name] == pytest.approx(expected.metrics[name], abs=bound), name


def test_tensors_of_two_devices_do_not_meet(device: torch.device) -> None:
    x, y = torch.arange(4, device=device).float(), torch.ones(4)
    assert isinstance(x, Elsewhere)
    for meet in (
        lambda: x + y,
        lambda: y.add_(x),
        lambda: y[x.long()],
        lambda: x[y.long()],
        lambda: torch.cat([y, x]),
        lambda: x.__setitem__(slice(0, 4), y),
        lambda: x.uniform_(generator=torch.Generator()),
    ):
        with pytest.raises(RuntimeError, match="Expected"):
            meet()
    for read in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="are no arrays"):
            read()
    assert type(x.cpu()) is Tensor
    assert x.cpu().numpy().tolist() == x.tolist() == [0, 1, 2, 3]
    assert (float(x[2]), int(x.sum()), bool(x.all())) == (2, 6, False)


def test_tensors_are_made_moved_and_changed_there(device: torch.device) -> None:
    x = torch.as_tensor([1.0, 2.0, 3.0], device=device)
    for made in (x.new_tensor([1]), torch.ones(2, device=device), x + torch.tensor(1.0), torch.ones(3).to(x), x > 1):
        assert made.device == device
    x[1:].mul_(2)
    x[x > 5] = 0
    assert x.tolist() == [1, 4, 0]
    x.copy_(torch.ones(3))
    on_host = x.cpu().add_(1)
    assert (x.tolist(), on_host.tolist()) == ([1, 1, 1], [2, 2, 2])
    layer = frozen(nn.Linear(3, 2)).to(device)
    assert isinstance(layer.weight, nn.Parameter)
    assert layer(x.unsqueeze(0)).device == device


def test_mps_has_no_float64() -> None:
    with pretend("mps") as device:
        for make in (
            lambda: torch.zeros(2, dtype=torch.float64, device=device),
            lambda: torch.zeros(2, device=device).double(),
            lambda: torch.zeros(2, dtype=torch.float64).to(device),
        ):
            with pytest.raises(TypeError, match=r"has no torch\.float64"):
                make()


def test_float32_is_said_once() -> None:
    precision._warn_float32.cache_clear()
    with pretend("mps") as device, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        graph, model = small_graph().to(device), net().to(device)
        for _ in range(2):
            result = attree.evaluate(model, graph, TARGETS, ["gatt"])
    assert result.reductions["removal"].delta_pc.dtype == torch.float32
    assert [str(one.message)[:36] for one in said if "float64" in str(one.message)] == [
        "Devices of type mps have no float64:"
    ]


@pytest.mark.parametrize("make", [net, stacked])
def test_capture(make: Any, device: torch.device) -> None:
    graph = small_graph()
    expected = capture_attention(make(), graph.x, graph.edge_index)
    graph = graph.to(device)
    found = capture_attention(make().to(device), graph.x, graph.edge_index)
    for one, other in zip(found.weights, expected.weights, strict=True):
        assert_same(one, other, device)
    assert_same(found.output, expected.output, device)
    assert_same(found.graph.entering_rank, expected.graph.entering_rank, device)
    assert found.graph.matches(graph.edge_index, NODES)
    assert not expected.graph.matches(graph.edge_index, NODES)


@pytest.mark.parametrize("name", ["gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform", "random"])
def test_attribution(name: str, device: torch.device) -> None:
    graph = small_graph()
    (method,) = make_methods([name]).values()
    host = Subject.of(net(), graph.x, graph.edge_index)
    expected, pairs = method.attribute(host, "all"), subject_pairs(host, TARGETS)
    scores = method.score_pairs(host, pairs)
    graph = graph.to(device)
    away = Subject.of(net().to(device), graph.x, graph.edge_index)
    found, pairs_found = method.attribute(away, "all"), subject_pairs(away, torch.tensor(TARGETS))
    assert_same(found.edges, expected.edges, device)
    assert_same(found.scores, expected.scores, device)
    assert_same(found.edge_mask(3), expected.edge_mask(3), device)
    assert_same(pairs_found.edges, pairs.edges, device)
    assert_same(pairs_found.flow, pairs.flow, device)
    assert_same(method.score_pairs(away, pairs_found), scores, device)
    np.testing.assert_allclose(found.to_pandas()["score"], expected.to_pandas()["score"], rtol=1e-5, atol=1e-6)


def test_explainer_of_pyg(device: torch.device) -> None:
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    graph = small_graph()

    def mask(model: nn.Module, data: Data) -> Tensor:
        explainer = Explainer(
            model, GAttExplainer(), explanation_type="model", edge_mask_type="object", model_config=config
        )
        return explainer(data.x, data.edge_index, index=3).edge_mask

    expected = mask(net(), graph)
    assert_same(mask(net().to(device), graph.to(device)), expected, device)


@pytest.mark.parametrize(
    "protocol", [pytest.param(one, marks=[] if one == "removal" else pytest.mark.long) for one in PROTOCOLS]
)
@pytest.mark.parametrize("engine", [ExactReducer, CopiesReducer])
@pytest.mark.parametrize("make", [net, stacked])
def test_reduction(make: Any, engine: type, protocol: str, device: torch.device) -> None:
    graph = small_graph()
    pairs = subject_pairs(Subject.of(make(), graph.x, graph.edge_index), TARGETS)
    expected = reduce_attention(make(), graph.x, graph.edge_index, pairs, protocol, with_probability=True)
    graph, model = graph.to(device), make().to(device)
    pairs = subject_pairs(Subject.of(model, graph.x, graph.edge_index), TARGETS)
    recorded = engine(Subject.of(model, graph.x, graph.edge_index)).record()
    found = recorded.reduce(pairs, PROTOCOLS[protocol], with_probability=True)
    # Copies run in the model's own float32, exact updates in the widest type that there is.
    tolerance = ROUNDING if device.type == "mps" else 1e-9 if engine is ExactReducer else 1e-5
    assert found.delta_pc.dtype == (torch.float32 if device.type == "mps" else torch.float64)
    assert_same(found.delta_pc, expected.delta_pc, device, tolerance)
    assert_same(found.delta_ne, expected.delta_ne, device, tolerance)
    assert_same(found.probability, expected.probability, device, tolerance)
    assert_same(found.changed, expected.changed, device)


@pytest.mark.parametrize("metric", [Pearson, Spearman, Kendall, AUROC, TruthAUROC])
def test_metrics(metric: type, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, other = torch.rand(2, 40, generator=generator)
    target = other > 0.5 if issubclass(metric, AUROC | TruthAUROC) else other

    def value(where: torch.device | str) -> Tensor:
        made = metric().to(where)
        for part in (slice(0, 25), slice(25, 40)):
            made.update(scores[part].to(where), target[part].to(where))
        return made.compute()

    assert_same(value(device), value("cpu"), device, tolerance=1e-6)


def test_comparison_of_methods(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    one, other, pc, ne = torch.rand(4, 40, generator=generator)

    def values(where: torch.device | str) -> dict[str, dict[str, Tensor]]:
        made = FaithfulnessComparison(["one", "other"], fixed=["other"]).to(where)
        made.update({"one": one.to(where), "other": other.to(where)}, pc.to(where), ne.to(where), (pc > 0.6).to(where))
        made.compute()
        return made.compute()

    found, expected = values(device), values("cpu")
    for method, statistics in expected.items():
        for name, value in statistics.items():
            assert_same(found[method][name], value, device, tolerance=1e-6)


def test_integers_that_float32_rounds_are_refused() -> None:
    with pretend("mps") as device, pytest.raises(ValueError, match=r"below 2\*\*24 in magnitude"):
        Kendall().update(torch.tensor([2**24 + 1, 0], device=device), torch.tensor([0.0, 1.0], device=device))


@pytest.mark.parametrize("make", [net, stacked])
def test_evaluate(make: Any, device: torch.device, tmp_path: Path) -> None:
    graph = small_graph()
    entering = graph.edge_index[:, graph.edge_index[1] == 0]
    truth = GroundTruth(torch.tensor([0]), entering[:, :3], torch.tensor([0, 3]))
    methods, protocols = ["gatt", "avgatt", "random"], ["weight", "removal"]
    expected = attree.evaluate(make(), graph, None, methods, protocols, truth, num_targets=6)
    found = attree.evaluate(make().to(device), graph.to(device), None, methods, protocols, truth, num_targets=6)
    assert_metrics(found, expected, device)
    assert found.scores["gatt"].scores.device == found.reductions["removal"].delta_pc.device == device
    assert len(found.to_pandas()) == len(expected.to_pandas())
    found.plot()
    found.save(tmp_path)
    assert any(tmp_path.iterdir())


@pytest.mark.parametrize("readout", ["mean", "max"])
def test_evaluate_graphs(readout: Any, device: torch.device) -> None:
    graphs = Batch.from_data_list([Data(x=small_graph().x, edge_index=messy_graph(seed)) for seed in range(3)])

    def evaluated(where: torch.device | str) -> Evaluation:
        model = frozen(randomize(GraphNet(), seed=3)).to(where)
        batch = graphs.clone().to(where)
        return attree.evaluate(model, batch, "all", ["gatt", "avgatt"], "removal", readout=readout)

    assert_metrics(evaluated(device), evaluated("cpu"), device)


class Untrained(LightningModule):
    """Steps that change no weight, as there are no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = net()
        self.seen: set[torch.device] = set()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(x, edge_index)

    def training_step(self, batch: Data, number: int) -> None:
        self.seen |= {self.device, batch.x.device, self.net(batch.x, batch.edge_index).device}

    def validation_step(self, batch: Data, number: int) -> None:
        self.log("val/mean", self.net(batch.x, batch.edge_index).mean(), batch_size=1)

    def configure_optimizers(self) -> None:
        return None


@pytest.mark.long
def test_callback(device: torch.device, tmp_path: Path) -> None:
    def fit(where: torch.device | str) -> dict[str, float]:
        accelerator = None if where == "cpu" else PretendedAccelerator()
        strategy = SingleDeviceStrategy(device=where, accelerator=accelerator)
        trainer = Trainer(
            max_epochs=1,
            log_every_n_steps=1,
            strategy=strategy,
            accelerator="cpu" if where == "cpu" else "auto",
            callbacks=[ExplainCallback(num_targets=4, figures=0 if where == "cpu" else 1)],
            logger=TensorBoardLogger(tmp_path, name=str(where).replace(":", "_")),
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        module, loader = Untrained(), DataLoader([small_graph()])
        trainer.fit(module, loader, loader)
        assert module.seen == {torch.device(where)}
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        return {name: value for name, value in logged.items() if not name.endswith("seconds")}

    found, expected = fit(device), fit("cpu")
    assert "explain/gatt/weight/pc_pearson" in found
    assert list(tmp_path.rglob("*.npz"))
    assert list(tmp_path.rglob("*.png"))
    assert list(tmp_path.rglob("page.html"))
    # On a device without float64, effects are rounded to a coarser step, and ranks of the smallest differ a little.
    assert found == pytest.approx(expected, abs=0.05 if device.type == "mps" else 1e-6, nan_ok=True)


@pytest.mark.parametrize("make", [net, stacked])
def test_explain_one_prediction(make: Any, device: torch.device, tmp_path: Path) -> None:
    graph = small_graph()
    expected = attree.explain(make(), graph, 3)
    found = attree.explain(make().to(device), graph.to(device), 3)
    ours, theirs = found.to_pandas(), expected.to_pandas()
    assert list(ours.columns) == list(theirs.columns)
    edges = ["source", "destination"]
    ours, theirs = (table.sort_values(edges).reset_index(drop=True) for table in (ours, theirs))
    for column in theirs.select_dtypes("number"):
        np.testing.assert_allclose(ours[column], theirs[column], atol=1e-4, err_msg=column)
    assert str(found).splitlines()[0] == str(expected).splitlines()[0]
    found.page(tmp_path / "page.html")
    found.plot()
    assert set(found.to_networkx().edges) == set(expected.to_networkx().edges)


def test_sets_of_edges(device: torch.device) -> None:
    graph = small_graph()
    truth = GroundTruth(torch.tensor([0]), graph.edge_index[:, graph.edge_index[1] == 0][:, :3], torch.tensor([0, 3]))
    options: dict[str, Any] = {"methods": ["gatt", "random"], "protocols": "removal", "truth": truth, "sets": True}
    expected = attree.evaluate(net(), graph, TARGETS, **options)
    found = attree.evaluate(net().to(device), graph.to(device), TARGETS, **options)
    assert_metrics(found, expected, device)
    assert str(found)


def test_tests_of_attention(device: torch.device) -> None:
    """All but the search for another attention, which needs gradients."""
    graph = small_graph()
    expected = attree.attention_tests(net(), graph, TARGETS, labels=graph.y, steps=0)
    found = attree.attention_tests(net().to(device), graph.to(device), TARGETS, labels=graph.y.to(device), steps=0)
    assert found.to_dict() == pytest.approx(expected.to_dict(), abs=1e-4, nan_ok=True)


def test_supervision_with_true_edges(device: torch.device) -> None:
    graph = small_graph()
    graph.train_mask = torch.ones(NODES, dtype=torch.bool)
    truth = GroundTruth(torch.tensor([0]), graph.edge_index[:, graph.edge_index[1] == 0][:, :3], torch.tensor([0, 3]))

    def value(where: torch.device | str) -> Tensor:
        data, model = graph.clone().to(where), net().to(where)
        attention = capture_attention(model, data.x, data.edge_index)
        return TrueEdges(truth=truth, share=0.9).measure_step(PenalizedStep(attention, model, data))

    assert_same(value(device), value("cpu"), device)
