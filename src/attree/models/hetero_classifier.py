"""Node classification on heterogeneous graphs as a LightningModule."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType

from attree.data import HeteroDataModule
from attree.errors import expect
from attree.models.classifier import Classifier, Stage


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
