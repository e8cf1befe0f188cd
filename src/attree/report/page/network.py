"""The network within a page, so that the page answers what-if questions without a server.

A page carries what the predictions of its targets need: for the first layer, the projected features of the nodes around
them; for later layers, the weights. The browser computes the rest (`web/src/network.js`). The same computation in
NumPy, on the numbers that the page gets, is compared with the model while the page is written. If they differ, the page
carries nothing and says so.

The network is read from one recorded pass: stacks of GATConv, GATv2Conv, GCNConv and SAGEConv, whoever wrote the model,
with an elementwise function between two layers and nothing after the last one but a sum or mean over a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, MessagePassing, SAGEConv

from attree.attention import LayerCall, Watcher, instrument
from attree.attention.stand_ins import eval_mode
from attree.errors import AttreeError
from attree.evaluation import Evaluation
from attree.faithfulness import PROTOCOLS, CopiesReducer
from attree.faithfulness.effect_measures import ReductionPass
from attree.faithfulness.exact.convolution_algebra import is_plain_linear
from attree.faithfulness.wide_floats import WideSubject
from attree.report.drawn_targets import DrawnPart
from attree.report.page.target import packed
from attree.tensors.arrays import Bools, Floats, Ints, Rows
from attree.tensors.precision import same

TOLERANCE = 1e-6
"""Largest difference between a probability of the page and the model's. Numbers on the page have seven digits."""

MOST_BYTES = 2 * 2**20
"""Most bytes of inputs of the first layer. Targets that come after have no inputs."""

CHECKED_SETS = 5
"""Targets for which sets of several edges are compared, beside the single edges of all targets."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
}
"""Functions between layers that the page knows, by their names there."""


class NoPageNetworkError(AttreeError):
    """The page cannot compute predictions of this model; the message says why."""


@dataclass(frozen=True)
class PageLayer:
    """One layer as the page computes it.

    Attributes:
        kind: The convolution: `gat`, `gatv2`, `gcn` or `sage`.
        heads: Number of attention heads.
        slope: Slope of the LeakyReLU in scores.
        joins: Whether the outputs of the heads stand side by side; otherwise they are averaged.
        has_loops: Whether the layer adds a self-loop to every node.
        weights: Weight arrays by name: `left` and `right`, the maps of sources and destinations, with `left_bias` and
            `right_bias`; `source`, `destination` and `score`, the attention vectors [heads, channels]; `bias`.
    """

    kind: str
    heads: int
    slope: float
    joins: bool
    has_loops: bool
    weights: dict[str, Floats]

    def project(self, x: Floats, side: str) -> Floats | None:
        """Return the projected features of sources (`left`) or destinations (`right`); None if the layer has none."""
        if side not in self.weights:
            return None
        product = x @ self.weights[side].T.astype(np.float64)
        return product + self.weights[f"{side}_bias"] if f"{side}_bias" in self.weights else product

    def output(self, left: Floats, right: Floats | None, edges: EdgesOfTarget, protocol: str) -> Floats:
        """Return the layer's output for every node around a target.

        Args:
            left: Projected features of sources.
            right: Projected features of destinations, if the layer has some.
            edges: The edges around the target, and which of them are reduced.
            protocol: How they are reduced.
        """
        used = np.ones(len(edges.source), dtype=bool) if self.has_loops else edges.source != edges.destination
        used &= ~(edges.is_cut & (protocol == "removal"))
        source, destination, is_cut = edges.source[used], edges.destination[used], edges.is_cut[used]
        size, is_silent = len(left), is_cut & (protocol != "coefficient")
        if self.kind in ("gat", "gatv2"):
            heads = left.reshape(size, self.heads, -1)
            weight = self._attention(heads, right, source, destination, is_cut & (protocol == "coefficient"))
            weight[is_silent] = 0.0
            out = _sums(weight[:, :, None] * heads[source], destination, size)
            out = out.reshape(size, -1) if self.joins else out.mean(axis=1)
        elif self.kind == "gcn":
            degree = edges.degree + self.has_loops
            if protocol == "removal":
                proper = edges.is_cut & (edges.source != edges.destination)
                degree = degree - np.bincount(edges.destination[proper], minlength=size)
            scale = np.where(degree > 0, np.maximum(degree, 1) ** -0.5, 0.0)
            weight = scale[source] * scale[destination] * ~is_silent
            out = _sums(weight[:, None] * left[source], destination, size)
        else:
            count = np.maximum(np.bincount(destination, minlength=size), 1)[:, None]
            out = _sums(~is_silent[:, None] * left[source], destination, size) / count
            out = out if right is None else out + right
        return out + self.weights["bias"] if "bias" in self.weights else out

    def _attention(
        self, heads: Floats, right: Floats | None, source: Ints, destination: Ints, is_even: Bools
    ) -> Floats:
        """Return the attention of each edge and head; the scores of some edges become 0."""
        if self.kind == "gat":
            of_source = (heads * self.weights["source"]).sum(axis=-1)
            of_destination = (heads * self.weights["destination"]).sum(axis=-1)
            scores = self._leaky(of_source[source] + of_destination[destination])
        else:
            assert right is not None
            hidden = self._leaky(heads[source] + right.reshape(heads.shape)[destination])
            scores = (hidden * self.weights["score"]).sum(axis=-1)
        scores[is_even] = 0.0
        highest = np.full((len(heads), self.heads), -np.inf)
        np.maximum.at(highest, destination, scores)
        shares = np.exp(scores - highest[destination])
        attention: Floats = shares / _sums(shares, destination, len(heads))[destination]
        return attention

    def _leaky(self, values: Floats) -> Floats:
        return np.where(values > 0, values, self.slope * values)


@dataclass(frozen=True)
class EdgesOfTarget:
    """The edges around a target, with its own node numbers; `degree` counts all edges that enter a node, but loops."""

    source: Ints
    destination: Ints
    is_cut: Bools
    degree: Ints


@dataclass
class PageNetwork:
    """The network of a page, and the inputs of the targets that were added.

    Attributes:
        layers: The layers.
        activations: Name of the function after each layer but the last.
        pooling: `sum` or `mean` if targets are graphs; None if they are nodes.
        is_binary: Whether there is one output, the logit of the second of two classes.
        features: The features that enter the first layer, [N, channels].
        degree: Number of edges that enter each node, without self-loops, [N].
        node_rows: The row of each node in the page's table of inputs; -1 if it has none.
        parts: The neighbourhoods of the targets that were added, by their position in the evaluation.
    """

    layers: list[PageLayer]
    activations: list[str]
    pooling: str | None
    is_binary: bool
    features: Floats
    degree: Ints
    node_rows: Ints
    nodes: list[int] = field(default_factory=list)
    parts: dict[int, DrawnPart] = field(default_factory=dict)

    @classmethod
    def of(cls, evaluation: Evaluation) -> PageNetwork:
        """Return the network of an evaluation's model, still without targets.

        Raises:
            NoPageNetworkError: The page cannot compute predictions of this model.
        """
        subject = evaluation.subject
        if subject is None or subject.model_call is None:
            raise NoPageNetworkError("The page was made without the model.")
        if subject.level == "edge" or evaluation.predicts_numbers or subject.graph.types is not None:
            raise NoPageNetworkError("The page computes predictions of classes of nodes and graphs of one type only.")
        if unknown := [name for name in evaluation.reductions if name not in PROTOCOLS]:
            raise NoPageNetworkError(f"The page does not know the protocol {unknown[0]}.")
        run = WideSubject(subject).run()
        record = LayerOutputs()
        with run.context(), eval_mode(run.subject.model), torch.no_grad(), instrument(run.subject.model, record):
            output = run.subject.call.run()
        graph = run.subject.graph
        layers, activations = record.stack(graph.num_nodes)
        ends = graph.original_edge_index
        if bool((ends[0] == ends[1]).any()) and not all(layer.has_loops for layer in layers):
            raise NoPageNetworkError("The page does not compute networks that read the self-loops of the data.")
        last, head = record.calls[-1][1], run.subject.head
        shares = head.logits(output, head.measured(output)).softmax(dim=-1)
        pooling = _pooling(shares, last, run.subject.batch)
        return cls(
            layers,
            activations,
            pooling,
            last.shape[1] == 1,
            record.calls[0][0].features.cpu().numpy(),
            torch.bincount(graph.edge_index[1], minlength=graph.num_nodes).cpu().numpy() - 1,
            np.full(graph.num_nodes, -1, dtype=np.int64),
        )

    def add(self, position: int, part: DrawnPart) -> Ints | None:
        """Add a target with all edges around it; return the rows of its nodes, or None if the page would be too large.

        Args:
            position: Position of the target in the evaluation.
            part: The neighbourhood of the target.
        """
        new_nodes = part.nodes[self.node_rows[part.nodes] < 0]
        sides = sum(side in self.layers[0].weights for side in ("left", "right"))
        width = sides * len(self.layers[0].weights["left"])
        if (len(self.nodes) + len(new_nodes)) * width * 4 > MOST_BYTES:
            return None
        self.node_rows[new_nodes] = len(self.nodes) + np.arange(len(new_nodes))
        self.nodes.extend(new_nodes.tolist())
        self.parts[position] = part
        return self.node_rows[part.nodes]

    def inputs(self, side: str) -> Floats | None:
        """Return the projected features that the page carries, in its precision; None if the first layer has none."""
        values = self.layers[0].project(self.features[self.nodes], side)
        return None if values is None else values.astype(np.float32).astype(np.float64)

    @cached_property
    def tables(self) -> dict[str, Floats]:
        """The inputs of all nodes on the page, `left` and `right`; to be read when all targets are added."""
        tables = {side: self.inputs(side) for side in ("left", "right")}
        return {side: table for side, table in tables.items() if table is not None}

    def after(self, evaluation: Evaluation, position: int, protocol: str) -> dict[str, Any]:
        """Return the predicted class and its probability after the reduction of each edge around a target.

        Args:
            evaluation: The evaluation, whose effects are known.
            position: Position of the target in the evaluation.
            protocol: How edges are reduced.
        """
        assert evaluation.predictions is not None
        begin, end = evaluation.pairs.ptr[position : position + 2].tolist()
        reduction, shares = evaluation.reductions[protocol], evaluation.predictions[position]
        classes = np.full(end - begin, int(shares.argmax()))
        confidence = float(shares.max()) - reduction.delta_pc[begin:end].cpu().double().numpy()
        for edge in reduction.changed[begin:end].cpu().nonzero().view(-1).tolist():
            after = self.predict(position, np.array([edge]), protocol)
            classes[edge], confidence[edge] = after.argmax(), after.max()
        return {"after": packed(classes, "u2"), "confidence": packed(confidence, "f4")}

    def predict(self, position: int, cut: Ints, protocol: str) -> Floats:
        """Return the class probabilities of a target with some edges reduced.

        Args:
            position: Position of the target in the evaluation.
            cut: Positions of the reduced edges among those of the target.
            protocol: How they are reduced.
        """
        part = self.parts[position]
        rows, is_cut = self.node_rows[part.nodes], np.zeros(len(part.edges), dtype=bool)
        is_cut[cut] = True
        edges = EdgesOfTarget(part.source, part.destination, is_cut, self.degree[part.nodes])
        left, right = (self.tables[side][rows] if side in self.tables else None for side in ("left", "right"))
        x = np.empty(0)
        for number, layer in enumerate(self.layers):
            if number > 0:
                left, right = layer.project(x, "left"), layer.project(x, "right")
            assert left is not None
            x = layer.output(left, right, edges, protocol)
            if number < len(self.activations):
                x = ACTIVATIONS[self.activations[number]](torch.from_numpy(x)).numpy()
        logits = x[part.target] if self.pooling is None else x.sum(axis=0)
        logits = logits / len(x) if self.pooling == "mean" else logits
        if self.is_binary:
            logits = np.array([0.0, float(logits[0])])
        shares: Floats = np.exp(logits - logits.max())
        return shares / shares.sum()

    def check(self, evaluation: Evaluation) -> None:
        """Compare the page's predictions with the model's: without reductions, with one edge reduced, with several.

        Raises:
            NoPageNetworkError: They differ.
        """
        if evaluation.predictions is None or not self.parts:
            raise NoPageNetworkError("The neighbourhoods are too large for the page.")
        pairs, generator, nothing, largest = (
            evaluation.pairs,
            np.random.default_rng(0),
            np.empty(0, dtype=np.int64),
            0.0,
        )
        before: dict[int, Floats] = {}
        for position in self.parts:
            before[position] = self.predict(position, nothing, "removal")
            largest = max(largest, _largest(before[position] - evaluation.predictions[position].cpu().numpy()))
        assert evaluation.subject is not None
        recorded = CopiesReducer(evaluation.subject).record()
        for protocol, reduction in evaluation.reductions.items():
            owner, sets, answers = [], [], []
            for number, (position, part) in enumerate(self.parts.items()):
                size, begin = len(part.edges), int(pairs.ptr[position])
                for edge in generator.choice(size, min(size, 3), replace=False):
                    share = before[position] - self.predict(position, np.array([edge]), protocol)
                    drop = float(reduction.delta_pc[begin + int(edge)])
                    largest = max(largest, abs(float(share[before[position].argmax()]) - drop))
                if number < CHECKED_SETS and size > 1:
                    for count in (2, (size + 2) // 3):
                        cut = np.sort(generator.choice(size, min(size, count), replace=False))
                        owner.append(position)
                        sets.append(torch.from_numpy(part.edges[cut].astype(np.int64)))
                        answers.append(self.predict(position, cut, protocol))
            largest = max(largest, _difference_of_sets(evaluation, recorded, protocol, owner, sets, answers))
        if not largest <= TOLERANCE:  # NaN is no equality
            raise NoPageNetworkError(
                f"The page does not hold the network: what it would compute differs from the model by {largest:.1g}."
            )

    def content(self) -> dict[str, Any]:
        """Return the network as plain values for the page."""
        layers = []
        reads_degrees = any(layer.kind == "gcn" for layer in self.layers)
        for number, layer in enumerate(self.layers):
            projections = () if number > 0 else ("left", "right", "left_bias", "right_bias")
            weights = {name: packed(values, "f4") for name, values in layer.weights.items() if name not in projections}
            shape = {"kind": layer.kind, "heads": layer.heads, "slope": layer.slope, "joins": layer.joins}
            layers.append({**shape, "loops": layer.has_loops, "weights": weights})
        return {
            "layers": layers,
            "activations": self.activations,
            "pooling": self.pooling,
            "binary": self.is_binary,
            "inputs": {side: packed(table, "f4") for side, table in self.tables.items()},
            "degree": packed(self.degree[self.nodes if reads_degrees else []], "i4"),
            "rows": len(self.nodes),
        }


class LayerOutputs(Watcher):
    """Notes what enters and leaves each layer."""

    def __init__(self) -> None:
        self.calls: list[tuple[LayerCall, Tensor]] = []

    def end(self, call: LayerCall, output: Any) -> Any:
        self.calls.append((call, output))

    def stack(self, num_nodes: int) -> tuple[list[PageLayer], list[str]]:
        """Return the layers and the functions between them; raise unless each layer reads the one before alone."""
        if not self.calls:
            raise NoPageNetworkError("The page does not hold the network: it has no layers along edges.")
        layers = []
        for call, output in self.calls:
            is_plain = isinstance(output, Tensor) and isinstance(call.features, Tensor) and not call.is_inner
            if not is_plain or call.features.shape[0] != num_nodes or output.dim() != 2:
                raise NoPageNetworkError(f"The page does not compute {call.name} as this model calls it.")
            layers.append(_layer(call))
        activations = []
        for (before, output), (call, _) in zip(self.calls, self.calls[1:], strict=False):
            between = (name for name, function in ACTIVATIONS.items() if same(call.features, function(output)))
            name = next(between, None)
            if name is None:
                raise NoPageNetworkError(
                    f"The page does not hold the network: it does not know what stands between {before.name} and "
                    f"{call.name}."
                )
            activations.append(name)
        return layers, activations


def _layer(call: LayerCall) -> PageLayer:
    """Return a convolution as the page computes it; raise if it has options that the page does not know."""
    conv = call.conv
    others = [value for value in (*call.args[1:], *call.kwargs.values()) if value is not None]
    reader = READERS.get(type(conv))
    # A module in place of a linear layer, such as LoRA, computes more than the page does.
    is_plain = all(is_plain_linear(module) for name, module in conv.named_children() if name.startswith("lin"))
    layer = None if reader is None or len(others) > 1 or not is_plain else reader(conv)
    if layer is None:
        raise NoPageNetworkError(f"The page does not compute {type(conv).__name__}, or not with these options.")
    return layer


SUMS = ("add", "sum")


def _gat(conv: Any) -> PageLayer | None:
    if (
        conv.edge_dim is not None
        or getattr(conv, "res", None) is not None
        or getattr(conv, "lin", None) is None
        or conv.aggr not in SUMS
    ):
        return None
    weights = {"left": conv.lin.weight, "source": conv.att_src[0], "destination": conv.att_dst[0], "bias": conv.bias}
    return _attention_layer("gat", conv, weights)


def _gatv2(conv: Any) -> PageLayer | None:
    if conv.edge_dim is not None or getattr(conv, "res", None) is not None or conv.aggr not in SUMS:
        return None
    weights = {"left": conv.lin_l.weight, "left_bias": conv.lin_l.bias, "score": conv.att[0], "bias": conv.bias}
    weights |= {"right": conv.lin_r.weight, "right_bias": conv.lin_r.bias}
    return _attention_layer("gatv2", conv, weights)


def _attention_layer(kind: str, conv: Any, weights: dict[str, Tensor | None]) -> PageLayer:
    return PageLayer(kind, conv.heads, conv.negative_slope, conv.concat, bool(conv.add_self_loops), _arrays(weights))


def _gcn(conv: Any) -> PageLayer | None:
    if conv.improved or not conv.normalize or conv.aggr not in SUMS:
        return None
    weights = {"left": conv.lin.weight, "bias": conv.bias}
    return PageLayer("gcn", 1, 0.0, True, bool(conv.add_self_loops), _arrays(weights))


def _sage(conv: Any) -> PageLayer | None:
    if conv.normalize or conv.project or conv.aggr != "mean":
        return None
    weights = {"left": conv.lin_l.weight, "bias": conv.lin_l.bias}
    weights |= {"right": conv.lin_r.weight} if conv.root_weight else {}
    return PageLayer("sage", 1, 0.0, True, False, _arrays(weights))


READERS: dict[type[MessagePassing], Callable[[Any], PageLayer | None]] = {
    GATConv: _gat,
    GATv2Conv: _gatv2,
    GCNConv: _gcn,
    SAGEConv: _sage,
}
"""For each convolution, a function that reads it; it returns None for options that the page does not know."""


def _arrays(weights: Mapping[str, nn.Parameter | Tensor | None]) -> dict[str, Floats]:
    """Return weights in the precision of the page."""
    return {name: value.detach().cpu().float().double().numpy() for name, value in weights.items() if value is not None}


def _pooling(shares: Tensor, last: Tensor, batch: Tensor | None) -> str | None:
    """Return how the last layer's rows become a prediction; raise if something else stands between."""

    def probabilities(logits: Tensor) -> Tensor:
        return (torch.cat([torch.zeros_like(logits), logits], dim=1) if last.shape[1] == 1 else logits).softmax(dim=-1)

    if batch is None:
        tables: dict[str | None, Tensor] = {None: last}
    else:
        sums = last.new_zeros(len(shares), last.shape[1]).index_add(0, batch, last)
        tables = {"sum": sums, "mean": sums / torch.bincount(batch, minlength=len(shares)).clamp(min=1)[:, None]}
    for pooling, table in tables.items():
        if shares.shape == probabilities(table).shape and same(probabilities(table), shares):
            return pooling
    raise NoPageNetworkError("The page does not hold the network: it does not know what follows its last layer.")


def _difference_of_sets(
    evaluation: Evaluation,
    recorded: ReductionPass,
    protocol: str,
    owner: list[int],
    sets: list[Tensor],
    answers: list[Floats],
) -> float:
    """Return the largest difference from the model's probabilities with sets of edges reduced."""
    if not sets:
        return 0.0
    device = evaluation.pairs.ptr.device
    order = np.argsort(owner, kind="stable")
    ptr = torch.tensor([0, *np.cumsum([len(sets[place]) for place in order]).tolist()], device=device)
    rows = Rows(ptr, torch.cat([sets[place] for place in order]).to(device))
    owners = torch.tensor([owner[place] for place in order], device=device)
    output = recorded.reduce_sets(evaluation.pairs.targets, owners, rows, PROTOCOLS[protocol])
    assert evaluation.subject is not None
    shares = evaluation.subject.head.logits(output).softmax(dim=-1).cpu().numpy()
    return _largest(shares - np.stack([answers[place] for place in order]))


def _largest(differences: Floats) -> float:
    return float(np.abs(differences).max(initial=0.0))


def _sums(values: Floats, index: Ints, size: int) -> Floats:
    """Return the sums of rows with the same index, [size, ...]."""
    sums = np.zeros((size, *values.shape[1:]))
    np.add.at(sums, index, values)
    return sums
