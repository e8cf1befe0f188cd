"""Are ways around layers better ignored or followed? GAtt of trained nets with skips beside exact reduction.

    python benchmarks/skips.py [--data data] [--datasets Cora,CiteSeer,Infection] [--targets 100] [--seeds 2]

Each net is trained, and the edges around some targets are scored by GAtt twice: through the layers alone
(`skips="ignore"`), and also around them (`skips="follow"`). Printed is the Pearson correlation of either with the
decline of the predicted class's probability when the edge's attention is reduced, under the two default protocols, as
the mean over the seeds. The last row has the mean over all nets.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, JumpingKnowledge

import attree
from attree.attribution import GAtt
from attree.data import Infection, Planetoid

PROTOCOLS = ("weight", "removal")
OPTIONS: tuple[Literal["ignore", "follow"], ...] = ("ignore", "follow")


class Net(nn.Module):
    """An encoder, attention layers with ways around them, and a linear head.

    Args:
        channels: Columns of the features.
        classes: Number of classes.
        layers: Number of attention layers.
        residual: Add a layer's input to what it returns.
        jump: Join what all layers return: `cat`, `max`, or None for the last layer alone.
    """

    def __init__(self, channels: int, classes: int, layers: int, residual: bool, jump: str | None) -> None:
        super().__init__()
        width = 32
        self.encoder = nn.Linear(channels, width)
        self.convs = nn.ModuleList([GATConv(width, width) for _ in range(layers)])
        self.residual = residual
        self.jump = None if jump is None else JumpingKnowledge(jump)
        self.head = nn.Linear(width * layers if jump == "cat" else width, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, seen = F.dropout(self.encoder(x), 0.5, self.training), []
        for conv in self.convs:
            x = F.elu(conv(x, edge_index)) + x if self.residual else F.elu(conv(x, edge_index))
            seen.append(x)
        return self.head(seen[-1] if self.jump is None else self.jump(seen))


NETS: dict[str, tuple[int, bool, str | None]] = {
    "residual, 2 layers": (2, True, None),
    "residual, 3 layers": (3, True, None),
    "jumping knowledge (cat), 2 layers": (2, False, "cat"),
    "jumping knowledge (cat), 3 layers": (3, False, "cat"),
    "residual and jumping knowledge, 3 layers": (3, True, "cat"),
}
"""Number of layers, whether they are residual, and how they jump."""


def train(net: Net, graph: Data, epochs: int) -> float:
    """Train on the graph's training nodes; returns the accuracy on its test nodes."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
    net.train()
    for _ in range(epochs):
        optimizer.zero_grad()
        F.cross_entropy(net(graph.x, graph.edge_index)[graph.train_mask], graph.y[graph.train_mask]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        right = net(graph.x, graph.edge_index).argmax(dim=1) == graph.y
    return float(right[graph.test_mask].float().mean())


def methods() -> list[GAtt]:
    """GAtt with either option, named by it."""
    methods = [GAtt(skips=option) for option in OPTIONS]
    for method, option in zip(methods, OPTIONS, strict=True):
        method.name = option
    return methods


def load(name: str, root: Path) -> tuple[Data, int]:
    """A dataset's graph, and its number of classes."""
    data = Infection(num_layers=3) if name == "Infection" else Planetoid(name, root=str(root))  # type: ignore[arg-type]
    data.prepare_data()
    data.setup()
    return data.graph, data.num_classes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--datasets", default="Cora,CiteSeer,Infection")
    parser.add_argument("--targets", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = Table(
        "dataset", "net", "accuracy", *(f"{protocol}, {option}" for protocol in PROTOCOLS for option in OPTIONS)
    )
    rows = []
    for dataset in options.datasets.split(","):
        graph, classes = load(dataset, options.data)
        for name, shape in NETS.items():
            values_of_seeds = []
            for seed in range(options.seeds):
                torch.manual_seed(seed)
                net = Net(graph.num_features, classes, *shape)
                accuracy = train(net, graph, options.epochs)
                result = attree.evaluate(
                    net, graph, methods=methods(), protocols=PROTOCOLS, num_targets=options.targets, seed=seed
                )
                keys = [f"explain/{option}/{protocol}/pc_pearson" for protocol in PROTOCOLS for option in OPTIONS]
                values_of_seeds.append([accuracy, *(result.metrics[key] for key in keys)])
            rows.append(torch.tensor(values_of_seeds).mean(dim=0))
            row = [dataset, name, *(f"{value:.3f}" for value in rows[-1].tolist())]
            Console(stderr=True).print(*row)
            table.add_row(*row)
    table.add_row("all", "", *(f"{value:.3f}" for value in torch.stack(rows).mean(dim=0).tolist()))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
