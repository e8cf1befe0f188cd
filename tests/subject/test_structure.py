"""The level that an experiment found is used again for calls of the same structure, and for no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from attree.errors import ArgumentError
from attree.subject import Subject
from attree.subject.facts import model_structure

NODES = 7
X = torch.randn(NODES, 4, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0], [1, 2, 3, 4, 5, 6, 0, 3]])


class Ordered(nn.Module):
    """Two convolutions; the rows of the output are in the order that an attribute, a buffer or an argument says."""

    order: Tensor
    nested: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GATConv(4, 4), GATConv(4, 3)])
        self.turned = False
        self.listed = list(range(NODES))
        self.register_buffer("order", torch.arange(NODES))

    def forward(self, x: Tensor, edge_index: Tensor, order: Tensor | None = None, turn: bool = False) -> Tensor:
        COUNT[0] += 1
        out = self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)
        out = out[self.order][self.listed]
        out = out if order is None else out[order]
        return out.flip(0) if self.turned or turn else out


COUNT = [0]


def passes(function: Callable[[], Any]) -> int:
    before = COUNT[0]
    function()
    return COUNT[0] - before


def nodes(model: nn.Module, *args: Any, **kwargs: Any) -> list[int]:
    """The node of each row, as a new subject finds it."""
    outputs = Subject.of(model, X, EDGES, *args, **kwargs).outputs
    assert outputs.level == "node"
    return list(range(NODES)) if outputs.nodes is None else outputs.nodes.tolist()


def test_a_second_subject_of_the_same_structure_runs_one_pass() -> None:
    model = Ordered()
    assert passes(lambda: nodes(model)) > 1
    assert passes(lambda: nodes(model)) == 1  # the recorded one
    with torch.no_grad():
        model.convs[0].lin.weight.mul_(2)  # weights are no structure
    assert passes(lambda: nodes(model)) == 1
    assert passes(lambda: nodes(Ordered())) > 1  # another model


def _turn(model: Ordered) -> None:
    model.turned = True


def _turn_list(model: Ordered) -> None:
    model.listed.reverse()


def _turn_buffer(model: Ordered) -> None:
    model.order.copy_(model.order.flip(0))


def _turn_by_hook(model: Ordered) -> None:
    model.register_forward_hook(lambda _, args, out: out.flip(0))


def _turn_forward(model: Ordered) -> None:
    forward = model.forward
    model.forward = lambda *args, **kwargs: forward(*args, **kwargs).flip(0)  # type: ignore[method-assign]


@pytest.mark.parametrize("turn", [_turn, _turn_list, _turn_buffer, _turn_by_hook, _turn_forward])
def test_another_order_of_rows_is_found(turn: Callable[[Ordered], None]) -> None:
    model = Ordered()
    assert nodes(model) == list(range(NODES))
    turn(model)
    assert nodes(model) == list(reversed(range(NODES)))


def test_arguments_that_choose_rows_are_read_each_time() -> None:
    model = Ordered()
    assert nodes(model, torch.arange(NODES)) == list(range(NODES))
    assert nodes(model, torch.arange(NODES).flip(0)) == list(reversed(range(NODES)))
    assert nodes(model, turn=False) == list(range(NODES))
    assert nodes(model, turn=True) == list(reversed(range(NODES)))


def test_a_named_level_is_checked() -> None:
    model = Ordered()
    assert nodes(model) == list(range(NODES))
    with pytest.raises(ArgumentError, match="`level`"):
        _ = Subject.of(model, X, EDGES, level="edge").outputs


def test_functions_that_call_the_model_are_read_each_time() -> None:
    model, data = Ordered(), Data(x=X, edge_index=EDGES)

    def of(turned: bool) -> list[int]:
        subject = Subject.of_data(model, data, call=lambda net, graph: net(graph.x, graph.edge_index, turn=turned))
        return list(range(NODES)) if subject.outputs.nodes is None else subject.outputs.nodes.tolist()

    assert of(False) == list(range(NODES))
    assert of(True) == list(reversed(range(NODES)))


def test_a_list_that_contains_itself_is_no_obstacle() -> None:
    model = Ordered()
    model.nested = [1, {"a": (2,)}]
    model.nested.append(model.nested)
    assert passes(lambda: nodes(model)) > 1
    assert passes(lambda: nodes(model)) == 1


class Trained(LightningModule):
    """A network with a metric of its training, as most have one."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.accuracy, self.loss = Ordered(), MulticlassAccuracy(3), MeanMetric()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(x, edge_index)

    def training_step(self, data: Data, batch_idx: int) -> Tensor:
        out = self(data.x, data.edge_index)
        self.accuracy(out, data.y)
        self.loss(out.sum())
        self.log("accuracy", self.accuracy, on_epoch=True, batch_size=1)
        self.log("loss", self.loss, on_step=False, on_epoch=True, batch_size=1)
        return torch.nn.functional.cross_entropy(out, data.y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


class Structures(Callback):
    """The structure of the module after each epoch."""

    def __init__(self) -> None:
        self.structures: list[Any] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.structures.append(model_structure(pl_module))


def test_what_lightning_and_metrics_note_in_training_is_no_structure() -> None:
    module, structures = Trained(), Structures()
    before = model_structure(module)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=3,
        callbacks=[structures],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader([Data(x=X, edge_index=EDGES, y=torch.arange(NODES) % 3)]))
    first, *others = structures.structures
    assert others == [first] * 2
    assert first != before  # it has a trainer now
    module.net.turned = True
    assert model_structure(module) != first
