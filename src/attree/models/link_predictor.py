"""Link prediction as a LightningModule: an encoder of nodes, and the dot product of two nodes."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAUROC
from torchmetrics.utilities import dim_zero_cat

from attree.data import LinkDataModule
from attree.data.dataset_module import DatasetModule
from attree.errors import expect
from attree.models.trained_module import TrainedModule
from attree.subject import Head
from attree.tensors.precision import exact_dtype


class LinkAUROC(BinaryAUROC):
    """AUROC of edges against links that are no edges; NaN, not 0, if either is missing."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count links. There may be none, if a process has no share."""
        if target.numel():
            super().update(preds, target)

    def compute(self) -> Tensor:  # type: ignore[override]
        """Return the AUROC over the links of all processes."""
        if not len(self.target) or dim_zero_cat(self.target).unique().numel() < 2:
            return torch.tensor(torch.nan, device=self.device)
        return super().compute()


class LinkPredictor(TrainedModule):
    """Trains an encoder to predict links; logs `train/loss`, `val/loss`, `val/auc`, `test/loss` and `test/auc`.

    A link is a pair of nodes, an edge or not. The score of a link (u, v) is the dot product of the encoder's outputs at
    u and v; its sigmoid is the probability of an edge (Kipf and Welling, 2016). The loss is binary cross-entropy over
    the training edges and an equal number of random links that are no edges, drawn in every step, plus optional
    penalties on attention. The optimiser is Adam.

    In a distributed run, every process draws its own links. The logged metrics are of all links together.

    Args:
        encoder: A network that maps `(x, edge_index)` to one vector per node: `GAT`, `GATv2`, `SuperGAT`, or any other.
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
        penalties: Penalties on attention by name, each with its strength or its arguments: `{entropy: 0.1}`. Your own
            penalty has `class_path` and `init_args` under any name. See `attree.penalties`.
    """

    net_argument: ClassVar[str] = "encoder"
    output_head: ClassVar[Head] = Head("binary_classification", "raw")

    def __init__(
        self,
        encoder: nn.Module,
        lr: float = 0.005,
        weight_decay: float = 0.0,
        penalties: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        expect(isinstance(encoder, nn.Module), "encoder", "a network", type(encoder).__name__)
        self.save_hyperparameters(ignore=["encoder", "penalties"])
        self.encoder = encoder
        self.prepare_training(encoder, lr, weight_decay, penalties)
        self.val_auc, self.test_auc = (LinkAUROC(validate_args=False) for _ in range(2))

    @property
    def net(self) -> nn.Module:
        """The encoder, under the name of the network in attree's other modules."""
        return self.encoder

    def setup(self, stage: str) -> None:
        """Refuse attree's data without links, and reset all metrics."""
        for metric in (self.train_loss, self.val_loss, self.val_auc, self.test_loss, self.test_auc):
            metric.reset()
        data = self.datamodule
        if isinstance(data, DatasetModule):
            expect(isinstance(data, LinkDataModule), "data", "of links, as LinkPredictor predicts", data.name)
            self.check_width(data)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        """Logits of links, [P].

        Args:
            x: Node features [num_nodes, width].
            edge_index: The edges that the encoder sees [2, E].
            edge_label_index: The links [2, P].
        """
        z = self.encoder(x, edge_index)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(dim=-1)

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        edges = batch.edge_label_index
        others = random_non_edges(batch.edge_index, batch.x.size(0), edges.size(1))
        with self.watch_attention() as watched:
            logits = self(batch.x, batch.edge_index, torch.cat([edges, others], dim=1))
        labels = torch.cat([logits.new_ones(edges.size(1)), logits.new_zeros(others.size(1))])
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        return self.finish_training_step(loss, labels.numel(), watched, logits, batch)

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        count = self._update(self.val_loss, self.val_auc, batch)
        self.log("val/loss", self.val_loss, batch_size=count)
        self.log("val/auc", self.val_auc, batch_size=count, prog_bar=True)

    def test_step(self, batch: Data, batch_idx: int) -> None:
        count = self._update(self.test_loss, self.test_auc, batch)
        self.log("test/loss", self.test_loss, batch_size=count)
        self.log("test/auc", self.test_auc, batch_size=count)

    def predict_step(self, batch: Data, batch_idx: int) -> Tensor:
        """Probabilities of no edge and of an edge, for every link [P, 2]."""
        edge = self(batch.x, batch.edge_index, batch.edge_label_index).sigmoid()
        return torch.stack([1 - edge, edge], dim=-1)

    def _update(self, loss: MeanMetric, area: LinkAUROC, batch: Data) -> int:
        """Update the metrics with the links of a batch, and return their number."""
        logits = self(batch.x, batch.edge_index, batch.edge_label_index)
        loss.update(F.binary_cross_entropy_with_logits(logits, batch.edge_label, reduction="none"))
        # The metric takes scores in [0, 1]. Sigmoids would round different large logits to 1; softsign does not.
        wide = logits.detach().to(exact_dtype(logits.device))
        area.update((1 + F.softsign(wide)) / 2, batch.edge_label.long())
        return int(logits.numel())


def random_non_edges(edge_index: Tensor, num_nodes: int, count: int) -> Tensor:
    """Draw links between different nodes that are no edges, uniformly, with torch's random generator.

    PyG's `negative_sampling` uses Python's generator, whose state Lightning does not restore.

    Args:
        edge_index: The edges [2, E].
        num_nodes: Number of nodes.
        count: Number of links; fewer are returned if almost all links are edges.
    """
    edges = edge_index[0] * num_nodes + edge_index[1]
    non_edges: list[Tensor] = []
    missing = count
    for _ in range(10):
        links = torch.randint(num_nodes, (2, missing), device=edge_index.device)
        is_new = (links[0] != links[1]) & ~torch.isin(links[0] * num_nodes + links[1], edges)
        non_edges.append(links[:, is_new])
        missing -= int(is_new.sum())
        if missing == 0:
            break
    return torch.cat(non_edges, dim=1)
