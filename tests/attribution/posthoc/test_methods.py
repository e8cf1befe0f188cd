"""What holds for every post-hoc method: right answers that are known, nothing left behind, any model, any mode."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, TransformerConv, global_mean_pool

import attree
from attree.attribution import (
    METHODS,
    AttributionMethod,
    FastDnX,
    GNNExplainer,
    GraphMask,
    GuidedBackprop,
    IntegratedGradients,
    PGExplainer,
    Saliency,
    subject_pairs,
)
from attree.errors import AttreeError
from attree.evaluation import Evaluation
from attree.models import GAT, GATv2, SuperGAT
from attree.subject import Head, Subject
from helpers.attention_models import snapshot
from helpers.graphs import NODES, messy_graph, randomize

X = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0))
EDGES = messy_graph(0)


def quick() -> list[AttributionMethod]:
    """Every method, with little training."""
    return [
        Saliency(),
        GuidedBackprop(),
        IntegratedGradients(steps=5),
        GNNExplainer(epochs=3),
        PGExplainer(epochs=2, num_train=4),
        GraphMask(epochs=3),
        FastDnX(epochs=5),
    ]


ids = [method.name for method in quick()]


class Copycat(nn.Module):
    """Passes on feature 0 over two attention layers whose scores are all equal: class 1 iff enough of it arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATConv(2, 2, bias=False), GATConv(2, 2, bias=False)
        with torch.no_grad():
            for conv in (self.first, self.second):
                conv.att_src.zero_()
                conv.att_dst.zero_()
                conv.lin.weight.copy_(torch.eye(2))
            self.second.lin.weight.copy_(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index), edge_index) + torch.tensor([0.4, -0.4])


@pytest.fixture(scope="module")
def stars() -> tuple[Subject, dict[int, int]]:
    """Stars: the centre is of class 1 iff one of its leaves has the feature. Gives the edge of that leaf by centre."""
    count, leaves = 16, 4
    size = leaves + 1
    x = torch.tensor([0.0, 1.0]).repeat(count * size, 1)
    edges, evidence = [], {}
    for star in range(count):
        centre = star * size
        edges += [(centre + 1 + leaf, centre) for leaf in range(leaves)]
        if star % 2 == 0:
            marked = star // 2 % leaves
            x[centre + 1 + marked] = torch.tensor([3.0, 0.0])
            evidence[centre] = star * leaves + marked
    subject = Subject.of(Copycat().eval(), x, torch.tensor(edges).T)
    predicted = subject.attention.output.argmax(dim=1)
    assert all(int(predicted[centre]) == 1 for centre in evidence)
    assert int(predicted[size]) == 0
    return subject, evidence


@pytest.mark.parametrize(
    "method",
    [
        *(Saliency(), GuidedBackprop(), IntegratedGradients(), GNNExplainer(epochs=100, lr=0.05, edge_size=0.05)),
        *(PGExplainer(epochs=20, lr=0.01, edge_size=0.2), GraphMask(), FastDnX()),
    ],
    ids=ids,
)
def test_an_edge_that_carries_all_the_evidence_scores_highest(
    method: AttributionMethod, stars: tuple[Subject, dict[int, int]]
) -> None:
    subject, evidence = stars
    pairs = subject_pairs(subject, list(evidence))
    scores = method.score_pairs(subject, pairs)
    proper = pairs.edges < subject.graph.num_proper_edges
    for position, (centre, edge) in enumerate(evidence.items()):
        own = (pairs.owner == position) & proper
        assert own.sum() == 4
        assert int(pairs.edges[own][scores[own].argmax()]) == edge, centre


class Interrupted(RuntimeError):
    """Raised in the middle of a method."""


class Stumbling(nn.Module):
    """Fails after some calls."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.left = net, 10**9

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise Interrupted
        return self.net(x, edge_index)


def everything(model: nn.Module) -> list[Any]:
    flags = [
        (module.explain, module._edge_mask, module._loop_mask, module._apply_sigmoid, module._user_args)
        for module in model.modules()
        if isinstance(module, GATConv)
    ]
    return [*snapshot(model), flags, torch.get_rng_state().tolist(), torch.is_grad_enabled()]


@pytest.mark.parametrize("method", quick(), ids=ids)
def test_nothing_is_left_behind(method: AttributionMethod) -> None:
    net = randomize(GAT(5, 3, 4, heads=2, dropout=0.5, attention_dropout=0.5), 1)
    net.train()
    net.convs[0].eval()
    net.convs[1].bias.requires_grad_(False)
    net.convs[0].bias.grad = torch.ones_like(net.convs[0].bias)
    before = everything(net)
    method.attribute(Subject.of(net, X, EDGES), [0, 3])
    assert everything(net) == before


@pytest.mark.parametrize("method", quick(), ids=ids)
@pytest.mark.parametrize("calls", [0, 1])
def test_nothing_is_left_behind_by_an_exception(method: AttributionMethod, calls: int) -> None:
    model = Stumbling(randomize(GAT(5, 3, 4, heads=2), 1)).train()
    subject = Subject.of(model, X, EDGES)
    pairs = subject_pairs(subject, [0, 3])
    if method.name == "fastdnx":
        # It never calls the model again: what the model returned is what can fail.
        object.__setattr__(subject.attention, "output", "not scores")
    stumbling = subject.model
    assert isinstance(stumbling, Stumbling)
    stumbling.left = calls if method.name not in ("saliency", "guided_backprop") else 0
    before = everything(model), everything(stumbling)
    with pytest.raises((Interrupted, AttreeError)):
        method.score_pairs(subject, pairs)
    stumbling.left = calls if method.name not in ("saliency", "guided_backprop") else 0
    assert (everything(model), everything(stumbling)) == before


def test_methods_do_not_disturb_one_another() -> None:
    net = randomize(GAT(5, 3, 4, heads=2), 1)
    alone = {method.name: method.attribute(Subject.of(net, X, EDGES), [0, 3]).scores for method in quick()}
    subject = Subject.of(net, X, EDGES)
    for method in [*quick(), *reversed(quick())]:
        assert torch.equal(method.attribute(subject, [0, 3]).scores, alone[method.name]), method.name


class Resting(nn.Module):
    """A user's net: no added self-loops, edge attributes, a norm in eval mode, an MLP head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GATConv(5, 4, heads=3, edge_dim=2, add_self_loops=False)
        self.norm = nn.BatchNorm1d(12)
        self.second = TransformerConv(12, 4, heads=2, edge_dim=2)
        self.head = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = F.elu(self.norm(self.first(x, edge_index, edge_attr)))
        return self.head(self.second(x, edge_index, edge_attr))


@pytest.mark.parametrize("method", quick(), ids=ids)
def test_every_net_and_heads(method: AttributionMethod) -> None:
    nets = [GAT(5, 3, 4, heads=3), GATv2(5, 3, 4, 3, heads=2, concat=False), SuperGAT(5, 3, 4, heads=2)]
    subjects = [Subject.of(randomize(net, 1), X, EDGES) for net in nets]
    subjects.append(Subject.of(Resting(), X, EDGES, edge_attr=torch.randn(EDGES.shape[1], 2)))
    for subject in subjects:
        pairs = subject_pairs(subject, [0, 4, 10])
        scores = method.score_pairs(subject, pairs)
        assert scores.shape == (len(pairs),)
        assert bool(scores.isfinite().all())
        assert int(scores.unique().numel()) > 3


@pytest.mark.parametrize("method", [method for method in quick() if method.name != "fastdnx"], ids=lambda m: m.name)
def test_graphs_of_a_batch(method: AttributionMethod) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.conv2 = GATConv(5, 4, heads=2), GATConv(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, batch_size: int) -> Tensor:
            return global_mean_pool(self.conv2(F.elu(self.conv(x, edge_index)), edge_index), batch, batch_size)

    batch = Batch.from_data_list([Data(x=X + k, edge_index=messy_graph(k)) for k in range(3)])
    subject = Subject.of_data(randomize(Net(), 1), batch, readout="mean")
    result = method.attribute(subject, [2, 0])
    assert result.targets.tolist() == [2, 0]
    pairs = subject_pairs(subject, [2, 0])
    scores = method.score_pairs(subject, pairs)
    assert bool(scores.isfinite().all())
    assert float(scores.abs().max()) > 0
    for target in (2, 0):
        assert batch.batch[result.graph.source[result[target].edges]].unique().tolist() == [target]


@pytest.mark.parametrize("method", quick(), ids=ids)
def test_inside_lightning_s_test(method: AttributionMethod) -> None:
    """There, inference mode is on: scores are those of outside."""
    net = randomize(GAT(5, 3, 4, heads=2), 1)
    expected = copy.deepcopy(method).attribute(Subject.of(net, X, EDGES), [0, 3]).scores
    seen: list[Tensor] = []

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def test_step(self, batch: Tensor, batch_idx: int) -> None:
            assert torch.is_inference_mode_enabled()
            inputs = X + 0, EDGES + 0  # made here, these are inference tensors
            assert inputs[0].is_inference()
            seen.append(method.attribute(Subject.of(self.net, *inputs), [0, 3]).scores)
            assert torch.is_inference_mode_enabled()

    trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    trainer.test(Module(), DataLoader(torch.zeros(1)), verbose=False)
    assert torch.allclose(seen[0], expected, atol=1e-6)


def test_a_model_made_in_inference_mode() -> None:
    with torch.inference_mode():
        net = randomize(GAT(5, 3, 4, heads=2), 1)
        made = Saliency().attribute(Subject.of(net, X, EDGES), 0).scores
    assert net.convs[0].lin.weight.is_inference()
    assert torch.equal(made, Saliency().attribute(Subject.of(randomize(GAT(5, 3, 4, heads=2), 1), X, EDGES), 0).scores)


@pytest.mark.parametrize("method", [PGExplainer(epochs=2, num_train=4), GraphMask(epochs=3), FastDnX(epochs=5)])
def test_training_happens_once_for_the_present_weights(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert method.needs_training
    fits: list[Subject] = []
    fit = type(method).fit

    def counted(self: Any, subject: Subject) -> Any:
        fits.append(subject)
        return fit(self, subject)

    monkeypatch.setattr(type(method), "fit", counted)
    net = randomize(GAT(5, 3, 4), 1)
    subject = Subject.of(net, X, EDGES)
    first = method.attribute(subject, [0]).scores
    assert torch.equal(method.attribute(subject, [0]).scores, first)
    method.attribute(subject, [3])
    assert len(fits) == 1
    with torch.no_grad():
        net.convs[0].lin.weight.mul_(-1)
    subject = subject.with_current_weights()
    assert not torch.equal(method.attribute(subject, [0]).scores, first)
    assert len(fits) == 2
    twin = pickle.loads(pickle.dumps(method))
    assert twin.settings() == method.settings()
    assert torch.equal(twin.attribute(subject, [0]).scores, method.attribute(subject, [0]).scores)


def test_settings_are_plain_and_say_the_defaults() -> None:
    assert METHODS["gnn_explainer"]().settings() == {
        "epochs": 100,
        "lr": 0.01,
        "edge_size": 0.005,
        "edge_ent": 1.0,
        "feature_mask": False,
        "seed": 0,
        "self_loops": False,
    }
    assert METHODS["fastdnx"].make(seed=4).settings()["seed"] == 4
    settings = METHODS["graph_mask"]().settings()
    assert (settings["epochs"], settings["penalty_scaling"], settings["allowance"]) == (100, 5.0, 0.03)
    assert METHODS["pg_explainer"]().settings()["lr"] == 0.003


def test_all_methods_in_one_evaluation(tmp_path: Path) -> None:
    net = randomize(GAT(5, 3, 4, heads=2), 1)
    graph = Data(x=X, edge_index=EDGES)
    result = attree.evaluate(net, graph, targets=[0, 3, 5], methods=["gatt", "uniform", *quick(), "random"])
    for method in quick():
        assert -1 <= result.metrics[f"explain/{method.name}/removal/pc_pearson"] <= 1
        assert result.settings[method.name] == method.settings()
    again = Evaluation.load(result.save(tmp_path))
    assert again.settings["gnn_explainer"]["epochs"] == 3


@pytest.mark.parametrize("method", quick(), ids=ids)
def test_models_of_numbers_are_explained_or_refused(method: AttributionMethod) -> None:
    subject = Subject.of(randomize(GAT(5, 1, 4, heads=2), 1), X, EDGES, head=Head(mode="regression"))
    if method.name == "fastdnx":
        with pytest.raises(AttreeError, match="a model of classes"):
            method.attribute(subject, [0])
        return
    scores = method.attribute(subject, [0, 3]).scores
    assert bool(scores.isfinite().all())
    assert float(scores.abs().max()) > 0


def test_probabilities_are_explained_by_their_logarithms() -> None:
    class Softmax(nn.Module):
        def __init__(self, net: nn.Module, log: bool) -> None:
            super().__init__()
            self.net, self.log = net, log

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            logits = self.net(x, edge_index)
            return logits.log_softmax(dim=1) if self.log else logits.softmax(dim=1)

    net = randomize(GAT(5, 3, 4, heads=2), 1)
    of_probabilities, of_logarithms = (
        Saliency().attribute(Subject.of(Softmax(net, log), X, EDGES)).scores for log in (False, True)
    )
    assert torch.allclose(of_probabilities, of_logarithms, atol=1e-5)


def test_refused_without_a_model() -> None:
    subject = Subject.of(GAT(5, 3, 4), X, EDGES)
    for method in quick():
        with pytest.raises(AttreeError, match="to have a model"):
            method.attribute(subject.attention, 0)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: IntegratedGradients(steps=0), "steps"),
        (lambda: GNNExplainer(epochs=0), "epochs"),
        (lambda: PGExplainer(lr=0), "lr"),
        (lambda: PGExplainer(num_train=0), "num_train"),
        (lambda: GraphMask(penalty_scaling=-1), "penalty_scaling"),
        (lambda: FastDnX(train_share=0), "train_share"),
    ],
)
def test_arguments_are_checked(make: Any, argument: str) -> None:
    with pytest.raises(AttreeError, match=f"`{argument}`"):
        make()


def test_one_subject_in_several_threads() -> None:
    subject = Subject.of(randomize(GAT(5, 3, 4, heads=2), 1), X, EDGES)
    methods = [Saliency(), GuidedBackprop(), IntegratedGradients(steps=5)] * 4
    alone = [method.attribute(subject).scores for method in methods]
    with ThreadPoolExecutor(len(methods)) as threads:
        together = list(threads.map(lambda method: method.attribute(subject).scores, methods))
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))
