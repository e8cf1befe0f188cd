"""Node classification as a LightningModule, around any network that maps `(x, edge_index)` to logits."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.data import Data

from attree.data import NodeDataModule
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
