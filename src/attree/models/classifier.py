"""Classifiers of nodes and of graphs as LightningModules: loss, metrics, and the names under which they are logged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.typing import EdgeType
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from attree.data import GraphDataModule, HeteroDataModule, NodeDataModule, OnDisk
from attree.data.dataset_module import DatasetModule
from attree.errors import expect, expect_bool
from attree.models.trained_module import TrainedModule
from attree.subject import Head

Stage = Literal["train", "val", "test"]


class Accuracy(MulticlassAccuracy):
    """The fraction of examples that are classified correctly; NaN, not 0, without examples."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count examples. There may be none, if a process has no share."""
        if target.numel():
            super().update(preds, target)

    def compute(self) -> Tensor:
        """The accuracy over the examples of all processes."""
        accuracy: Tensor = super().compute()
        num_examples = sum(int(torch.as_tensor(count).sum()) for count in (self.tp, self.fn))
        return accuracy if num_examples else torch.full_like(accuracy, torch.nan)


class Classifier(TrainedModule):
    """Trains a network to classify, and logs `train/loss`, `val/loss`, `val/acc`, `test/loss` and `test/acc`.

    The loss is cross-entropy over the examples of a step, plus the network's own loss on its attention if it has one
    (SuperGAT), plus optional penalties on attention. Penalties are not part of `train/loss`; they are logged without
    their strengths as `train/attention_<name>`. The optimiser is Adam.

    A subclass implements `examples`, and sets `classified` (what the examples are called) and `data_class` (attree's
    data modules that have them).

    In a distributed run, every process evaluates its share of the examples. The logged metrics are of all examples
    together, even if shares differ in size or are empty.

    Args:
        net: The network, with an integer attribute `out_channels`: the number of classes.
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
        penalties: Penalties on attention by name, each with its strength or its arguments: `{entropy: 0.1}`. Your own
            penalty has `class_path` and `init_args` under any name. See `attree.penalties`.
    """

    data_class: ClassVar[type[DatasetModule] | tuple[type[DatasetModule], ...]]
    classified: ClassVar[str]
    output_head: ClassVar[Head] = Head("multiclass_classification", "raw")

    def __init__(
        self,
        net: nn.Module,
        lr: float = 0.005,
        weight_decay: float = 0.0,
        penalties: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        num_classes = getattr(net, "out_channels", None)
        expect(isinstance(num_classes, int), "net", "a module with an integer `out_channels`", type(net).__name__)
        assert isinstance(num_classes, int)
        self.save_hyperparameters(ignore=["net", "penalties"])
        self.net = net
        self.prepare_training(net, lr, weight_decay, penalties)
        self.num_classes = num_classes
        self.val_acc, self.test_acc = (
            Accuracy(max(num_classes, 2), average="micro", validate_args=False) for _ in range(2)
        )

    def setup(self, stage: str) -> None:
        """Refuse attree's data that this model cannot classify, and reset all metrics."""
        for metric in (self.train_loss, self.val_loss, self.val_acc, self.test_loss, self.test_acc):
            metric.reset()  # `validate` and `test` leave inference tensors, which a fit cannot update
        data = self.datamodule
        if isinstance(data, DatasetModule):
            fits = isinstance(data, self.data_class)
            expect(fits, "data", f"of {self.classified}, as {type(self).__name__} classifies", data.name)
            self._check_fits(data)

    def _check_fits(self, data: DatasetModule) -> None:
        """Raise an `ArgumentError` unless the network has the widths that the data's features and labels need."""
        labels = _labels(data)
        if labels.numel() == 0:
            return
        lowest, highest = (int(label) for label in labels.aminmax())
        expect(lowest >= 0, "data", f"labelled from 0 on wherever {data.name} has a mask", lowest)
        expected = f"of at least {highest + 1} `out_channels`, one for each class of {data.name}"
        expect(highest < self.num_classes, "net", expected, self.num_classes)
        self.check_width(data)

    @abstractmethod
    def examples(self, batch: Any, stage: Stage) -> tuple[Tensor, Tensor]:
        """Return logits [n, classes] and labels [n] of the examples of this stage in the batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with self.watch_attention() as watched:
            logits, y = self.examples(batch, "train")
        return self.finish_training_step(F.cross_entropy(logits, y), y.numel(), watched, logits, batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        logits, y = self.examples(batch, "val")
        self._update(self.val_loss, self.val_acc, logits, y)
        self.log("val/loss", self.val_loss, batch_size=y.numel())
        self.log("val/acc", self.val_acc, batch_size=y.numel(), prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        logits, y = self.examples(batch, "test")
        self._update(self.test_loss, self.test_acc, logits, y)
        self.log("test/loss", self.test_loss, batch_size=y.numel())
        self.log("test/acc", self.test_acc, batch_size=y.numel())

    @staticmethod
    def _update(loss: MeanMetric, accuracy: MulticlassAccuracy, logits: Tensor, y: Tensor) -> None:
        loss.update(F.cross_entropy(logits, y, reduction="none"))
        accuracy.update(logits.argmax(dim=-1), y)


def _labels(data: DatasetModule) -> Tensor:
    """Return the labels that training, validation and test read."""
    if isinstance(data, NodeDataModule | HeteroDataModule):
        graph = data.masked(data.graph)
        return graph.y[graph.train_mask | graph.val_mask | graph.test_mask]
    if isinstance(data, OnDisk):
        return data.labels()
    if isinstance(data, GraphDataModule):
        return torch.cat([graph.y for graph in data.graphs])
    return torch.empty(0)


class NodeClassifier(Classifier):
    """Trains a network to classify nodes, on the whole graph at once or on sampled neighbourhoods.

    On a whole graph, a step classifies the nodes at `train_mask`, `val_mask` or `test_mask`. On a batch of one of PyG's
    neighbour loaders, it classifies the first `batch_size` nodes, the seeds.

    Args:
        net: The network; `attree.models.GAT`, `GATv2`, `SuperGAT`, or any module with an `out_channels` attribute
            whose forward takes `(x, edge_index)`.
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
        penalties: Penalties on attention by name, each with its strength or its arguments.
    """

    data_class = (NodeDataModule, OnDisk)
    classified = "nodes"

    @property
    def is_plain_stack(self) -> bool:
        """Whether the network is a plain stack of attention layers, and the module adds no computation."""
        return type(self).forward is NodeClassifier.forward and bool(getattr(self.net, "is_plain_stack", False))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of every node."""
        return self.net(x, edge_index)

    def examples(self, batch: Data, stage: Stage) -> tuple[Tensor, Tensor]:
        """Logits and labels of the nodes of the step."""
        sampled, mask = "batch_size" in batch, f"{stage}_mask"
        expect(sampled or mask in batch, "data", f"of nodes, with a `{mask}`", type(batch).__name__)
        logits = self(batch.x, batch.edge_index)
        nodes = slice(batch.batch_size) if sampled else batch[mask]
        return logits[nodes], batch.y[nodes]

    def predict_step(self, batch: Data, batch_idx: int) -> Tensor:
        """Class probabilities of every node, or of the seeds of a mini-batch."""
        return self(batch.x, batch.edge_index)[: batch.get("batch_size")].softmax(dim=-1)


class HeteroClassifier(Classifier):
    """Trains a network to classify the nodes of one type of a heterogeneous graph, on the whole graph at once.

    Args:
        net: The network; `attree.models.HGT`, `HeteroGAT`, or any module with attributes `out_channels` and `node_type`
            (the type that it classifies) whose forward takes `(x_dict, edge_index_dict)`.
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
        penalties: Penalties on attention by name, each with its strength or its arguments.
    """

    data_class = HeteroDataModule
    classified = "nodes of one type"

    @property
    def node_type(self) -> str:
        """The type whose nodes are classified."""
        node_type = getattr(self.net, "node_type", None)
        expect(isinstance(node_type, str), "net", "a module with a `node_type`", type(self.net).__name__)
        return str(node_type)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> Tensor:
        """Logits of every node of the classified type."""
        return self.net(x_dict, edge_index_dict)

    def examples(self, batch: HeteroData, stage: Stage) -> tuple[Tensor, Tensor]:
        """Logits and labels of the nodes of the step."""
        expect(isinstance(batch, HeteroData), "data", "a heterogeneous graph", type(batch).__name__)
        nodes = batch[self.node_type]
        mask = nodes.get(f"{stage}_mask")
        expect(mask is not None, "data", f"of {self.node_type} nodes with a `{stage}_mask`", type(batch).__name__)
        logits = self(batch.x_dict, batch.edge_index_dict)
        return logits[mask], nodes.y[mask]

    def predict_step(self, batch: HeteroData, batch_idx: int) -> Tensor:
        """Class probabilities of every node of the classified type."""
        return self(batch.x_dict, batch.edge_index_dict).softmax(dim=-1)


READOUTS: dict[str, Callable[..., Tensor]] = {
    "sum": global_add_pool,
    "mean": global_mean_pool,
    "max": global_max_pool,
}


class GraphClassifier(Classifier):
    """Trains a network to classify graphs: the logits of a graph are a readout of the logits of its nodes.

    The network returns one logit per node and class. The logits of a graph are the readout (sum, mean or elementwise
    maximum) over its nodes, plus one learned bias per class. Without the bias, a sum grows in proportion to the graph's
    size, and cannot express a threshold such as "more than three nitrogen atoms". The bias is the same for all graphs,
    so GAtt can follow the computation tree of a graph: the trees of its nodes, joined by the readout.

    Args:
        net: The network; `attree.models.GAT`, `GATv2`, `SuperGAT`, or any module with an `out_channels` attribute
            whose forward takes `(x, edge_index, batch)`.
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
        readout: `sum` (the paper's), `mean` or `max` over the nodes of a graph.
        bias: Add the learned bias to the readout.
        penalties: Penalties on attention by name, each with its strength or its arguments.
    """

    data_class = GraphDataModule
    classified = "graphs"
    bias: nn.Parameter | None

    def __init__(
        self,
        net: nn.Module,
        lr: float = 0.005,
        weight_decay: float = 0.0,
        readout: Literal["sum", "mean", "max"] = "sum",
        bias: bool = True,
        penalties: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(net, lr, weight_decay, penalties)
        expect(isinstance(readout, str) and readout in READOUTS, "readout", "'sum', 'mean' or 'max'", readout)
        expect_bool(bias, "bias")
        self.readout = readout
        self.register_parameter("bias", nn.Parameter(torch.zeros(self.num_classes)) if bias else None)

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None, num_graphs: int | None = None
    ) -> Tensor:
        """Logits of every graph, [num_graphs, classes].

        Args:
            x: Features of the nodes of all graphs.
            edge_index: Their edges.
            batch: The graph of each node, ascending; None if there is one graph.
            num_graphs: Number of graphs; None for the highest in `batch` plus 1.
        """
        logits = READOUTS[self.readout](self.net(x, edge_index, batch), batch, num_graphs)
        return logits if self.bias is None else logits + self.bias

    def examples(self, batch: Batch, stage: Stage) -> tuple[Tensor, Tensor]:
        """Logits and labels of the graphs of the batch."""
        expect(isinstance(batch, Batch), "data", "of graphs, in batches", type(batch).__name__)
        return self(batch.x, batch.edge_index, batch.batch, batch.num_graphs), batch.y

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Class probabilities of every graph."""
        return self.examples(batch, "test")[0].softmax(dim=-1)
