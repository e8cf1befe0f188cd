"""Effects of edges, nodes and pairs of nodes in a GPS network on a batch of molecules, in forward passes of the batch.

python benchmarks/graph_transformers.py
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool

from attree.attribution import subject_pairs
from attree.faithfulness import PROTOCOLS, Reducer, node_effects, pair_effects
from attree.subject import Subject

GRAPHS, WIDTH = 32, 16


class Net(nn.Module):
    """Two GPS layers with GINE."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 2)
        mlps = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(2))
        self.convs = nn.ModuleList([GPSConv(WIDTH, GINEConv(mlp, edge_dim=3), heads=4) for mlp in mlps])

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        """Logits of every graph."""
        x = self.first(x)
        for conv in self.convs:
            x = conv(x, edge_index, batch, edge_attr=edge_attr)
        logits: Tensor = self.last(global_add_pool(x, batch)) / 20
        return logits


def molecule(size: int, generator: torch.Generator) -> Data:
    """A random tree with a ring, with features of atoms and bonds."""
    parents = [int(torch.randint(node, (1,), generator=generator)) for node in range(1, size)]
    ends = torch.tensor([*((node + 1, parent) for node, parent in enumerate(parents)), (0, size - 1)]).t()
    edge_index = torch.cat([ends, ends.flip(0)], dim=1).unique(dim=1)
    x = torch.randn(size, 5, generator=generator)
    return Data(x=x, edge_index=edge_index, edge_attr=torch.randn(edge_index.shape[1], 3, generator=generator))


def seconds(function: Callable[[], object]) -> float:
    """Return the duration of one call."""
    began = perf_counter()
    function()
    return perf_counter() - began


def main() -> None:
    """Print how many passes of the batch all effects take."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    batch = Batch.from_data_list([molecule(20 + number % 5, generator) for number in range(GRAPHS)])
    model = Net().eval()
    subject = Subject.of_data(model, batch)
    pairs, removal = subject_pairs(subject, "all"), PROTOCOLS["removal"]
    reducer = Reducer(subject)
    reducer.record().reduce(pairs, removal)  # the engine is chosen once
    ratios_by_name = {
        "edges": (len(pairs), seconds(lambda: reducer.record().reduce(pairs, removal))),
        "nodes": (batch.num_nodes, seconds(lambda: node_effects(subject))),
        "pairs of nodes": (int(batch.batch.bincount().square().sum()), seconds(lambda: pair_effects(subject))),
    }
    with torch.no_grad():
        passes = [seconds(lambda: model(batch.x, batch.edge_index, batch.edge_attr, batch.batch)) for _ in range(50)]
    one_pass = median(passes)
    print(f"{GRAPHS} molecules, {batch.num_nodes} nodes")
    for name, (count, duration) in ratios_by_name.items():
        print(f"{count:>6,} {name:<14} {duration / one_pass:>6,.0f} passes of the batch")


if __name__ == "__main__":
    main()
