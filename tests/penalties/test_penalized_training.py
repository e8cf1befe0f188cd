"""Penalties in training: in our modules, in anyone's, in a plain loop; all give the same weights."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv

from attree.attention import Attention, Graph, capture_attention
from attree.data import neighbor_loader
from attree.errors import ArgumentError, UnsupportedModelError
from attree.models import GAT, GraphClassifier, NodeClassifier
from attree.penalties import (
    AttentionPenalties,
    AttentionPenalty,
    AttentionPenaltyCallback,
    Entropy,
    PenalizedStep,
    TrueEdges,
)
from helpers.mini_batches import Rings
from helpers.small_fits import infection

ALL: dict[str, Any] = {
    "entropy": 0.5,
    "true_edges": {"strength": 0.3, "share": 0.5},
    "effect": {"strength": 0.2, "targets": 4},
    "gsat": 0.1,
}
QUIET: dict[str, Any] = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)


def train(model: LightningModule, data: Any = None, epochs: int = 4, **options: Any) -> Trainer:
    trainer = Trainer(max_epochs=epochs, accelerator="cpu", limit_val_batches=0, **QUIET, **options)
    trainer.fit(model, infection() if data is None else data)
    return trainer


def classifier(**arguments: Any) -> NodeClassifier:
    torch.manual_seed(0)
    return NodeClassifier(GAT(2, 4, heads=2, attention_dropout=0.1), lr=0.02, **arguments)


def equal(one: nn.Module, other: nn.Module) -> bool:
    weights = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(left, right) for left, right in weights)


@pytest.fixture(scope="module")
def plain() -> NodeClassifier:
    model = classifier()
    train(model)
    return model


def test_without_strength_nothing_changes(plain: NodeClassifier) -> None:
    model = classifier(penalties={"entropy": 0, "gsat": {"strength": 0.0}})
    trainer = train(model)
    assert equal(model, plain)
    assert set(trainer.callback_metrics) == {"train/loss"}


def test_the_loss_is_that_of_a_loop_written_by_hand() -> None:
    torch.manual_seed(0)
    model = NodeClassifier(GAT(2, 4, heads=2), lr=0.02, penalties={"entropy": 0.5})
    data = infection()
    graph = data.graph
    graph.x = graph.x.double()
    by_hand = copy.deepcopy(model).double()
    logged = train(model.double(), data).callback_metrics
    optimizer = torch.optim.Adam(by_hand.net.parameters(), lr=0.02)
    for _ in range(4):
        optimizer.zero_grad()
        attention = capture_attention(by_hand.net, graph.x, graph.edge_index, grad=True)
        loss = F.cross_entropy(by_hand.net(graph.x, graph.edge_index)[graph.train_mask], graph.y[graph.train_mask])
        value = Entropy().measure(attention)
        (loss + 0.5 * value).backward()
        optimizer.step()
    for name, weight in by_hand.net.state_dict().items():
        torch.testing.assert_close(model.net.state_dict()[name], weight)
    assert float(logged["train/loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert float(logged["train/attention_entropy"]) == pytest.approx(float(value.detach()), rel=1e-5)


class Stranger(LightningModule):
    """Someone's module, which calls its network in its own way and returns what it likes."""

    def __init__(self, returns: str = "loss") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = GAT(2, 4, heads=2, attention_dropout=0.1)
        self.returns = returns

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(x, edge_index)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self(batch.x, batch.edge_index)[batch.train_mask]
        loss = F.cross_entropy(logits, batch.y[batch.train_mask])
        return {"loss": loss, "logits": logits} if self.returns == "dict" else loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02, foreach=True)


@pytest.fixture(scope="module")
def penalized() -> NodeClassifier:
    model = classifier(penalties=ALL)
    train(model)
    return model


@pytest.mark.parametrize("returns", ["loss", "dict"])
def test_the_callback_trains_anyones_module_to_the_same_weights(returns: str, penalized: NodeClassifier) -> None:
    model = Stranger(returns)
    trainer = train(model, callbacks=[AttentionPenaltyCallback(ALL)])
    assert equal(model.net, penalized.net)
    assert set(trainer.callback_metrics) == {f"train/attention_{name}" for name in ALL}
    assert "training_step" not in vars(model)


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path, penalized: NodeClassifier) -> None:
    first = classifier(penalties=ALL)
    state = torch.get_rng_state()
    trainer = train(first, epochs=2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    noise = torch.get_rng_state()
    second = classifier(penalties=ALL)
    torch.set_rng_state(noise)
    trainer = Trainer(max_epochs=4, accelerator="cpu", limit_val_batches=0, **QUIET)
    trainer.fit(second, infection(), ckpt_path=tmp_path / "half.ckpt")
    assert equal(second, penalized)
    torch.set_rng_state(state)


def halves() -> list[Data]:
    """The graph twice, each time with half of the training nodes."""
    graph, found = infection().graph, []
    for remainder in range(2):
        half = copy.copy(graph)
        half.train_mask = graph.train_mask & (torch.arange(graph.num_nodes) % 2 == remainder)
        found.append(half)
    return found


def test_accumulated_gradients_are_those_of_the_sum() -> None:
    model = Stranger()
    model.net.attention_dropout = 0.0
    for conv in model.net.convs:
        conv.dropout = 0.0
    by_hand = copy.deepcopy(model)
    loader: Any = torch.utils.data.DataLoader(halves(), batch_size=None)  # type: ignore[arg-type]
    callbacks = [AttentionPenaltyCallback([Entropy(0.5)])]
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", accumulate_grad_batches=2, callbacks=callbacks, gradient_clip_val=1e6, **QUIET
    )
    trainer.fit(model, loader)
    optimizer = by_hand.configure_optimizers()
    penalties = AttentionPenalties({"entropy": 0.5})
    for _ in range(2):
        optimizer.zero_grad()
        for half in halves():
            with penalties.watch(by_hand) as watched:
                loss = by_hand.training_step(half, 0)
            ((loss + watched.penalty(loss)) / 2).backward()
        optimizer.step()
    for name, weight in by_hand.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight)


def test_mixed_precision_trains_on_with_penalties_in_full() -> None:
    model = classifier(penalties=ALL)
    logged = train(model, precision="bf16-mixed").callback_metrics
    assert all(bool(torch.isfinite(weight).all()) for weight in model.state_dict().values())
    assert all(logged[f"train/attention_{name}"].isfinite() for name in ALL)


class ByHand(Stranger):
    """Optimises by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class TwoViews(Stranger):
    """Its loss depends on two passes in a way that no computation tree shows."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self(batch.x, batch.edge_index) * self(batch.x * 2, batch.edge_index)).mean()


class Detached(Stranger):
    """Its attention is computed without gradients."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.no_grad():
            hidden = self(batch.x, batch.edge_index)
        return (hidden + sum(weight.sum() for weight in self.parameters())).mean()


class WithoutAttention(Stranger):
    """Some of its layers have no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.other = GCNConv(2, 2)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            ByHand,
            "ByHand to use automatic optimisation, but it optimises manually: add `attree.penalties",
        ),
        (TwoViews, "are combined by `product`"),
        (Detached, "the penalty `entropy` to depend on trained weights"),
        (WithoutAttention, "every message-passing layer to compute attention weights, but got GCNConv"),
    ],
)
def test_what_cannot_be_penalized_is_refused(kind: type[Stranger], message: str) -> None:
    model = kind()
    with pytest.raises(UnsupportedModelError, match=message):
        train(model, callbacks=[AttentionPenaltyCallback({"entropy": 1.0})])
    assert "training_step" not in vars(model)
    assert all("message" not in vars(conv) for conv in model.modules() if isinstance(conv, GATConv))


class Skips(Stranger):
    """Skips its steps."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


def test_a_skipped_step_stays_skipped() -> None:
    model = Skips()
    before = copy.deepcopy(model)
    train(model, callbacks=[AttentionPenaltyCallback({"entropy": 1.0})])
    assert equal(model, before)


class LargestWeight(AttentionPenalty):
    """A penalty of a user's."""

    name = "largest"

    def measure(self, attention: Attention) -> Tensor:
        return torch.stack([weight.max() for weight in attention.weights]).mean()


def test_a_users_penalty_goes_in_by_class_path(tmp_path: Path, plain: NodeClassifier) -> None:
    path = f"{__name__}.LargestWeight"
    model = classifier(penalties={"mine": {"class_path": path, "init_args": {"strength": 2.0}}, "entropy": 0.1})
    trainer = train(model)
    assert {"train/attention_mine", "train/attention_entropy"} < set(trainer.callback_metrics)
    assert not equal(model, plain)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = NodeClassifier.load_from_checkpoint(tmp_path / "model.ckpt")
    assert set(loaded.penalties.by_name) == {"entropy"}  # the user's own is given again, to train on
    assert loaded.penalties.by_name["entropy"].strength == 0.1
    again = NodeClassifier.load_from_checkpoint(tmp_path / "model.ckpt", penalties={"mine": LargestWeight(2.0)})
    assert set(again.penalties.by_name) == {"mine"}


def test_a_strangers_checkpoint_imports_nothing(tmp_path: Path) -> None:
    model = classifier(penalties={"entropy": 0.1})
    train(model, epochs=1).save_checkpoint(tmp_path / "model.ckpt")
    content = torch.load(tmp_path / "model.ckpt", weights_only=True)
    content["hyper_parameters"]["penalties"] = {"bad": {"class_path": "os.system", "init_args": {"command": "true"}}}
    torch.save(content, tmp_path / "bad.ckpt")
    assert NodeClassifier.load_from_checkpoint(tmp_path / "bad.ckpt").penalties.by_name == {}


class TakesNothing(AttentionPenalty):
    name = "takes_nothing"

    def measure(self) -> Tensor:  # type: ignore[override]
        return torch.zeros(())


class TakesMore(AttentionPenalty):
    name = "takes_more"

    def measure_step(self, step: PenalizedStep, weight: float) -> Tensor:  # type: ignore[override]
        return torch.zeros(())


class MeasuresNothing(AttentionPenalty):
    name = "measures_nothing"


class Forgetful(LargestWeight):
    def __init__(self) -> None:
        """Leaves out `super().__init__`."""


class Nameless(AttentionPenalty):
    def measure(self, attention: Attention) -> Tensor:
        return attention.weights[0].max()


def own(kind: type[AttentionPenalty], **arguments: Any) -> dict[str, Any]:
    return {"mine": {"class_path": f"{__name__}.{kind.__name__}", **arguments}}


@pytest.mark.parametrize(
    ("penalties", "message"),
    [
        (own(TakesNothing), r"`measure` of TakesNothing to take one argument, the attention, but got .*\(self\)"),
        (own(TakesMore), r"`measure_step` of TakesMore to take one argument, the step, but got .*\(self, step"),
        (own(MeasuresNothing), "MeasuresNothing to define `measure` or `measure_step`, but it defines neither"),
        (own(Forgetful), r"Forgetful to call `super\(\).__init__\(strength\)`"),
        (own(LargestWeight, init_args={"much": 1}), "`penalties.mine` to be arguments of LargestWeight"),
        (own(LargestWeight, init_args=[1]), r"`penalties.mine.init_args` to be a mapping of arguments, but got \[1\]"),
        ([Nameless()], "Nameless to have a `name`"),
        ({"entropi": 1.0}, "`penalties` to name some of entropy, .* but got 'entropi'. Did you mean `entropy`"),
        ({"entropy": "much"}, "`strength` to be a number >= 0, but got 'much'"),
        ({"entropy": {"sharper": True}}, "`penalties.entropy` to be arguments of Entropy"),
        ({"mine": {"class_path": "no.such.Thing"}}, "`penalties.mine.class_path` to be importable"),
        ({"mine": {"class_path": "torch.nn.Linear"}}, "a subclass of attree.penalties.AttentionPenalty"),
        ([Entropy(), Entropy()], "penalties of different names"),
        (3, "penalties, or a mapping of their names to strengths, but got 3"),
    ],
)
def test_bad_penalties_are_refused_in_a_sentence(penalties: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        NodeClassifier(GAT(2, 4), penalties=penalties)


@pytest.mark.parametrize(
    "given",
    [
        {"entropy": {"strength": 0.002, "flatter": True}},
        {"entropy.flatter": "true", "entropy": 0.002},
        {"entropy": 0.002, "entropy.flatter": True},
        {"entropy.strength": "2e-3", "entropy.flatter": "true"},
        {"entropy": {"strength": "2e-3", "flatter": "true"}},
        {"entropy": {"flatter": True}, "entropy.strength": 0.002},
        {"entropy": {"class_path": "attree.penalties.Entropy", "init_args": {"strength": 0.002, "flatter": True}}},
    ],
)
def test_options_and_mappings_say_the_same(given: dict[str, Any]) -> None:
    made = AttentionPenalties(given).by_name["entropy"]
    assert made.settings() == {"strength": 0.002, "flatter": True}


def test_modules_with_penalties_can_be_copied_and_pickled(penalized: NodeClassifier) -> None:
    for again in (copy.deepcopy(penalized), pickle.loads(pickle.dumps(penalized.penalties))):
        made = again.penalties if isinstance(again, NodeClassifier) else again
        assert set(made.active) == set(ALL)


def batches() -> Iterator[tuple[Any, Any]]:
    data = infection()
    seeds = data.graph.train_mask.nonzero().view(-1)
    for batch in neighbor_loader(data.graph, seeds, [-1, -1], 40):
        yield data, batch


def test_a_sampled_batch_with_all_neighbours_is_supervised_as_the_whole_graph_is() -> None:
    model = classifier().eval()
    for data, batch in batches():
        part = PenalizedStep(capture_attention(model, batch.x, batch.edge_index), model, batch, data.truth)
        whole = copy.copy(data.graph)
        whole.train_mask = torch.zeros_like(whole.train_mask)
        whole.train_mask[batch.n_id[: batch.batch_size]] = True
        attention = capture_attention(model, whole.x, whole.edge_index)
        alone = PenalizedStep(attention, model, whole, data.truth)
        found, wanted = (float(TrueEdges(share=0.5).measure_step(step)) for step in (part, alone))
        assert found == pytest.approx(wanted, rel=1e-5)
        assert wanted > 0


def test_graphs_are_trained_with_penalties_too() -> None:
    torch.manual_seed(0)
    penalties = {"entropy": 0.5, "gsat": 0.1, "effect": {"strength": 0.1, "targets": 3}}
    model = GraphClassifier(GAT(3, 2), lr=0.02, penalties=penalties)
    logged = train(model, Rings(), epochs=1).callback_metrics
    assert {f"train/attention_{name}" for name in penalties} < set(logged)
    batch = Batch.from_data_list([Data(x=torch.randn(2, 3), edge_index=torch.tensor([[0], [1]]), y=0)])
    step = PenalizedStep(Attention.from_weights(Graph(batch.edge_index, 2), [torch.ones(3)]), model, batch)
    with pytest.raises(UnsupportedModelError, match="node classification on one graph"):
        TrueEdges(truth=infection().truth).measure_step(step)


def test_edges_that_the_step_drops_itself_are_seen_as_they_are() -> None:
    """DropEdge: the pass runs on fewer edges than the batch has; its attention is that of the edges it ran on."""
    model, graph = classifier(), infection().graph
    kept = graph.edge_index[:, ::2]
    penalties = AttentionPenalties({"entropy": 1.0})
    model.eval()
    with penalties.watch(model) as watched:
        output = model(graph.x, kept)
    found = float(watched.penalty(output, graph).detach())
    assert found == pytest.approx(float(Entropy().measure(capture_attention(model, graph.x, kept))), rel=1e-5)
