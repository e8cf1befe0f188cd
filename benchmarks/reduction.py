"""Attention reduction beside what one would write without it: a forward pass per pair, or batches of subgraph copies.

    python benchmarks/reduction.py [--data data] [--graphs cora layers links types dblp arxiv updates]

Cora: networks with 64 hidden units, 100 targets, all pairs of their subgraphs. Beside attree's own GAT stand networks
as people bring them: PyG's GAT, plain and with batch norm, residuals and jumping knowledge, and one of TransformerConv.
Ours is run as it stands, the best of several runs; what is looked at once a model is not in the best one. A full
forward pass per pair is timed on a sample of pairs and extrapolated to all of them, as are copies of subgraphs, to all
that carry a flow; both skip nothing else. Their results are compared with ours on the sample.
Layers: PyG's GCN, GraphSAGE and GIN beside its GAT on Cora, 64 hidden units, 100 targets, with the default protocols;
`recorded` is the recorded pass and the reduction, `again` the reduction alone, planned as for pairs that are new. The
networks take turns. Times are those of the processor; behind them, the ratio to GAT with its quartiles.
Arxiv: the real graph, symmetrised. Features and weights are random, as neither changes the cost. Ratios are what
carries over to other machines. Memory is the growth of the process while it reduces, results included.
Updates: exact effects of `removal` a second on Arxiv's symmetrised graph, without the recorded pass, by the processor's
time: one change and one output a pair, where a system for streaming graphs updates all outputs after a change.
Links: 100 pairs of Cora's nodes, decoded by a dot product or an MLP, beside the same encoder's reduction for their 200
ends as node targets; what is timed is the recorded pass and the reduction.
Types: a random graph of three types of nodes and four of edges, and one type with as many nodes and edges; networks of
the same width, 200 targets. Times are those of one pair that carries a flow, by exact updates and by copies of
neighbourhoods; ratios are those to PyG's GAT on the graph of one type, reduced by exact updates.
DBLP: all of `attree.evaluate` for 100 authors, with GAtt, AvgAtt, uniform, random and the default protocols, the first
time and again; networks have 32 (HeteroGAT) and 64 (HGT) hidden channels and random weights.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.nn import GAT as PyGGAT
from torch_geometric.nn import GCN as PyGGCN
from torch_geometric.nn import GIN, GATConv, GraphSAGE, HeteroConv, HGTConv, TransformerConv

from attree.attention import Graph, hook_softmax
from attree.attention.graph import EdgeType
from attree.attribution import Pairs, subgraph_pairs, subject_pairs
from attree.data import DBLP, Arxiv, Planetoid
from attree.evaluation import Evaluation, evaluate
from attree.faithfulness import PROTOCOLS, CopiesReducer, ExactReducer, Reduction, ReductionProtocol
from attree.faithfulness.protocol import reduced_softmax
from attree.models import GAT, HGT, HeteroGAT
from attree.subject import Head, Subject
from timing import Race, best

T = TypeVar("T")
PROTOCOL = PROTOCOLS["coefficient"]
LAYERS = {"GAT": PyGGAT, "GCN": PyGGCN, "GraphSAGE": GraphSAGE, "GIN": GIN}
LOGIT = Head(mode="binary_classification", return_type="raw")


def random_targets(num_nodes: int, count: int) -> Tensor:
    return torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))[:count]


def network(in_channels: int, classes: int, num_layers: int) -> GAT:
    torch.manual_seed(0)
    return GAT(in_channels, classes, hidden_channels=64, num_layers=num_layers).eval()


class TransformerNet(nn.Module):
    """A stack of TransformerConv with ELU between the layers."""

    def __init__(self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int) -> None:
        super().__init__()
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = nn.ModuleList([TransformerConv(*pair) for pair in pairwise(widths)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of every node."""
        for conv in self.convs[:-1]:
            x = F.elu(conv(x, edge_index))
        return self.convs[-1](x, edge_index)


def brought(in_channels: int, classes: int, num_layers: int) -> dict[str, nn.Module]:
    """Networks as people bring them."""
    torch.manual_seed(0)
    options = {"PyG GAT": {}, "PyG GAT, norm, residual, jk": {"norm": "batch", "residual": True, "jk": "cat"}}
    nets: dict[str, nn.Module] = {
        name: PyGGAT(in_channels, 64, num_layers, classes, **arguments) for name, arguments in options.items()
    }
    nets["TransformerConv"] = TransformerNet(in_channels, 64, num_layers, classes)
    return {name: net.eval() for name, net in nets.items()}


@torch.no_grad()
def forward_per_pair(net: nn.Module, x: Tensor, edge_index: Tensor, edges: list[int]) -> None:
    """One full pass a pair, its edge reduced."""
    for edge in torch.tensor(edges).split(1):

        def tap(_: nn.Module, scores: Tensor, softmax: Callable[[Tensor], Tensor], at: Tensor = edge) -> Tensor:
            return reduced_softmax(PROTOCOL, scores, at[at < scores.shape[0]], softmax)  # no self-loops in some layers

        with hook_softmax(net, tap):
            net(x, edge_index)


def choose(pairs: Pairs, with_flow: Tensor) -> Pairs:
    """The same pairs, of which only some are said to carry a flow: the others are not computed."""
    return replace(pairs, flow=torch.zeros_like(pairs.flow).index_fill(0, with_flow, True))


def cora(root: str, num_layers: int, table: Table, repeats: int, sample: int, copied: int) -> None:
    data = Planetoid("Cora", root=root).graph
    graph = Graph(data.edge_index, data.num_nodes)
    pairs = subgraph_pairs(graph, random_targets(data.num_nodes, 100), num_layers)
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))
    with_flow = order[pairs.flow[order]][:copied]
    pairs_with_flow = choose(pairs, with_flow)
    # Each target costs the copies one more, unreduced.
    scale = (int(pairs.flow.sum()) + 100) / (with_flow.numel() + 100)
    edge_list = pairs.edges[order[:sample]].tolist()
    nets = {"attree GAT": network(data.num_features, 7, num_layers), **brought(data.num_features, 7, num_layers)}
    first = 0.0
    for name, net in nets.items():

        def ours(net: nn.Module = net) -> Reduction:
            subject = Subject.of(net, data.x, data.edge_index, graph=graph)
            return ExactReducer(subject).record().reduce(pairs, PROTOCOL)

        def copies(net: nn.Module = net) -> Reduction:
            subject = Subject.of(net, data.x, data.edge_index, graph=graph)
            return CopiesReducer(subject).record().reduce(pairs_with_flow, PROTOCOL)

        def forward(net: nn.Module = net) -> Tensor:
            with torch.no_grad():
                return net(data.x, data.edge_index)

        def per_pair(net: nn.Module = net) -> None:
            forward_per_pair(net, data.x, data.edge_index, edge_list)

        seconds, exact = best(ours, repeats)
        first = first or seconds
        copy_seconds, other = best(copies, 2)
        copy_seconds *= scale
        difference = float((exact.delta_pc - other.delta_pc)[with_flow].abs().max())
        assert difference < 1e-4, difference
        pair_seconds = best(per_pair, 2)[0] / len(edge_list) * len(pairs)
        table.add_row(
            f"Cora, {num_layers} layers: {name}",
            f"{len(pairs):,} ({int(pairs.flow.sum()):,})",
            f"{seconds:.3f} s = {seconds / first:.1f} x",
            f"{seconds / best(forward, repeats)[0]:.1f} forward passes",
            f"{pair_seconds:,.0f} s = {pair_seconds / seconds:,.0f} x",
            f"{copy_seconds:.1f} s = {copy_seconds / seconds:,.0f} x",
            "",
        )


def layers(root: str, num_layers: int, table: Table, rounds: int) -> None:
    data = Planetoid("Cora", root=root).graph
    graph = Graph(data.edge_index, data.num_nodes)
    pairs = subgraph_pairs(graph, random_targets(data.num_nodes, 100), num_layers)
    torch.manual_seed(0)
    nets = {name: kind(data.num_features, 64, num_layers, 7).eval() for name, kind in LAYERS.items()}
    reducers = {name: ExactReducer(Subject.of(net, data.x, data.edge_index, graph=graph)) for name, net in nets.items()}

    def forward(net: nn.Module) -> Tensor:
        with torch.no_grad():
            return net(data.x, data.edge_index)

    passes = Race({name: partial(forward, net) for name, net in nets.items()}, rounds, time.process_time)
    for protocol in (PROTOCOLS["removal"], PROTOCOLS["weight"]):

        def recorded(reducer: ExactReducer, protocol: ReductionProtocol = protocol) -> Tensor:
            # Effects without the kept plan: as for pairs that are seen for the first time.
            return reducer.record().effect(pairs, protocol)

        engines = {name: reducer.record() for name, reducer in reducers.items()}
        whole = Race(
            {name: partial(recorded, reducer) for name, reducer in reducers.items()}, rounds, time.process_time
        )
        again = Race(
            {name: partial(engine.effect, pairs, protocol) for name, engine in engines.items()},
            rounds,
            time.process_time,
        )
        for name in nets:
            seconds, of_pass = whole.time(name).median, passes.time(name).median
            table.add_row(
                f"Cora, {num_layers} layers, {protocol}: PyG's {name}",
                f"{len(pairs):,} ({int(pairs.flow.sum()):,})",
                f"{seconds * 1000:.0f} ms = {whole.ratio(name, 'GAT'):.1f} x",
                f"{again.time(name).median * 1000:.0f} ms = {again.ratio(name, 'GAT'):.1f} x",
                f"{seconds / of_pass:.1f} forward passes of {of_pass * 1000:.0f} ms",
                f"{of_pass * len(pairs):,.0f} s = {of_pass * len(pairs) / seconds:,.0f} x",
            )


class LinkNet(nn.Module):
    """PyG's GAT and a decoder of links."""

    def __init__(self, in_channels: int, num_layers: int, decoder: nn.Module | None) -> None:
        super().__init__()
        self.encoder, self.decoder = PyGGAT(in_channels, 64, num_layers, 32), decoder

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        """One logit a link."""
        z = self.encoder(x, edge_index)
        u, v = z[edge_label_index[0]], z[edge_label_index[1]]
        return (u * v).sum(-1) if self.decoder is None else self.decoder(torch.cat([u, v], dim=-1)).view(-1)


def links(root: str, num_layers: int, table: Table, repeats: int) -> None:
    data = Planetoid("Cora", root=root).graph
    graph, ends = Graph(data.edge_index, data.num_nodes), random_targets(data.num_nodes, 200)
    torch.manual_seed(0)
    decoders = {"dot product": None, "MLP": nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))}

    def timed(subject: Subject, targets: Tensor) -> tuple[float, Pairs]:
        pairs = subject_pairs(subject, targets)
        return best(lambda: ExactReducer(subject).record().reduce(pairs, PROTOCOL), repeats)[0], pairs

    for name, decoder in decoders.items():
        net = LinkNet(data.num_features, num_layers, decoder).eval()
        nodes, _ = timed(Subject.of(net.encoder, data.x, data.edge_index, graph=graph), ends)
        asked = ends.view(2, -1)
        subject = Subject.of(net, data.x, data.edge_index, graph=graph, edge_label_index=asked, head=LOGIT)
        seconds, pairs = timed(subject, torch.arange(100))
        table.add_row(
            f"Cora links, {num_layers} layers: {name}",
            f"{len(pairs):,} ({int(pairs.flow.sum()):,})",
            f"{seconds:.3f} s = {seconds / nodes:.2f} x 200 nodes",
            *[""] * 4,
        )


class TypedNet(nn.Module):
    """Two layers of HGT, or of one GATConv for each relation, and a linear head."""

    def __init__(self, metadata: tuple[list[str], list[EdgeType]], hgt: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            HGTConv(64, 64, metadata)
            if hgt
            else HeteroConv({kind: GATConv((64, 64), 64, add_self_loops=False) for kind in metadata[1]})
            for _ in range(2)
        )
        self.head = nn.Linear(64, 4)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> Tensor:
        """Logits of the nodes of type `a`."""
        for layer in self.layers:
            x_dict = {kind: F.elu(rows) for kind, rows in layer(x_dict, edge_index_dict).items()}
        return self.head(x_dict["a"])


def types(table: Table, repeats: int) -> None:
    generator, size, edges = torch.Generator().manual_seed(0), 1000, 2000
    x = {kind: torch.randn(size, 64, generator=generator) for kind in "abc"}
    kinds: list[EdgeType] = [("a", "to", "b"), ("b", "to", "a"), ("c", "to", "a"), ("a", "to", "c")]
    edge_index = {kind: torch.randint(size, (2, edges), generator=generator) for kind in kinds}
    plain = torch.randint(3 * size, (2, 4 * edges), generator=generator)
    torch.manual_seed(0)
    nets = {"HGT": TypedNet((list("abc"), kinds), True), "HeteroConv of GATConv": TypedNet((list("abc"), kinds), False)}
    homogeneous = Subject.of(PyGGAT(64, 64, 2, 4).eval(), torch.cat(list(x.values())), plain)

    def per_pair(subject: Subject, reducer: type[ExactReducer | CopiesReducer]) -> tuple[float, Pairs]:
        pairs = subject_pairs(subject, torch.arange(200))
        engine = reducer(subject)
        seconds, _ = best(lambda: engine.record().reduce(pairs, PROTOCOL), repeats)
        return seconds / int(pairs.flow.sum()), pairs

    base, _ = per_pair(homogeneous, ExactReducer)
    for name, net in nets.items():
        subject = Subject.of(net.eval(), x, edge_index)
        (seconds, pairs), (copied, _) = per_pair(subject, ExactReducer), per_pair(subject, CopiesReducer)
        table.add_row(
            f"Types: {name}",
            f"{len(pairs):,} ({int(pairs.flow.sum()):,})",
            f"{seconds * 1e6:.1f} us a pair = {seconds / base:.2f} x GAT on one type",
            *[""] * 2,
            f"{copied * 1e6:.0f} us a pair",
            "",
        )


def dblp(root: str, table: Table) -> None:
    data = DBLP(root=root)
    data.setup("fit")
    torch.manual_seed(0)
    nets = {
        "HeteroGAT": HeteroGAT(data.num_features, data.num_classes, hidden_channels=32, heads=2),
        "HGT": HGT(data.num_features, data.num_classes, hidden_channels=64, heads=2),
    }
    for name, net in nets.items():

        def ours(net: nn.Module = net) -> Evaluation:
            return evaluate(net.eval(), data.graph, num_targets=100, methods=["gatt", "avgatt", "uniform", "random"])

        (first, result), (again, _) = best(ours, 1), best(ours, 2)
        seconds = f"{first:.1f} s, again {again:.1f} s"
        table.add_row(f"DBLP, evaluate, 100 targets: {name}", f"{len(result.pairs):,}", seconds, *[""] * 4)


@dataclass
class Growth:
    """By how many MiB the process grew at most."""

    base: float
    peak: float
    _stop: threading.Event = field(default_factory=threading.Event)

    @staticmethod
    def resident() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4096 / 2**20

    def watch(self) -> None:
        while not self._stop.wait(0.005):
            self.peak = max(self.peak, self.resident())

    def stop(self) -> None:
        self._stop.set()

    @property
    def mebibytes(self) -> float:
        return self.peak - self.base


@contextmanager
def growth() -> Iterator[Growth]:
    now = Growth.resident()
    seen = Growth(now, now)
    thread = threading.Thread(target=seen.watch)
    thread.start()
    try:
        yield seen
    finally:
        seen.stop()
        thread.join()


def arxiv(root: str, num_layers: int, count: int, table: Table, repeats: int, console: Console) -> None:
    data = Arxiv(root=root).graph
    x = torch.randn(data.num_nodes, 128, generator=torch.Generator().manual_seed(0))
    net = network(128, 40, num_layers)
    graph = Graph(data.edge_index, data.num_nodes)

    def ours() -> tuple[Pairs, Reduction]:
        pairs = subgraph_pairs(graph, random_targets(data.num_nodes, count), num_layers)
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task(f"Arxiv, {num_layers} layers", total=None)
            recorded = ExactReducer(Subject.of(net, x, data.edge_index, graph=graph)).record()
            return pairs, recorded.reduce(
                pairs, PROTOCOL, progress=lambda done, total: bar.update(task, completed=done, total=total)
            )

    with growth() as grown:
        seconds, (pairs, _) = best(ours, repeats)
    with torch.no_grad():
        forward, _ = best(lambda: net(x, data.edge_index), repeats)
    table.add_row(
        f"Arxiv, {num_layers} layers, {count} targets",
        f"{len(pairs):,} ({int(pairs.flow.sum()):,})",
        f"{seconds:.1f} s",
        f"{seconds / forward:.1f} forward passes",
        f"{forward * len(pairs):,.0f} s = {forward * len(pairs) / seconds:,.0f} x",
        "",
        f"{grown.mebibytes:,.0f} MiB",
    )


def updates(root: str, num_layers: int, count: int) -> None:
    data = Arxiv(root=root).graph
    x = torch.randn(data.num_nodes, 128, generator=torch.Generator().manual_seed(0))
    graph, removal = Graph(data.edge_index, data.num_nodes), PROTOCOLS["removal"]
    pairs = subgraph_pairs(graph, random_targets(data.num_nodes, count), num_layers)
    print(
        f"Arxiv, {data.num_nodes:,} nodes, {data.num_edges:,} edges, {num_layers} layers of width 64, {count} targets\n"
    )
    columns = ("network", "deletions", "with an effect", "of these a second", "all a second", "recorded pass")
    print(f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}")
    for name, kind in LAYERS.items():
        torch.manual_seed(0)
        net = kind(128, 64, num_layers, 40).eval()
        began = time.process_time()
        recorded = ExactReducer(Subject.of(net, x, data.edge_index, graph=graph)).record()
        middle = time.process_time()
        effect = recorded.effect(pairs, removal)
        seconds = time.process_time() - middle
        changing = int((effect != 0).sum())
        rates = f"{changing / seconds:,.0f} | {len(pairs) / seconds:,.0f}"
        print(f"| {name} | {len(pairs):,} | {changing:,} | {rates} | {middle - began:.1f} s |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="data folder (default: data)")
    parser.add_argument("--repeats", type=int, default=20, help="runs of which the best counts (default: 20)")
    parser.add_argument("--sample", type=int, default=40, help="pairs timed with a full forward pass (default: 40)")
    parser.add_argument("--copied", type=int, default=300, help="pairs timed with subgraph copies (default: 300)")
    graphs = ("cora", "layers", "links", "types", "dblp", "arxiv", "updates")
    parser.add_argument("--graphs", nargs="+", choices=graphs, default=graphs, help="which graphs (default: all)")
    arguments = parser.parse_args()

    if "updates" in arguments.graphs:
        updates(arguments.data, 2, 100)
    if arguments.graphs == ["updates"]:
        return
    console = Console(width=170)
    table = Table(title=f"Attention reduction, all pairs, protocol `{PROTOCOL}`, {torch.get_num_threads()} threads")
    for column in ("", "pairs (with a flow)", "ours", "= ours in", "forward per pair*", "subgraph copies*", "memory"):
        table.add_column(column, justify="right" if column else "left")
    of_layers = Table(title=f"Layers with and without attention, all pairs, {torch.get_num_threads()} threads")
    for column in ("", "pairs (with a flow)", "recorded", "again", "= recorded in", "forward per pair*"):
        of_layers.add_column(column, justify="right" if column else "left")
    if "cora" in arguments.graphs:
        for num_layers in (2, 3):
            cora(arguments.data, num_layers, table, arguments.repeats, arguments.sample, arguments.copied)
    if "layers" in arguments.graphs:
        for num_layers in (2, 3):
            layers(arguments.data, num_layers, of_layers, arguments.repeats)
    if "links" in arguments.graphs:
        for num_layers in (2, 3):
            links(arguments.data, num_layers, table, arguments.repeats)
    if "types" in arguments.graphs:
        types(table, min(arguments.repeats, 3))
    if "dblp" in arguments.graphs:
        dblp(arguments.data, table)
    if "arxiv" in arguments.graphs:
        for num_layers, count in ((2, 100), (3, 20)):
            arxiv(arguments.data, num_layers, count, table, min(arguments.repeats, 2), console)
    console.print(table)
    if "layers" in arguments.graphs:
        console.print(of_layers)
    console.print(
        f"* extrapolated from {arguments.sample} forward passes (Arxiv: from one) and from {arguments.copied} copies.\n"
        "Ours includes the forward pass that is reduced in; on Arxiv also the listing of the pairs.\n"
        "Behind the seconds of ours: times those of attree's GAT."
    )


if __name__ == "__main__":
    main()
