"""Effects of edges, nodes and pairs of nodes in a GPS network on a batch of molecules, in forward passes of the batch.

python benchmarks/graph_transformers.py
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from statistics import median
from time import process_time

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool

from attree.attribution import subject_pairs
from attree.faithfulness import PROTOCOLS, Reducer, node_effects, pair_effects
from attree.faithfulness.shared_rows import SHARES
from attree.subject import Subject
from attree.subject.facts import facts_of

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
    """Return the processor's time for one call."""
    began = process_time()
    function()
    return process_time() - began


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
    work = {
        "edges": (len(pairs), lambda: reducer.record().reduce(pairs, removal)),
        "nodes": (batch.num_nodes, lambda: node_effects(subject)),
        "pairs of nodes": (int(batch.batch.bincount().square().sum()), lambda: pair_effects(subject)),
    }
    with torch.no_grad():
        passes = [seconds(lambda: model(batch.x, batch.edge_index, batch.edge_attr, batch.batch)) for _ in range(50)]
    one_pass = median(passes)
    durations: dict[str, list[float]] = {}
    for name, (_, measure) in work.items():
        measure()  # the engine is chosen, and its copies are checked, once
        durations[name] = [median(seconds(measure) for _ in range(5))]
    verdicts = facts_of(subject.call)[SHARES]
    verdicts.update(dict.fromkeys(verdicts, False))
    for name, (_, measure) in work.items():
        durations[name].append(median(seconds(measure) for _ in range(3)))
    recorded = median(seconds(reducer.record) for _ in range(9)) / one_pass
    print(f"{GRAPHS} molecules, {batch.num_nodes} atoms, in forward passes of the batch\n")
    print("| what | effects | passes | copies that share nothing |\n|---|---:|---:|---:|")
    print(f"| the recorded pass, which each of the others includes | | {recorded:.0f} | |")
    for name, (count, _) in work.items():
        shared, separate = (duration / one_pass for duration in durations[name])
        print(f"| {name} | {count:,} | {shared:,.0f} | {separate:,.0f} |")


if __name__ == "__main__":
    main()
