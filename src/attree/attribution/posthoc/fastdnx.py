"""FastDnX: a linear surrogate of the model, explained in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from attree.attention.graph import Graph
from attree.attribution.flows import Frontier, frontier_bound, walk_back
from attree.attribution.pairs import Pairs
from attree.attribution.posthoc.frozen_model import Predictions, TrainedMethod, differentiable
from attree.errors import UnsupportedModelError, expect_int, expect_number
from attree.io.terminal import progress_bar
from attree.subject import Subject
from attree.subject.target_roots import Roots
from attree.tensors.arrays import find
from attree.tensors.memory import WALK_MEMORY, chunk_bounds
from attree.tensors.precision import exact_dtype

BYTES_PER_ENTRY = 128
"""Bytes per node of a target's row while it is found and scored."""


class Surrogate(NamedTuple):
    """The parts of the distilled model that explanations need.

    Attributes:
        values: Term that each node adds to the outputs that it reaches, W x_i, [num_nodes, classes].
        outputs: Outputs without bias, z_v - b, [num_nodes, classes].
        weight: Normalised adjacency, one weight per edge of the graph with self-loops.
        hops: Power of the adjacency.
    """

    values: Tensor
    outputs: Tensor
    weight: Tensor
    hops: int


class FastDnX(TrainedMethod[Surrogate]):
    r"""FastDnX (Pereira et al., 2023): distils the model into an SGC, whose outputs are sums over nodes.

    .. math:: z = \tilde{A}^K X W + b, \quad s_i(v) = [\tilde{A}^K]_{v,i} \, (W^\top x_i)^\top (z_v - b)

    Here :math:`\tilde{A}` is the symmetrically normalised adjacency with self-loops; in directed graphs it follows the
    edges that enter a node. :math:`K` is the model's number of layers. The scores of all nodes add up to
    :math:`|z_v - b|^2`. An edge :math:`(i \to j)` scores :math:`s_i(v) + s_j(v)`. A target's row of the power is
    computed by K sparse steps; no nodes-by-nodes matrix is built.

    Args:
        epochs: Steps of the distillation.
        lr: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
        train_share: Share of the nodes, chosen at random, whose predictions are distilled.
        seed: Seed of that choice and of the surrogate's initial weights.
    """

    name = "fastdnx"
    label = "FastDnX"

    def __init__(
        self,
        epochs: int = 999,
        lr: float = 0.2,
        weight_decay: float = 5e-6,
        train_share: float = 0.8,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        expect_int(epochs, "epochs", 1)
        expect_number(lr, "lr", above=0)
        expect_number(train_share, "train_share", above=0, at_most=1)
        self.epochs = epochs
        self.lr = lr
        self.weight_decay = expect_number(weight_decay, "weight_decay", at_least=0)
        self.train_share = train_share

    def fit(self, subject: Subject) -> Surrogate:
        """Train a linear surrogate (SGC) on the class probabilities of the model, and return the surrogate."""
        if subject.level == "graph":
            raise UnsupportedModelError("Expected a model with outputs of nodes, but got one with outputs of graphs.")
        if subject.outputs.nodes is not None:
            raise UnsupportedModelError("Expected a model with outputs of all nodes, but got outputs of chosen nodes.")
        predictions = Predictions(subject)
        if predictions.are_numbers:
            raise UnsupportedModelError(
                "Expected a model of classes, because FastDnX distils their probabilities, but got a regression model."
            )
        x = differentiable(subject.call.x)
        if x.dim() != 2 or not x.is_floating_point():
            raise UnsupportedModelError(
                f"Expected node features [nodes, features] of floats, which the FastDnX surrogate reads, but got "
                f"{tuple(x.shape)} of {x.dtype}."
            )
        hops, weight = subject.num_layers, normalised_adjacency(subject.graph, x.dtype)
        spread = spread_features(subject.graph, weight, x, hops)
        probabilities = predictions.logits.to(x.dtype).softmax(dim=1)
        linear = nn.Linear(x.shape[1], probabilities.shape[1]).to(x)
        self._distil(linear, spread, probabilities)
        matrix = linear.weight.detach().T
        return Surrogate(x @ matrix, spread @ matrix, weight, hops)

    def _distil(self, linear: nn.Linear, spread: Tensor, probabilities: Tensor) -> None:
        """Fit the surrogate to the model's probabilities by cross-entropy."""
        count = max(round(self.train_share * probabilities.shape[0]), 1)
        train_nodes = torch.randperm(probabilities.shape[0])[:count].to(probabilities.device)
        spread, probabilities = spread[train_nodes], probabilities[train_nodes]
        optimizer = torch.optim.Adam(linear.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        with progress_bar(f"{self.label}, distilling", self.epochs) as advance:
            for _ in range(self.epochs):
                optimizer.zero_grad()
                F.cross_entropy(linear(spread), probabilities).backward()
                optimizer.step()
                advance(1)

    def score(self, subject: Subject, fitted: Surrogate, pairs: Pairs) -> Tensor:
        """Return the FastDnX score of each pair: the sum of the surrogate's scores of the edge's two end nodes."""
        scores = fitted.values.new_zeros(len(pairs))
        graph = pairs.graph
        cost = frontier_bound(graph, fitted.hops + 1)[pairs.targets] * BYTES_PER_ENTRY
        for begin, end in chunk_bounds(cost, WALK_MEMORY):
            row = power_rows(graph, fitted.weight, pairs.targets[begin:end], fitted.hops)
            node_score = node_scores(fitted, row)
            key = row.owner * graph.num_nodes + row.node
            first, last = pairs.ptr[begin], pairs.ptr[end]
            ends = graph.edge_index[:, pairs.edges[first:last]]
            place, is_reached = find(key, (pairs.owner[first:last] - begin) * graph.num_nodes + ends)
            scores[first:last] = (node_score[place] * is_reached).sum(dim=0)
        return scores


def normalised_adjacency(graph: Graph, dtype: torch.dtype) -> Tensor:
    """Return one weight per edge of the graph with self-loops: 1 / sqrt(d_i d_j), where d counts entering edges."""
    _, weight = gcn_norm(graph.edge_index, num_nodes=graph.num_nodes, add_self_loops=False, dtype=dtype)
    assert isinstance(weight, Tensor)
    return weight


def spread_features(graph: Graph, weight: Tensor, x: Tensor, hops: int) -> Tensor:
    """Return the features after `hops` steps along the edges."""
    size = (graph.num_nodes, graph.num_nodes)
    adjacency = torch.sparse_coo_tensor(graph.edge_index.flip(0), weight, size, check_invariants=False).coalesce()
    for _ in range(hops):
        x = adjacency @ x
    return x


def power_rows(graph: Graph, weight: Tensor, targets: Tensor, hops: int) -> Frontier:
    """Return the targets' rows of the adjacency matrix to the power `hops`; the value of an entry is `weight[0]`."""
    return walk_back(graph, Roots.at_nodes(targets), [weight.to(exact_dtype(weight.device))] * (hops + 1))


def node_scores(fitted: Surrogate, row: Frontier) -> Tensor:
    """Return the term that each node of each row adds to the squared norm of the target's outputs."""
    targets = row.targets[row.owner]
    return row.weight[0].to(fitted.values.dtype) * (fitted.values[row.node] * fitted.outputs[targets]).sum(dim=1)
