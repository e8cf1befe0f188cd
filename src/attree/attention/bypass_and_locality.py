"""Find what attention weights cannot explain in a model: paths around layers, distant nodes, and random outputs.

Each measure runs the model again: `run(features)` returns the outputs for other node features, one row per node or per
graph. All other arguments stay the same. `measure_bypass` sets attention weights to 0. `measure_locality` puts loud
noise on the nodes that are out of reach of some targets: outputs that change read more than the layers reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.graph import Graph
from attree.attention.instruments import LayerCall, Softmax, Watcher, instrument
from attree.attention.stand_ins import eval_mode, inplace_messages, score_tensor
from attree.errors import expect
from attree.tensors.precision import same

RunOnFeatures = Callable[[Any], Any]
"""Calls the model with other node features: a tensor, or a dict by node type."""

NEGLIGIBLE = 1e-3
"""Smaller changes, relative to the spread of the outputs, are ignored: norms can magnify rounding errors this far."""

LOUDNESS = 8.0
"""Scale of the noise relative to the largest feature, so that a maximum over rows changes, too."""

CANDIDATES = 16
"""Number of random nodes from which those with small neighbourhoods are chosen."""


@dataclass(frozen=True)
class Bypass:
    """Dependence of the predictions on paths that bypass attention layers.

    Attributes:
        share: The largest share of targets that keep their predicted class if the attention weights of one bypassed
            layer, or of all layers, are 0. It is 0 if no layer is bypassed, and NaN if outputs are NaN or have no
            class.
        layer: The layer of this share, counted from 0; None if all layers were set to 0 at once.
        spread: The spread of the outputs over nodes or graphs with all attention weights 0, relative to the usual
            spread.
        bypassed_layers: The layers that are bypassed: without the weights of such a layer, the outputs still depend on
            the layers before.
    """

    share: float
    layer: int | None = None
    spread: float = 0.0
    bypassed_layers: frozenset[int] = frozenset()

    @property
    def exists(self) -> bool:
        """Whether any path bypasses attention."""
        return self.spread > NEGLIGIBLE or bool(self.bypassed_layers)

    def __str__(self) -> str:
        """Say whether information bypasses attention, and which share of targets keeps its class at weights of 0."""
        if math.isnan(self.spread):
            return "The bypass of attention is undefined: the model's outputs are NaN."
        if not self.exists:
            return "Nothing bypasses attention: without any one layer's weights the outputs are the same for all."
        which = "all attention weights" if self.layer is None else f"all attention weights of layer {self.layer + 1}"
        share = "" if math.isnan(self.share) else f"With {which} 0, {self.share:.0%} of the targets keep their class: "
        bypass = "information bypasses attention (a skip connection, jumping knowledge, a readout)"
        if self.share == 0:
            return f"{bypass.capitalize()}, but with {which} 0 no target keeps its class."
        sentence = f"{share}{bypass if share else bypass.capitalize()}"
        return f"{sentence}, so attention explains only a part of these predictions."


def predicted_class(output: Tensor) -> Tensor:
    """Return the class of each row: the column of the largest score, or the sign of a single score.

    >>> predicted_class(torch.tensor([[0.1, 0.7], [0.4, 0.2]])).tolist()
    [1, 0]
    >>> predicted_class(torch.tensor([0.5, -2.0])).tolist()
    [True, False]
    """
    if output.dim() < 2 or output.shape[-1] == 1:
        return output.reshape(output.shape[0], -1).squeeze(-1) > 0
    return output.argmax(dim=-1)


@torch.no_grad()
def measure_bypass(
    model: nn.Module,
    run: RunOnFeatures,
    x: Any,
    *,
    layers: Sequence[Collection[int]],
    usual: Tensor | None = None,
    targets: Tensor | None = None,
    predict: Callable[[Tensor], Tensor] | None = predicted_class,
    bypassed_before: Collection[int] = (),
) -> Bypass:
    """Run a model with all attention weights 0, then with those of one layer at a time, and compare its outputs.

    If the weights of layer l are 0, the output of a plain stack does not depend on the layers before l. So a path goes
    around layer l if the output then changes with the outputs of layers 1 to l - 1 (for layer 1: with the features).
    This takes one run per layer. If a path bypasses the last layer, it takes one more run for all layers, and up to
    one more per layer to find the bypassed layers.

    Args:
        model: The model.
        run: Calls the model with other features.
        x: The node features; for a heterogeneous graph, a dict by node type.
        layers: The convolution calls of each layer, see `Wiring.layers`; one layer of all calls if there is no chain.
        usual: The output for `x`, if it was computed already.
        targets: Rows of the output to count; None for all.
        predict: Returns the predicted class of each row; None if outputs have no classes.
        bypassed_before: `Bypass.bypassed_layers` of an earlier measurement of the same model.
    """

    def cut(layer_numbers: Sequence[int], features: Any = x) -> Tensor:
        with instrument(model, _ZeroWeights({call for layer in layer_numbers for call in layers[layer]})):
            return score_tensor(run(features))

    every = range(len(layers))
    with eval_mode(model), inplace_messages(model):
        usual = score_tensor(run(x)) if usual is None else usual
        size, has_rows = _spread(usual), usual.shape[0] > 1
        last = cut(every[-1:]) if has_rows and len(layers) > 1 else None
        # If nothing bypasses the last layer, the layers before it do not matter.
        bare = last if last is not None and _spread(last) <= NEGLIGIBLE * size else cut(every)
        size_bare = _spread(bare)
        if not has_rows:
            # With a single row, compare with the same graph with all features 0.
            nothing = _of_all_types(torch.zeros_like, x)
            size = _spread(torch.cat([usual, score_tensor(run(nothing))]))
            size_bare = _spread(torch.cat([bare, cut(every, nothing)]))
        if math.isnan(size) or math.isnan(size_bare):
            return Bypass(math.nan, spread=math.nan)
        spread = size_bare / size if size > 0 else (0.0 if size_bare == 0 else math.inf)
        outputs_without: dict[int | None, Tensor] = {None: bare} if spread > NEGLIGIBLE else {}
        bypassed = set()
        for layer in every if len(layers) > 1 else ():
            without = last if last is not None and layer == every[-1] else cut([layer])
            if has_rows and not _spread(without) > NEGLIGIBLE * size:
                continue
            if layer not in bypassed_before:
                if layer == 0:
                    other = cut([0], _of_all_types(_other_features, x))
                else:
                    other = bare if layer == every[-1] else cut(every[: layer + 1])
                if not float((without - other).pow(2).mean().sqrt()) > NEGLIGIBLE * size:
                    continue
            bypassed.add(layer)
            outputs_without[layer] = without
    if not outputs_without or predict is None:
        return Bypass(math.nan if outputs_without else 0.0, None, spread, frozenset(bypassed))
    shares = {layer: _kept_share(predict(usual), predict(output), targets) for layer, output in outputs_without.items()}
    worst = max(shares, key=lambda layer: shares[layer])
    return Bypass(shares[worst], worst, spread, frozenset(bypassed))


@dataclass(frozen=True)
class Locality:
    """Change of the outputs when features out of reach of the attention layers change.

    Attributes:
        change: The largest change of an output, relative to the largest output; 0 if no node is out of reach.
        tolerance: Smaller changes are rounding errors.
        compared: Number of compared outputs; 0 if no node is out of reach.
    """

    change: float
    tolerance: float
    compared: int = 0

    @property
    def local(self) -> bool:
        """Whether the model reads only nodes within reach of its attention layers."""
        return self.change <= self.tolerance

    def __str__(self) -> str:
        if self.local:
            return "The outputs depend only on nodes that the attention layers reach."
        return (
            f"Outputs change by {self.change:.2g} of their size with features that no attention layer reaches: the "
            "model has paths that bypass attention, such as norms or pooling over all nodes; their edges get no score."
        )


@torch.no_grad()
def measure_locality(
    model: nn.Module,
    run: RunOnFeatures,
    x: Tensor,
    *,
    num_layers: int,
    graph: Graph,
    graph_of: Tensor | None = None,
    nodes: Tensor | None = None,
    usual: Tensor | None = None,
    seed: int = 0,
) -> Locality:
    """Replace the features out of reach of the attention layers by noise, and compare the outputs.

    For node-level models, nodes more than `num_layers` hops away are out of reach. For graph-level models, nodes of
    other graphs are.

    Args:
        model: The model.
        run: Calls the model with other features.
        x: The node features or node ids. Embeddings inside the model are not changed.
        num_layers: Number of attention layers, see `Attention.num_layers`.
        graph: The graph of the call.
        graph_of: The graph of each node, if the model returns one row per graph.
        nodes: The node of each row of the output, if the model returns the outputs of some nodes.
        usual: The output for `x`, if it was computed already.
        seed: Seed of the compared nodes and of the noise.
    """
    expect(x.layout == torch.strided, "x", "a dense tensor", x.layout)
    if graph_of is None:
        compared, near = _neighbourhoods(graph, nodes, num_layers, torch.Generator().manual_seed(seed))
    else:
        compared = graph_of.unique()[: graph_of.unique().numel() // 2]
        near = torch.isin(graph_of, compared)
    far = (~near).nonzero().view(-1)
    with eval_mode(model), inplace_messages(model):
        before = score_tensor(run(x)) if usual is None else usual
        tolerance = torch.finfo(before.dtype).eps ** 0.5
        if far.numel() == 0 or compared.numel() == 0:
            return Locality(0.0, tolerance)
        after = score_tensor(run(with_noise(x, far, seed)))
    expect(
        before.shape[0] > int(compared.max()),
        "graph_of",
        "the graph of each node if the model returns one row per graph",
        graph_of,
    )
    size = float(before[compared].abs().max())
    change = float((after[compared] - before[compared]).abs().max())
    return Locality(change / size if size > 0 else change, tolerance, compared.numel())


def loud_noise(like: Tensor, rows: Tensor, seed: int) -> Tensor:
    """Return noise that is larger than the given rows.

    Args:
        like: A tensor with the shape of the result.
        rows: The rows that set the scale of the noise.
        seed: Seed of the noise.
    """
    noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like)
    largest = rows.nan_to_num(0.0, 0.0, 0.0).abs().max() if rows.numel() else rows.new_ones(())
    return noise * LOUDNESS * largest.clamp(min=1.0)


def with_noise(x: Tensor, nodes: Tensor, seed: int = 0) -> Tensor:
    """Replace the features of some nodes by loud noise; integer features by the features of random nodes.

    Args:
        x: The features, one row per node.
        nodes: Ids of the nodes.
        seed: Seed of the noise.
    """
    if x.is_floating_point():
        return x.index_copy(0, nodes, loud_noise(x[nodes], x, seed))
    generator = torch.Generator().manual_seed(seed)
    return x.index_copy(
        0, nodes, x[torch.randint(max(x.shape[0], 1), (nodes.numel(),), generator=generator).to(x.device)]
    )


def odd_outputs(usual: Tensor) -> str | None:
    """Return a warning with the number of output rows that are NaN or infinite; None if all are finite."""
    bad = int((~usual.isfinite()).reshape(usual.shape[0], -1).any(dim=1).sum())
    if not bad:
        return None
    return (
        f"The model's outputs are NaN or infinite in {bad} of {usual.shape[0]} rows: measurements of these rows are "
        "undefined."
    )


@torch.no_grad()
def random_outputs(model: nn.Module, run: RunOnFeatures, x: Any, usual: Tensor) -> str | None:
    """Run a model again on the same inputs; return a warning if the outputs differ, or None.

    Args:
        model: The model.
        run: Calls the model with other features.
        x: The node features.
        usual: The output of an earlier run for `x`.
    """
    with eval_mode(model), inplace_messages(model):
        again = score_tensor(run(x))
    if same(again, usual, floor=0.0):
        return None
    change = float((again - usual).abs().max()) / (float(usual.abs().max()) or 1.0)
    with eval_mode(model), inplace_messages(model):
        has_state = keeps_state(lambda: score_tensor(run(x)))
    if has_state:
        return (
            f"The model keeps a state: two runs on the same inputs return outputs that differ by {change:.2g} of their "
            f"size, also with equal random numbers ({STATE}). Measurements of it depend on the order of the runs."
        )
    return (
        f"The model is random: two runs on the same inputs return outputs that differ by {change:.2g} of their size "
        "(dropout called without `training=self.training`, or noise). Measurements of it are partly random."
    )


STATE = "a counter, memory or cache that `forward` changes; let it change only `if self.training`"
"""What makes outputs depend on earlier runs, and the way out."""


@torch.no_grad()
def keeps_state(run: Callable[[], Tensor]) -> bool:
    """Whether a state makes outputs differ that have been seen to differ between runs, and not random numbers.

    Then two runs with equal random numbers differ, or, if the state settles after the first run, two runs with other
    random numbers do not.
    """
    outputs = []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            outputs.append(run())
    first, second = outputs
    return not same(first, second, floor=0.0) or same(run(), run(), floor=0.0)


class _ZeroWeights(Watcher):
    """Sets the attention weights of some convolution calls to 0; calls are numbered in the order of a pass."""

    def __init__(self, calls: Collection[int]) -> None:
        self._calls = calls

    def softmax(self, call: LayerCall, scores: Tensor, softmax: Softmax) -> Tensor:
        weights = softmax(scores)
        return torch.zeros_like(weights) if call.number in self._calls else weights


def _kept_share(usual: Tensor, without: Tensor, targets: Tensor | None) -> float:
    is_kept = (usual == without).reshape(usual.shape[0], -1).all(dim=1).float()
    return float((is_kept if targets is None else is_kept[targets]).mean())


def _spread(output: Tensor) -> float:
    """Return the spread of rows: the root mean square of their distance from the mean row."""

    return float((output - output.mean(dim=0)).pow(2).mean().sqrt())


def _of_all_types(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Apply a function to the features, or to those of each node type."""
    return {kind: function(rows) for kind, rows in x.items()} if isinstance(x, Mapping) else function(x)


def _other_features(x: Tensor) -> Tensor:
    return with_noise(x, torch.arange(x.shape[0], device=x.device))


def _neighbourhoods(graph: Graph, nodes: Tensor | None, hops: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return some rows, and a mask of all nodes within `hops` of theirs: at most half of the graph if possible.

    Rows are those of `nodes`, or of all nodes.

    Hops follow the messages of the layers, which may run on other edges than those of the data.
    """
    walked = graph.walked
    count = graph.num_nodes if nodes is None else nodes.numel()
    candidates = torch.randperm(count, generator=generator)[:CANDIDATES].to(graph.device)
    reached = torch.zeros(candidates.numel(), walked.num_nodes, dtype=torch.bool, device=graph.device)
    roots = candidates if nodes is None else nodes.to(graph.device)[candidates]
    reached[torch.arange(candidates.numel(), device=graph.device), roots] = True
    for row in reached:
        for _ in range(hops):
            row[walked.source[row[walked.destination]]] = True
    reached = reached[:, : graph.num_nodes]  # without nodes that the model adds
    order = reached.sum(dim=1).argsort()
    together = reached[order].cumsum(dim=0).bool()
    fits = max(int((2 * together.sum(dim=1) <= graph.num_nodes).sum()), min(1, candidates.numel()))
    near = together[fits - 1] if fits else torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    return candidates[order[:fits]], near
