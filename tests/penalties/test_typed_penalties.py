"""Penalties on heterogeneous graphs and on links: the same formulas, softmax by softmax, and the same promises."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from scipy.stats import pearsonr
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, HANConv
from torch_geometric.nn.conv import gat_conv, hgt_conv

from attree.attribution import GAtt, subject_pairs
from attree.data import GroundTruth, HeteroInfection
from attree.errors import ArgumentError, UnsupportedModelError
from attree.faithfulness import Reducer, resolve_protocol
from attree.models import GAT, HGT, HeteroClassifier, HeteroGAT, LinkPredictor
from attree.penalties import (
    PENALTIES,
    AttentionPenalties,
    AttentionPenaltyCallback,
    EffectConsistency,
    Entropy,
    PenalizedStep,
)
from attree.subject import Subject
from helpers.links import Blocks

SMALL: dict[str, Any] = {
    "num_people": 60,
    "num_mosquitoes": 40,
    "num_flies": 40,
    "meals": 3.0,
    "infected": 0.2,
    "num_val": 20,
}
QUIET: dict[str, Any] = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)
NETS = [HGT, HeteroGAT]
SHARP = (Entropy(),)


def people(seed: int = 0) -> HeteroInfection:
    return HeteroInfection(**SMALL, seed=seed)


def classifier(data: HeteroInfection, net: type[Any] = HGT, **arguments: Any) -> HeteroClassifier:
    torch.manual_seed(0)
    made = net(data.num_features, data.num_classes, hidden_channels=8, heads=2)
    return HeteroClassifier(made, lr=0.02, **arguments)


def train(model: LightningModule, data: Any, epochs: int = 20, **options: Any) -> Trainer:
    trainer = Trainer(max_epochs=epochs, accelerator="cpu", limit_val_batches=0, **QUIET, **options)
    torch.manual_seed(1)  # the pairs that are no edges are drawn
    trainer.fit(model, data)
    return trainer


def watched(model: Any, batch: Any, penalties: Any = SHARP) -> tuple[PenalizedStep, Tensor]:
    """The step of a model on a batch, with what the penalties add up to."""
    watcher = AttentionPenalties(penalties)
    with watcher.watch(model) as seen:
        if isinstance(batch, HeteroData):
            output = model(batch.x_dict, batch.edge_index_dict)
        else:
            output = model(batch.x, batch.edge_index, batch.edge_label_index)
    truth = people().truth if isinstance(batch, HeteroData) else None
    return PenalizedStep(seen.attention(output, batch), model, batch, truth), seen.penalty(output, batch, truth)


@contextmanager
def softmaxes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    """What PyG's softmax returned, [edges, heads], and the node that each of its edges enters, call by call."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    original = gat_conv.softmax

    def softmax(src: Tensor, index: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        weights: Tensor = original(src, index, *args, **kwargs)
        seen.append((weights.detach().numpy(), index.numpy()))
        return weights

    with monkeypatch.context() as patch:
        patch.setattr(gat_conv, "softmax", softmax)
        patch.setattr(hgt_conv, "softmax", softmax)
        yield seen


FORMULAS = {
    "entropy": lambda a: -(a * np.log(a)).sum() / np.log(len(a)),
    "uniform_distance": lambda a: ((a - 1 / len(a)) ** 2).sum() * len(a) / (len(a) - 1),
    "sparsity": lambda a: (np.sqrt(a).sum() ** 2 - 1) / (len(a) - 1),
}


@pytest.mark.parametrize("net", NETS)
def test_rows_are_what_one_softmax_weighs(net: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """HGT has one softmax for all relations that enter a node, HeteroGAT one for each of them."""
    data = people()
    graph, model = data.graph, classifier(data, net).double()
    for store in graph.node_stores:
        store.x = store.x.double()
    with softmaxes(monkeypatch) as seen:
        model(graph.x_dict, graph.edge_index_dict)
    relations = 1 if net is HGT else len(graph.edge_types)
    step, _ = watched(model, graph)
    attention = step.attention
    types = attention.graph.types
    assert types is not None
    assert len(seen) == 2 * relations
    for name, formula in FORMULAS.items():
        layers = []
        for layer, present in enumerate(attention.present):
            values = []
            for place, kind in enumerate(graph.edge_types if relations > 1 else [None]):
                if kind is not None and present is not None and not present[list(types.edges(kind))].any():
                    continue  # the output does not depend on this relation of this layer
                weights, index = seen[layer * relations + place]
                for node in np.unique(index):
                    row = weights[index == node]
                    values += [formula(row[:, head]) for head in range(2) if len(row) > 1]
            layers.append(np.mean(values))
        assert PENALTIES[name]().measure(attention).item() == pytest.approx(np.mean(layers), abs=1e-9)


STRONG: dict[str, dict[str, Any]] = {
    "entropy": {"strength": 5.0},
    "uniform_distance": {"strength": 10.0},
    "sparsity": {"strength": 5.0},
    "head_agreement": {"strength": 20.0},
    "true_edges": {"strength": 5.0, "share": 1.0},
    "gsat": {"strength": 10.0},
}


@pytest.mark.parametrize("name", STRONG)
@pytest.mark.parametrize("net", NETS)
def test_gradients_are_those_of_finite_differences(net: type[Any], name: str) -> None:
    """Along a random direction of all parameters, in training mode."""
    data = people()
    graph, model = data.graph, classifier(data, net).double().train()
    for store in graph.node_stores:
        store.x = store.x.double()
    parameters = list(model.net.convs.parameters())
    generator = torch.Generator().manual_seed(1)
    direction = [torch.randn(one.shape, generator=generator, dtype=torch.double) for one in parameters]

    def number(step: float) -> Tensor:
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for one, way in zip(moved.net.convs.parameters(), direction, strict=True):
                one += step * way
        return watched(moved, graph, {name: 1.0})[1]

    found = torch.autograd.grad(watched(model, graph, {name: 1.0})[1], parameters, allow_unused=True)
    along = sum(float((one * way).sum()) for one, way in zip(found, direction, strict=True) if one is not None)
    assert along == pytest.approx((number(1e-5) - number(-1e-5)).item() / 2e-5, rel=1e-5, abs=1e-9)
    assert along != 0


@pytest.mark.long
@pytest.mark.parametrize("net", NETS)
def test_training_moves_what_a_penalty_says_and_nothing_without_strength(net: type[Any]) -> None:
    data = people()
    without = classifier(data, net)
    train(without, data)
    off = classifier(data, net, penalties=dict.fromkeys(STRONG, 0.0))
    logged = train(off, data).callback_metrics
    assert set(logged) == {"train/loss"}
    assert all(torch.equal(one, other) for one, other in zip(off.parameters(), without.parameters(), strict=True))
    before = watched(without.eval(), data.graph)[0]
    for name, arguments in STRONG.items():
        trained = classifier(data, net, penalties={name: arguments})
        logged = train(trained, data).callback_metrics
        assert f"train/attention_{name}" in logged
        penalty = PENALTIES[name](**arguments)
        after = watched(trained.eval(), data.graph)[0]
        assert penalty.measure_step(after).item() < 0.9 * penalty.measure_step(before).item(), name


def test_consistency_is_one_minus_the_correlation_of_a_typed_graph() -> None:
    data = people()
    model = classifier(data, HeteroGAT)
    train(model, data, 5)
    step, _ = watched(model.eval(), data.graph)
    penalty = EffectConsistency(targets=4)
    found = penalty.measure_step(step)
    assert found.requires_grad
    subject = Subject.of_data(model, data.graph)
    nodes = data.graph["person"].train_mask.nonzero().view(-1)
    drawn = nodes[torch.randperm(nodes.numel(), generator=step.generator(0))[:4]].sort().values
    pairs = subject_pairs(subject, drawn)
    effect = Reducer(subject).record().reduce(pairs, resolve_protocol("removal", model)).delta_pc
    wanted = 1 - pearsonr(GAtt().score_pairs(subject, pairs).numpy(), effect.numpy())[0]
    assert float(found.detach()) == pytest.approx(wanted, abs=1e-4)
    weights = [weight.detach().double().requires_grad_() for weight in step.attention.weights]

    def number(*given: Tensor) -> Tensor:
        return penalty.measure_step(replace(step, attention=replace(step.attention, weights=given)))

    gradient = torch.autograd.grad(number(*weights), weights)
    generator = torch.Generator().manual_seed(1)
    ways = [torch.randn(weight.shape, generator=generator, dtype=torch.double) for weight in weights]
    up, down = (
        number(*(weight.detach() + sign * 1e-6 * way for weight, way in zip(weights, ways, strict=True)))
        for sign in (1, -1)
    )
    along = sum(float((one * way).sum()) for one, way in zip(gradient, ways, strict=True))
    assert along == pytest.approx(float(up - down) / 2e-6, rel=1e-3, abs=1e-6)


def test_noise_of_gsat_takes_no_edge_between_types_for_a_self_loop() -> None:
    """Numbers of a source and of a destination may be equal by chance; their edges are dropped as others are."""
    torch.manual_seed(0)
    conv = GATConv((3, 3), 2, add_self_loops=False).train()
    x, edges = torch.randn(50, 3), torch.arange(50).expand(2, -1)
    edges = torch.cat([edges, torch.stack([torch.arange(50).roll(1), torch.arange(50)])], dim=1)
    seen: list[Tensor] = []
    handle = conv.register_edge_update_forward_hook(lambda module, inputs, output: seen.append(output))
    conv((x, x), edges)
    with AttentionPenalties({"gsat": {"strength": 1.0, "temperature": 0.05}}).watch(conv):
        conv((x, x), edges)
    handle.remove()
    ratio = (seen[1] / seen[0]).view(2, 50)
    assert float((ratio < 0.5).float().mean(dim=1)[0]) > 0.1
    assert float((ratio < 0.5).float().mean(dim=1)[1]) > 0.1


class Stranger(LightningModule):
    """Someone's module on a heterogeneous graph, with HAN."""

    def __init__(self, data: HeteroInfection) -> None:
        super().__init__()
        torch.manual_seed(0)
        types = list(data.num_features), data.edge_types
        self.first, self.second = HANConv(dict(data.num_features), 8, types, heads=2), HANConv(8, 8, types, heads=2)
        self.out = nn.Linear(8, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        return self.out(self.second(self.first(x_dict, edge_index_dict), edge_index_dict)["person"])

    def training_step(self, batch: HeteroData, batch_idx: int) -> Tensor:
        mask = batch["person"].train_mask
        return F.cross_entropy(self(batch.x_dict, batch.edge_index_dict)[mask], batch["person"].y[mask])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


def test_the_callback_penalizes_anyones_heterogeneous_module() -> None:
    data = people()
    without, trained = Stranger(data), Stranger(data)
    train(without, data)
    train(trained, data, callbacks=[AttentionPenaltyCallback({"entropy": 5.0, "true_edges": 1.0})])
    before, after = (watched(model.eval(), data.graph)[1] for model in (without, trained))
    assert after.item() < 0.9 * before.item()


class Noisy(Blocks):
    """Nodes of a group differ, so that there is something to attend to."""

    def load(self) -> Data:
        graph = super().load()
        graph.x = graph.x + torch.randn(graph.x.shape, generator=torch.Generator().manual_seed(1))
        return graph


@pytest.fixture(scope="module")
def links() -> Blocks:
    return Noisy(test_fraction=0.2)


def predictor(**arguments: Any) -> LinkPredictor:
    torch.manual_seed(0)
    return LinkPredictor(GAT(2, 4, 4, heads=2), lr=0.02, **arguments)


def test_links_are_trained_with_penalties(links: Blocks) -> None:
    without, off = predictor(), predictor(penalties={"entropy": 0.0, "gsat": 0.0})
    train(without, links, 10)
    assert set(train(off, links, 10).callback_metrics) == {"train/loss"}
    assert all(torch.equal(one, other) for one, other in zip(off.parameters(), without.parameters(), strict=True))
    batch = links.parts["train"]
    before = watched(without.eval(), batch)[0]
    strong = {name: one for name, one in STRONG.items() if name != "true_edges"}
    for name, arguments in strong.items():
        trained = predictor(penalties={name: arguments})
        trainer = train(trained, links, 10)
        assert f"train/attention_{name}" in trainer.callback_metrics
        after = watched(trained.eval(), batch)[0]
        measured = [PENALTIES[name](**arguments).measure_step(step).item() for step in (after, before)]
        assert measured[0] < 0.9 * measured[1], (name, measured)


@pytest.mark.long
def test_consistency_of_links_rises_with_training(links: Blocks, tmp_path: Path) -> None:
    """It takes more epochs than other penalties do, as the effects move with the network that they are effects of."""
    without = predictor()
    trained = predictor(penalties={"effect": {"strength": 3.0, "targets": 16}})
    train(without, links, 40)
    trainer = train(trained, links, 40)
    assert "train/attention_effect" in trainer.callback_metrics
    everywhere = EffectConsistency(targets=10**6)
    steps = [watched(model.eval(), links.parts["train"])[0] for model in (without, trained)]
    before, after = (float(everywhere.measure_step(step).detach()) for step in steps)
    assert after < 0.8 * before
    trainer.save_checkpoint(tmp_path / "links.ckpt")
    loaded = LinkPredictor.load_from_checkpoint(tmp_path / "links.ckpt")
    assert loaded.penalties.by_name["effect"].settings() == trained.penalties.by_name["effect"].settings()


def test_consistency_of_links_is_that_of_the_pairs_that_are_trained(links: Blocks) -> None:
    model, batch = predictor().eval(), links.parts["train"]
    step, _ = watched(model, batch)
    found = EffectConsistency(targets=6).measure_step(step)
    subject = Subject.of_data(model, batch)
    assert subject.level == "edge"
    drawn = torch.randperm(batch.edge_label_index.shape[1], generator=step.generator(0))[:6].sort().values
    pairs = subject_pairs(subject, drawn)
    effect = Reducer(subject).record().reduce(pairs, resolve_protocol("removal", model)).delta_pc
    wanted = 1 - pearsonr(GAtt().score_pairs(subject, pairs).numpy(), effect.numpy())[0]
    assert float(found.detach()) == pytest.approx(wanted, abs=1e-4)


def test_what_cannot_be_served_is_refused_by_name(links: Blocks) -> None:
    with pytest.raises(ArgumentError, match="`true_edges` only for data with true edges"):
        train(predictor(penalties={"true_edges": 1.0}), links, 1)
    truth = GroundTruth(torch.tensor([0]), torch.tensor([[1], [0]]), torch.tensor([0, 1]))
    with pytest.raises(UnsupportedModelError, match="node classification on one graph for the penalty `true_edges`"):
        watched(predictor(), links.parts["train"], [PENALTIES["true_edges"](truth=truth)])
    data = people()
    model, graph = classifier(data, HeteroGAT), data.graph
    penalties = AttentionPenalties({"entropy": 1.0})
    with penalties.watch(model) as seen:
        output = model(graph.x_dict, graph.edge_index_dict)
    with pytest.raises(UnsupportedModelError, match=r"the batch to be HeteroData, but got .* a batch of type tuple"):
        seen.penalty(output, (graph, 0))
    graph["mosquito"].train_mask = torch.ones(40, dtype=torch.bool)
    step = PenalizedStep(seen.attention(output, graph), nn.Identity(), graph, data.truth)
    with pytest.raises(ArgumentError, match="one type of nodes has a `train_mask`"):
        PENALTIES["true_edges"]().measure_step(step)
    graph["person"].n_id = torch.arange(60)
    with pytest.raises(UnsupportedModelError, match="a whole heterogeneous graph for the penalty `true_edges`"):
        PENALTIES["true_edges"]().measure_step(replace(step, model=model))


def test_a_single_relation_is_one_graph_or_two_node_sets() -> None:
    """A bipartite convolution alone has no graph of its own: its batch must be heterogeneous."""
    conv = GATConv((3, 3), 2, add_self_loops=False)
    edges = torch.tensor([[0, 1], [0, 0]])
    with AttentionPenalties({"entropy": 1.0}).watch(conv) as seen:
        output = conv((torch.randn(2, 3), torch.randn(1, 3)), edges)
    with pytest.raises(UnsupportedModelError, match="features as one tensor"):
        seen.penalty(output, Data(edge_index=edges))
