"""Node classification as LightningModules, on homogeneous and on heterogeneous graphs."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import EdgeType

from attree.data import HeteroDataModule, NodeDataModule
from attree.errors import expect
from attree.models.classifier import Classifier, Stage


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

    data_class = NodeDataModule
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
        """Class probabilities of every node."""
        return self(batch.x, batch.edge_index).softmax(dim=-1)


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
