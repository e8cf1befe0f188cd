"""The paper's networks: settings, data, training, the authors' published weights, and the SuperGAT-MX of their code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import SuperGATConv
from torch_geometric.utils import softmax

from attree.attention import Graph
from attree.attention.capture import Attention
from attree.attention.stand_ins import eval_mode
from attree.data import Arxiv, BAShapes, GraphDataModule, Infection, NodeDataModule, Planetoid, WebKB
from attree.data.datasets.hin import HIN
from attree.data.datasets.mutag import MUTAG
from attree.data.datasets.third_party import load_arrays
from attree.errors import MissingDataError, expect
from attree.faithfulness.exact.convolution_algebra import SuperGATAlgebra, register_algebra
from attree.models import GAT, AttentionNet, GATv2, GraphClassifier, SuperGAT
from attree.paper.printed_numbers import Recipe, recipe

WeightSource = Literal["trained", "untrained", "authors"]
MODELS = ("GAT", "GATv2", "SuperGAT-MX", "SuperGAT-SD", "SuperGAT-MX-authors")
PLANETOID: tuple[Literal["Cora", "CiteSeer", "PubMed"], ...] = ("Cora", "CiteSeer", "PubMed")
WEBKB: tuple[Literal["Cornell", "Texas", "Wisconsin"], ...] = ("Cornell", "Texas", "Wisconsin")
REAL = (*PLANETOID, "Arxiv", *WEBKB)
SYNTHETIC, GRAPHS = ("BA-Shapes", "Infection"), ("MUTAG", "HIN")
DATASETS = (*REAL, *SYNTHETIC, *GRAPHS)


@dataclass(frozen=True)
class Net:
    """The settings of a network: its dataset, shape and training.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the network.
        layers: Number of layers.
        seed: Seed of the split, the initial weights and training.
        heads: Number of heads of all layers except the last, which has one head, as in the authors' code.
        weight_decay: Adam's L2 penalty.
        attention_dropout: Attention dropout of the first layer. The authors' code has it only there.
        weights: `trained` by the recipe, `untrained`, or the `authors`' published weights.
        epochs: Number of epochs; None for the recipe's.
    """

    dataset: str
    model: str = "GAT"
    layers: int = 2
    seed: int = 0
    heads: int = 1
    weight_decay: float = 0.0
    attention_dropout: float = 0.0
    weights: WeightSource = "trained"
    epochs: int | None = None

    def __post_init__(self) -> None:
        expect(self.dataset in DATASETS, "dataset", f"one of {', '.join(DATASETS)}", self.dataset)
        expect(self.model in MODELS, "model", f"one of {', '.join(MODELS)}", self.model)

    def __str__(self) -> str:
        parts = [self.dataset, f"{self.model} of {self.layers} layers"]
        parts += [f"{self.heads} heads"] * (self.heads > 1)
        parts += [f"weight decay {self.weight_decay:g}"] * (self.weight_decay > 0)
        parts += [f"attention dropout {self.attention_dropout:g}"] * (self.attention_dropout > 0)
        parts += [f"{self.weights} weights"] * (self.weights != "trained")
        return ", ".join([*parts, f"seed {self.seed}"])

    @property
    def recipe(self) -> Recipe:
        """Its training settings."""
        return recipe(self.dataset, "SuperGAT" if self.model.startswith("SuperGAT") else self.model, self.layers)


def make_data(dataset: str, layers: int, seed: int, root: str) -> NodeDataModule | GraphDataModule:
    """Make a dataset as the authors used it: their graphs, features and seeded splits."""
    for citations in PLANETOID:
        if dataset == citations:
            return Planetoid(citations, seed=seed, normalize_features=True, root=root)
    for pages in WEBKB:
        if dataset == pages:
            return WebKB(pages, root=root)
    if dataset == "Arxiv":
        # The paper counts 1,166,243 edges: citations in one direction, as OGB has them.
        return Arxiv(symmetrize=False, seed=seed, root=root)
    if dataset == "Infection":
        return Infection(num_layers=layers, source="authors", seed=seed, root=root)
    if dataset == "BA-Shapes":
        return BAShapes(source="authors", root=root)
    return MUTAG(seed=seed, root=root) if dataset == "MUTAG" else HIN(seed=seed, root=root)


def build(net: Net, in_channels: int, out_channels: int) -> AttentionNet:
    """Build an untrained network."""
    hidden = net.recipe.hidden_channels
    if net.model in ("GAT", "GATv2"):
        return (GAT if net.model == "GAT" else GATv2)(
            in_channels,
            out_channels,
            hidden,
            net.layers,
            net.heads,
            attention_dropout=[net.attention_dropout] + [0.0] * (net.layers - 1),
            last_heads=1 if net.heads > 1 else None,
        )
    # Dropout and the share of sampled edges are those of the authors' code.
    return (AuthorsSuperGAT if net.model == "SuperGAT-MX-authors" else SuperGAT)(
        in_channels,
        out_channels,
        hidden,
        net.layers,
        dropout=0.6,
        attention_dropout=0.6,
        attention_type="SD" if net.model == "SuperGAT-SD" else "MX",
        edge_sample_ratio=0.8,
    )


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Fix the seed and use one thread, so that sums are added in the same order; undo both on exit."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def make_model(net: Net, data: NodeDataModule | GraphDataModule) -> nn.Module:
    """Build an untrained model. A graph-level model sums over nodes and has no bias."""
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
    """Return the share of test nodes or graphs that are classified correctly."""
    with torch.no_grad():
        if isinstance(data, NodeDataModule):
            graph = data.graph
            right = model(graph.x, graph.edge_index).argmax(dim=-1) == graph.y
            return float(right[graph.test_mask].float().mean())
        batch = held_out(data)
        predicted = model(batch.x, batch.edge_index, batch.batch, batch.num_graphs).argmax(dim=-1)
        return float((predicted == batch.y).float().mean())


def held_out(data: GraphDataModule) -> Batch:
    """Return the test graphs as one batch."""
    return Batch.from_data_list([data.graphs[position] for position in data.split["test"]])


def load_authors_gat(path: str | Path) -> GAT:
    """Load a single-head GAT with the authors' weights (`gatt_paper/gat_*.npz`), in eval mode.

    Layer k has the arrays `layer{k}.weight` [out, in], `layer{k}.att_src` and `layer{k}.att_dst` [1, 1, out], and
    `layer{k}.bias` [out] if it has a bias.
    """
    remedy = "Set `path` to one of the files `gatt_paper/gat_*.npz`, which hold the paper authors' weights."
    stored = load_arrays(Path(path), remedy)
    num_layers = sum(name.endswith(".weight") for name in stored)
    expect(num_layers >= 1, "path", "a file with arrays named layer0.weight, ...", sorted(stored))
    try:
        return _authors_gat({name: torch.from_numpy(array) for name, array in stored.items()}, num_layers).eval()
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise MissingDataError(f"The file {path} does not hold the weights of a GAT. {remedy}") from error


def _authors_gat(arrays: dict[str, Tensor], num_layers: int) -> GAT:
    """Return a single-head GAT with the authors' weights, given as arrays by name."""
    first, last = arrays["layer0.weight"], arrays[f"layer{num_layers - 1}.weight"]
    net = GAT(
        in_channels=first.shape[1],
        out_channels=last.shape[0],
        hidden_channels=first.shape[0],
        num_layers=num_layers,
        bias="layer0.bias" in arrays,
    )
    net.load_state_dict(
        {
            f"convs.{name.removeprefix('layer').replace('.weight', '.lin.weight')}": array
            for name, array in arrays.items()
        }
    )
    return net


class DotProductConv(SuperGATConv):
    """A SuperGAT convolution that weights messages by dot products."""

    def get_attention(
        self, edge_index_i: Tensor, x_i: Tensor, x_j: Tensor, num_nodes: int | None, return_logits: bool = False
    ) -> Tensor:
        """Return the attention weights, or the dot products for the edge-prediction loss."""
        logits = (x_i * x_j).sum(dim=-1)
        if return_logits:
            return logits
        return softmax(F.leaky_relu(logits, self.negative_slope), edge_index_i, num_nodes=num_nodes)

    def reported(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the MX weights [edges, heads] that the authors' code returns as attention."""
        x = self.lin(x).view(-1, self.heads, self.out_channels)
        # PyG's own method, which `get_attention` above overrides.
        return super().get_attention(edge_index[1], x[edge_index[1]], x[edge_index[0]], num_nodes=x.shape[0])


class DotProductAlgebra(SuperGATAlgebra):
    """The algebra of `DotProductConv` for the exact engine: score = LeakyReLU(dot)."""

    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        return self._activated((source * target).sum(dim=-1))

    def score_all(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        return self._activated(torch.einsum("rhc,dhc->rhd", target, source))

    def _activated(self, dot: Tensor) -> Tensor:
        return F.leaky_relu(dot, float(self.conv.negative_slope))


register_algebra(DotProductConv, DotProductAlgebra)


class AuthorsSuperGAT(SuperGAT):
    """The SuperGAT-MX of the authors' code, with `DotProductConv`."""

    conv_class = DotProductConv

    @property
    def conv(self) -> str:
        return "SuperGAT-MX-authors"


def reported_attention(net: AuthorsSuperGAT, x: Tensor, graph: Graph) -> Attention:
    """Return the attention that the authors' code returns: MX weights, which its forward pass does not use."""
    inputs: list[Tensor] = []

    def see(conv: nn.Module, args: tuple[Any, ...]) -> None:
        inputs.append(args[0])

    handles = [conv.register_forward_pre_hook(see) for conv in net.convs]
    try:
        with eval_mode(net), torch.no_grad():
            net(x, graph.original_edge_index)
            weights = [
                conv.reported(conv_input, graph.edge_index)
                for conv, conv_input in zip(net.convs, inputs, strict=True)
                if isinstance(conv, DotProductConv)
            ]
    finally:
        for handle in handles:
            handle.remove()
    return Attention.from_weights(graph, [weight.mean(dim=1) for weight in weights])
