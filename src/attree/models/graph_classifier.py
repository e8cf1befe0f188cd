"""Graph classification as a LightningModule: a node network and a readout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool

from attree.data import GraphDataModule
from attree.errors import expect, expect_bool
from attree.models.classifier import Classifier, Stage

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
