"""Models as strangers write them: what they read beside attention layers, how they are called, what they return."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch_geometric.data import Data
from torch_geometric.nn import GAE, GATConv, GATv2Conv, global_max_pool, global_mean_pool
from torch_geometric.utils import degree, scatter

from helpers.stranger_data import (
    CLASSES,
    HIDDEN,
    IN,
    NODES,
    batch_of_graphs,
    featureless,
    graph,
    ring,
    with_an_empty_graph,
    with_argument,
    with_pairs,
)


class TwoLayers(nn.Module):
    """Two attention layers; `between` is what subclasses do to the rows between them."""

    def __init__(self, conv: type[nn.Module] = GATConv, in_channels: int = IN, out_channels: int = CLASSES) -> None:
        super().__init__()
        self.first, self.last = conv(in_channels, HIDDEN), conv(HIDDEN, out_channels)

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.between(self.first(x, edge_index).relu()), edge_index)


class FirstRow(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        return h + h[:1]


class LessNodeZero(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        return h - h[0]


class RowTable(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * NODES, HIDDEN)

    def between(self, h: Tensor) -> Tensor:
        return h + self.table.weight[: h.shape[0]]


class UsersAndItems(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def between(self, h: Tensor) -> Tensor:
        return torch.cat([self.users(h[:12]), self.items(h[12:])])


class Halves(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        half = h.shape[0] // 2
        return torch.cat([h[:half] * 2, h[half:] * 0.5])


class OneFarRow(TwoLayers):
    """Only node 27 is special: few rows of a sample would show it."""

    def between(self, h: Tensor) -> Tensor:
        scale = torch.ones(h.shape[0], 1, dtype=h.dtype)
        scale[27:28] = 3.0
        return h * scale


class OverTheLargest(TwoLayers):
    """Divides by the largest number of all nodes, which a sample of rows is likely to have."""

    def between(self, h: Tensor) -> Tensor:
        h = 20 * h
        return h / h.max()


class OutputsOverTheLargest(TwoLayers):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = 50 * super().forward(x, edge_index)
        return out / out.abs().max()


class SecondEdges(TwoLayers):
    def forward(self, x: Tensor, edge_index: Tensor, second: Tensor) -> Tensor:
        h = self.first(x, edge_index).relu()
        h = h + scatter(h[second[0]], second[1], dim=0, dim_size=h.shape[0])
        return self.last(h, edge_index)


class DegreeFeatures(TwoLayers):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x * degree(edge_index[1], x.shape[0], dtype=x.dtype).unsqueeze(1).sqrt(), edge_index)


class StateOfZeros(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        state = torch.zeros(x.size(0), HIDDEN, dtype=x.dtype)
        return self.last(self.cell(self.first(x, edge_index), state), edge_index)


class NodeTable(TwoLayers):
    """A learned row for each node, whatever is given."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(NODES, HIDDEN))

    def between(self, h: Tensor) -> Tensor:
        return h + self.rows


class Matrix(TwoLayers):
    """A fixed [N, N] matrix of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(NODES).roll(1, 0) * 0.3)

    def between(self, h: Tensor) -> Tensor:
        return h + self.matrix.to(h.dtype) @ h


class OverNodes(TwoLayers):
    """A recurrent layer that reads nodes one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)

    def between(self, h: Tensor) -> Tensor:
        return self.lstm(h.unsqueeze(0))[0].squeeze(0)


class OtherOrder(TwoLayers):
    def forward(self, x: Tensor, y: Tensor, edge_index: Tensor, train_mask: Tensor) -> Tensor:
        hint = torch.where(train_mask, y, 0).to(x.dtype).unsqueeze(1)
        return super().forward(x + 0.1 * hint, edge_index)


class WithPositions(TwoLayers):
    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(torch.cat([x[:, :2], pos], dim=1), edge_index)


class KeywordOnly(TwoLayers):
    def forward(self, x: Tensor, *, edge_index: Tensor, pos: Tensor) -> Tensor:
        return super().forward(x + pos.sum(1, keepdim=True), edge_index)


class ReadsData(TwoLayers):
    def forward(self, data: Data) -> Tensor:
        hint = torch.where(data.train_mask, data.y, 0).to(data.x.dtype).unsqueeze(1)
        return super().forward(data.x + 0.1 * hint, data.edge_index)


class ReturnsTuple(TwoLayers):
    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x, edge_index).relu()
        return self.last(h, edge_index), h


class MaskedRows(TwoLayers):
    def forward(self, x: Tensor, edge_index: Tensor, train_mask: Tensor) -> Tensor:
        return super().forward(x, edge_index)[train_mask]


class FirstRows(TwoLayers):
    def forward(self, x: Tensor, edge_index: Tensor, batch_size: int) -> Tensor:
        return super().forward(x, edge_index)[:batch_size]


class RootRow(TwoLayers):
    def forward(self, x: Tensor, edge_index: Tensor, root: Tensor) -> Tensor:
        return super().forward(x, edge_index)[root]


class Reordered(TwoLayers):
    """All nodes, in an order of the caller's."""

    def forward(self, x: Tensor, edge_index: Tensor, order: Tensor) -> Tensor:
        return super().forward(x, edge_index)[order]


class CountsNodes(TwoLayers):
    def forward(self, x: Tensor, edge_index: Tensor, num_nodes: int) -> Tensor:
        return super().forward(x, edge_index) + torch.zeros(num_nodes, 1, dtype=x.dtype)


class PerGraphInput(TwoLayers):
    """One row per graph, read at every node of it; the outputs are those of nodes."""

    def forward(self, x: Tensor, edge_index: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        return super().forward(x + u[batch].sum(1, keepdim=True), edge_index)


class NoFeatures(nn.Module):
    """A learned embedding of each node, and no features at all."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.net = nn.Parameter(torch.zeros(NODES, IN)), TwoLayers()

    def forward(self, edge_index: Tensor, pos: Tensor) -> Tensor:
        return self.net(self.rows * pos[:, :1], edge_index)


class Pooled(TwoLayers):
    """A graph-level net; `pool` is what subclasses read graphs out by."""

    def __init__(self) -> None:
        super().__init__(out_channels=HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def pool(self, h: Tensor, batch: Tensor) -> Tensor:
        return global_mean_pool(h, batch)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.head(self.pool(super().forward(x, edge_index), batch))


class MaxPooled(Pooled):
    def pool(self, h: Tensor, batch: Tensor) -> Tensor:
        return global_max_pool(h, batch)


class WithGraphRow(Pooled):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, u: Tensor) -> Tensor:
        return super().forward(x + u[batch].sum(1, keepdim=True), edge_index, batch) + u.sum(1, keepdim=True)


class FirstNodeOfAll(Pooled):
    """Every graph reads the first row of the whole batch."""

    def pool(self, h: Tensor, batch: Tensor) -> Tensor:
        return global_mean_pool(h, batch) + h[0]


class RootOfGraph(Pooled):
    """The first node of each graph, found by `ptr`."""

    def forward(self, x: Tensor, edge_index: Tensor, ptr: Tensor) -> Tensor:
        return self.head(TwoLayers.forward(self, x, edge_index)[ptr[:-1]])


class CountsGraphs(Pooled):
    """Graphs without nodes get a row of their own."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        return self.head(global_mean_pool(TwoLayers.forward(self, x, edge_index), batch, num_graphs))


class OptionalBatch(Pooled):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        return super().forward(x, edge_index, batch)


class OneGraph(Pooled):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(TwoLayers.forward(self, x, edge_index).mean(dim=0, keepdim=True))


class Flattened(TwoLayers):
    """All nodes side by side, as in a net for one fixed graph."""

    def __init__(self) -> None:
        super().__init__(out_channels=2)
        self.head = nn.Linear(2 * NODES, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(super().forward(x, edge_index).reshape(1, -1))


class Links(nn.Module):
    """A link predictor with a decoder of its own."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.encoder, self.decoder = TwoLayers(out_channels=HIDDEN), nn.Linear(2 * HIDDEN, classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        h = self.encoder(x, edge_index)
        return self.decoder(torch.cat([h[edge_label_index[0]], h[edge_label_index[1]]], dim=1))


class OwnEdges(Links):
    """One row for each edge that it runs on."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index, edge_index)


class SourcesAndDestinations(Links):
    """Links by two arguments."""

    def forward(self, x: Tensor, edge_index: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return super().forward(x, edge_index, torch.stack([src, dst]))


class PairsInRows(Links):
    """Links as [P, 2]."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        return super().forward(x, edge_index, edge_label_index.t())


class AnyKeywords(TwoLayers):
    def forward(self, x: Tensor, edge_index: Tensor, **others: Tensor) -> Tensor:
        return super().forward(x + others["weights"], edge_index)


def models() -> dict[str, tuple[nn.Module, Data]]:
    """Every model with the data that it runs on; all of them must be explained as they are."""
    one = graph()
    return {
        "a plain stack": (TwoLayers(), one),
        "adds its first row": (FirstRow(), one),
        "subtracts node 0": (LessNodeZero(), one),
        "a table cut to its rows": (RowTable(), one),
        "users, then items": (UsersAndItems(), one),
        "halves": (Halves(), one),
        "one special row": (OneFarRow(), one),
        "over the largest": (OverTheLargest(), one),
        "outputs over the largest": (OutputsOverTheLargest(), graph(12, 20)),
        "a second edge set": (SecondEdges(), one),
        "degrees": (DegreeFeatures(), one),
        "a state of zeros": (StateOfZeros(), one),
        "a row for each node": (NodeTable(), one),
        "a matrix of nodes": (Matrix(), one),
        "an LSTM over nodes": (OverNodes(), one),
        "arguments in another order": (OtherOrder(), one),
        "positions before edges": (WithPositions(), one),
        "keyword-only arguments": (KeywordOnly(), one),
        "forward(data) that reads labels": (ReadsData(), one),
        "rows of a mask": (MaskedRows(), one),
        "first rows": (FirstRows(), with_argument("batch_size", 7)),
        "one root": (RootRow(), with_argument("root", torch.tensor([11]))),
        "a row per graph, at nodes": (PerGraphInput(), batch_of_graphs()),
        "no features": (NoFeatures(), featureless()),
        "mean pool": (Pooled(), batch_of_graphs()),
        "max pool": (MaxPooled(), batch_of_graphs()),
        "a row per graph, at graphs": (WithGraphRow(), batch_of_graphs()),
        "graphs that read one row": (FirstNodeOfAll(), batch_of_graphs()),
        "roots by ptr": (RootOfGraph(), batch_of_graphs()),
        "one graph, batch left out": (OptionalBatch(), with_argument("y", torch.tensor([1]))),
        "one graph, no batch": (OneGraph(), with_argument("y", torch.tensor([1]))),
        "nodes side by side": (Flattened(), with_argument("y", torch.tensor([1]))),
        "several links": (Links(), with_pairs(5)),
        "one link": (Links(), with_pairs(1)),
        "as many links as nodes": (Links(), with_pairs(NODES)),
        "links of two kinds between nodes of three": (Links(2), with_pairs(6)),
        "its own edges": (OwnEdges(), one),
        "its own edges, as many as nodes": (OwnEdges(), ring()),
        "labels and masks, as many edges as nodes": (OtherOrder(), ring()),
        "forward(data), as many edges as nodes": (ReadsData(), ring()),
        "nodes in another order": (Reordered(), with_argument("order", torch.arange(NODES).roll(11))),
        "the number of nodes": (CountsNodes(), one),
        "a graph without nodes": (CountsGraphs(), with_an_empty_graph()),
        "GATv2": (TwoLayers(GATv2Conv), one),
        "averaged": (AveragedModel(TwoLayers()), one),
        "data parallel": (nn.DataParallel(TwoLayers()), one),
        "an autoencoder's encoder": (GAE(TwoLayers()), one),
    }
