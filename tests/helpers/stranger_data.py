"""Graphs with everything that the models of `helpers.strangers` ask for."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import Batch, Data

NODES, IN, HIDDEN, CLASSES = 30, 4, 6, 3


def graph(nodes: int = NODES, edges: int = 60, seed: int = 0) -> Data:
    """A directed random graph with everything that the models below ask for."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randperm(nodes * nodes, generator=generator)[:edges]
    edge_index = torch.stack([pairs // nodes, pairs % nodes])
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    data = Data(x=torch.randn(nodes, IN, generator=generator).double(), edge_index=edge_index)
    data.y = torch.randint(CLASSES, (nodes,), generator=generator)
    data.pos = torch.randn(nodes, 2, generator=generator).double()
    data.train_mask = torch.arange(nodes) % 3 == 0
    data.second = torch.randint(nodes, (2, 25), generator=generator)
    return data


def ring() -> Data:
    """The same nodes with as many edges as there are nodes."""
    data = graph()
    data.edge_index = torch.stack([torch.arange(NODES), torch.arange(NODES).roll(7)])
    return data


def batch_of_graphs(seed: int = 0) -> Batch:
    """Four graphs of other sizes, each with one row of features of its own."""
    sizes = (5, 7, 4, 6)
    graphs = []
    for number, nodes in enumerate(sizes):
        data = graph(nodes, 2 * nodes, seed + number)
        data.y = data.y[:1]
        data.u = torch.full((1, 2), float(number)).double()
        graphs.append(Data(x=data.x, edge_index=data.edge_index, y=data.y, u=data.u))
    return Batch.from_data_list(graphs)


def with_an_empty_graph() -> Batch:
    """Four graphs, and one without nodes behind them."""
    graphs = batch_of_graphs().to_data_list()
    first = graphs[0]
    empty = Data(x=first.x[:0], edge_index=first.edge_index[:, :0], y=first.y, u=first.u)
    return Batch.from_data_list([*graphs, empty])


def with_pairs(count: int) -> Data:
    data = graph()
    generator = torch.Generator().manual_seed(5)
    data.edge_label_index = torch.randint(NODES, (2, count), generator=generator)
    return data


def with_argument(name: str, value: Any, source: Data | None = None) -> Data:
    data = graph() if source is None else source
    data[name] = value
    return data


def featureless() -> Data:
    data = graph()
    data.num_nodes = NODES
    del data.x
    return data
