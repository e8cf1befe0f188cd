"""PGExplainer: a network, trained on many predictions, that computes an edge's mask from embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attree.attribution.pairs import Pairs
from attree.attribution.posthoc.frozen_model import TrainedMethod, full_pass
from attree.attribution.posthoc.masks import COPIES_MEMORY, MaskedRun, bytes_per_edge, masked_run
from attree.attribution.posthoc.target_copies import TargetCopies, target_copies
from attree.errors import UnsupportedModelError, expect_bool, expect_int, expect_number
from attree.io.terminal import progress_bar
from attree.subject import Subject
from attree.subject.model_call import NotLocalError

HIDDEN = 64
TEMPERATURES = (5.0, 2.0)
BIAS = 0.01


class Fitted(NamedTuple):
    """The trained network and the embeddings that it reads."""

    mlp: nn.Module
    embedding: Tensor


class PGExplainer(TrainedMethod[Fitted]):
    r"""PGExplainer (Luo et al., 2020).

    .. math:: M_e = \mathrm{MLP}([z_i, z_j, z_v]), \quad e = (i \to j)

    Here :math:`z` are the embeddings of the last layer and :math:`v` is the target, which is omitted if graphs are
    explained. In training, masks are drawn from the concrete distribution around :math:`M_e`, at a temperature that
    falls from 5 to 2. The loss is that of `GNNExplainer`, for the class that the model predicts. An edge scores
    :math:`\sigma(M_e)`; self-loops that were not given score 0.

    PyG's `PGExplainer` trains on the whole graph; here each target is trained on its neighbourhood, with the embeddings
    of the whole graph. The two differ only in the random numbers of edges that a target does not depend on. PyG lets
    the caller choose the training targets; here they are a random choice among all nodes or graphs.

    Args:
        epochs: Passes over the training targets.
        lr: Learning rate of Adam.
        edge_size: Weight of the masks' sum.
        edge_ent: Weight of the masks' mean entropy.
        num_train: Maximum number of nodes or graphs to train on.
        seed: Seed of the network, of the training targets and of the drawn masks.
        self_loops: Also mask and score the self-loops that layers add themselves.
    """

    name = "pg_explainer"
    label = "PGExplainer"

    def __init__(
        self,
        epochs: int = 30,
        lr: float = 0.003,
        edge_size: float = 0.05,
        edge_ent: float = 1.0,
        num_train: int = 300,
        seed: int = 0,
        self_loops: bool = False,
    ) -> None:
        super().__init__(seed)
        expect_int(epochs, "epochs", 1)
        expect_number(lr, "lr", above=0)
        expect_int(num_train, "num_train", 1)
        self.epochs = epochs
        self.lr = lr
        self.edge_size = expect_number(edge_size, "edge_size", at_least=0)
        self.edge_ent = expect_number(edge_ent, "edge_ent", at_least=0)
        self.num_train = num_train
        self.self_loops = expect_bool(self_loops, "self_loops")

    def fit(self, subject: Subject) -> Fitted:
        """Train PGExplainer's network on randomly drawn targets, and return the network and the embeddings."""
        _ = subject.attention  # raises: without a computation tree, there is no last layer, whose embeddings it reads
        embedding = full_pass(subject).embedding
        if not isinstance(embedding, Tensor) or embedding.dim() != 2:
            raise UnsupportedModelError("Expected the last attention layer to return embeddings [nodes, channels].")
        embedding = embedding.clone()
        width = embedding.shape[1] * (2 if subject.level == "graph" else 3)
        mlp = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)).to(embedding)
        all_targets = subject.targets()
        train_targets = all_targets[torch.randperm(all_targets.numel())[: self.num_train].to(all_targets.device)]
        with masked_run(subject) as run:
            try:
                parts = []
                for part in induced_copies(subject, train_targets):
                    run.check(part)
                    parts.append(part)
            except NotLocalError:
                parts = [TargetCopies.whole(subject, target) for target in train_targets.split(1)]
            parts = [replace(part, masks_loops=self.self_loops) for part in parts]
            # A target without edges has nothing to mask.
            self._train(run, [part for part in parts if part.entry_owner.numel()], mlp, embedding)
        return Fitted(mlp.requires_grad_(False), embedding)

    def _train(self, run: MaskedRun, parts: list[TargetCopies], mlp: nn.Module, embedding: Tensor) -> None:
        """Train PGExplainer's network on the targets' subgraphs, at a temperature that falls with each epoch."""
        optimizer = torch.optim.Adam(mlp.parameters(), lr=self.lr)
        with progress_bar(f"{self.label}, training", self.epochs * len(parts)) as advance:
            for epoch in range(self.epochs):
                temperature = TEMPERATURES[0] * (TEMPERATURES[1] / TEMPERATURES[0]) ** (epoch / self.epochs)
                for part in parts:
                    loss = self.loss(run, part, mlp, embedding, temperature)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    advance(1)

    def loss(self, run: MaskedRun, part: TargetCopies, mlp: nn.Module, embedding: Tensor, temperature: float) -> Tensor:
        """Return the loss of one target, with a randomly drawn mask."""
        ends = part.subject.graph.edge_index[:, part.entry_edge]
        logits = edge_logits(mlp, embedding, ends, None if run.graph_level else part.targets)
        noise = (1 - 2 * BIAS) * torch.rand_like(logits) + BIAS
        mask = ((noise.log() - (1 - noise).log() + logits) / temperature).sigmoid()
        loss = run.loss(part, run.logits(part, mask)).sum()
        inner_mask = 0.99 * mask + 0.005
        entropy = -inner_mask * inner_mask.log() - (1 - inner_mask) * (1 - inner_mask).log()
        return loss + self.edge_size * mask.sum() + self.edge_ent * entropy.mean()

    def score(self, subject: Subject, fitted: Fitted, pairs: Pairs) -> Tensor:
        """Return the mask that PGExplainer's network computes for every pair; edges that are not masked get 0."""
        graph = pairs.graph
        ends, targets = graph.edge_index[:, pairs.edges], pairs.targets[pairs.owner]
        masked = torch.full((graph.num_edges,), self.self_loops, device=graph.device)
        masked[graph.position] = True
        scored = masked[pairs.edges]
        scores = fitted.embedding.new_zeros(len(pairs))
        graph_level = subject.level == "graph"
        with torch.no_grad():
            for pair_ids in scored.nonzero().view(-1).split(CHUNK):
                pair_targets = None if graph_level else targets[pair_ids]
                scores[pair_ids] = edge_logits(fitted.mlp, fitted.embedding, ends[:, pair_ids], pair_targets).sigmoid()
        return scores


CHUNK = 2**16
"""Number of pairs that are scored at once."""


def edge_logits(mlp: nn.Module, embedding: Tensor, ends: Tensor, targets: Tensor | None) -> Tensor:
    """Return the network's logit of each edge, from its two ends and, if nodes are explained, its target."""
    parts = [embedding[ends[0]], embedding[ends[1]]]
    if targets is not None:
        parts.append(embedding[targets].expand_as(parts[0]))
    return mlp(torch.cat(parts, dim=1)).view(-1)


def induced_copies(subject: Subject, targets: Tensor) -> Iterator[TargetCopies]:
    """Yield, for one target at a time, its L-hop subgraph, or its graph."""
    for copies in target_copies(subject, targets, bytes_per_edge(subject), COPIES_MEMORY, induced=True):
        for place in torch.arange(copies.targets.numel(), device=targets.device).split(1):
            yield replace(copies, targets=copies.targets[place], part=copies.part.take(place))
