"""Train a network of the paper by its recipe: Adam, full batches of nodes, and the last epoch counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from attree.data import GraphDataModule, NodeDataModule
from attree.models import AttentionNet, GraphClassifier
from attree.paper.net import Net, build


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """One thread and a seed, so that sums add up in one order whatever else runs; undone on exit."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def make_model(net: Net, data: NodeDataModule | GraphDataModule) -> nn.Module:
    """The model before any training; that of graphs sums over nodes and has no bias of its own."""
    inner = build(net, data.num_features, data.num_classes)
    return inner if isinstance(data, NodeDataModule) else GraphClassifier(inner, bias=False)


def train(net: Net, data: NodeDataModule | GraphDataModule) -> tuple[nn.Module, float]:
    """Train a network, and return it in eval mode with its test accuracy."""
    with reproducible(net.seed):
        model = make_model(net, data)
        optimizer = torch.optim.Adam(model.parameters(), lr=net.recipe.lr, weight_decay=net.weight_decay)
        epochs = net.recipe.epochs if net.epochs is None else net.epochs
        model.train()
        for _ in range(epochs if net.weights == "trained" else 0):
            for batch in _batches(data):
                optimizer.zero_grad()
                _loss(model, batch).backward()
                optimizer.step()
        model.eval()
        return model, accuracy(model, data)


def _batches(data: NodeDataModule | GraphDataModule) -> Iterator[Data]:
    if isinstance(data, NodeDataModule):
        yield data.graph
    else:
        graphs = [data.graphs[position] for position in data.split["train"]]
        yield from DataLoader(graphs, data.batch_size, shuffle=True)


def _loss(model: nn.Module, batch: Data) -> torch.Tensor:
    if isinstance(batch, Batch):
        return F.cross_entropy(model(batch.x, batch.edge_index, batch.batch, batch.num_graphs), batch.y)
    logits = model(batch.x, batch.edge_index)
    loss = F.cross_entropy(logits[batch.train_mask], batch.y[batch.train_mask])
    attention_loss = model.attention_loss() if isinstance(model, AttentionNet) else None
    return loss if attention_loss is None else loss + attention_loss


def accuracy(model: nn.Module, data: NodeDataModule | GraphDataModule) -> float:
    """Share of the test nodes or graphs that are classified correctly."""
    with torch.no_grad():
        if isinstance(data, NodeDataModule):
            graph = data.graph
            right = model(graph.x, graph.edge_index).argmax(dim=-1) == graph.y
            return float(right[graph.test_mask].float().mean())
        batch = held_out(data)
        predicted = model(batch.x, batch.edge_index, batch.batch, batch.num_graphs).argmax(dim=-1)
        return float((predicted == batch.y).float().mean())


def held_out(data: GraphDataModule) -> Batch:
    """The test graphs as one batch."""
    return Batch.from_data_list([data.graphs[position] for position in data.split["test"]])
