"""What attention weights do not see of a model: paths around layers, and randomness.

Each measure runs the model again: `run(features)` returns its outputs, one row per node or per graph, for these
features of nodes and all its other arguments as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.eager import eval_mode, score_tensor
from attree.attention.inplace_messages import inplace_messages
from attree.attention.locality import RunOnFeatures, with_noise
from attree.attention.softmax_hook import hook_softmax

NEGLIGIBLE = 1e-3
"""Changes up to this share of how far outputs are apart count as none: norms magnify rounding errors to it."""


@dataclass(frozen=True)
class Bypass:
    """How much of a model's predictions goes around the attention of its layers.

    Attributes:
        share: The largest share of targets that keep their predicted class with the attention weights of one layer, or
            of all layers, set to 0; only layers that something goes around are counted. 0 where nothing does, NaN where
            outputs are NaN or have no class.
        layer: The layer that this is the share of, first layer 0; None if it is that of all layers at once.
        spread: How far outputs of different nodes or graphs are apart with all attention weights 0, as a share of how
            far they are apart otherwise.
        around: The layers that something goes around: without the weights of such a layer, outputs still depend on
            what comes before it.
    """

    share: float
    layer: int | None = None
    spread: float = 0.0
    around: frozenset[int] = frozenset()

    @property
    def exists(self) -> bool:
        """Whether anything goes around attention."""
        return self.spread > NEGLIGIBLE or bool(self.around)

    def __str__(self) -> str:
        if math.isnan(self.spread):
            return "What goes around attention is undefined: the model's outputs are NaN."
        if not self.exists:
            return "Nothing goes around attention: without any one layer's weights the outputs are the same for all."
        which = "all attention weights" if self.layer is None else f"all attention weights of layer {self.layer + 1}"
        kept = "" if math.isnan(self.share) else f"With {which} 0, {self.share:.0%} of the targets keep their class: "
        found = "something goes around attention (a skip, jumping knowledge, a readout)"
        if self.share == 0:
            return f"{found.capitalize()}, but with {which} 0 no target keeps its class."
        return f"{kept}{found if kept else found.capitalize()}, which explains only a part of these predictions."


def predicted_class(output: Tensor) -> Tensor:
    """The class of each row: the column of the largest score, or the sign of a single one.

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
    known: Collection[int] = (),
) -> Bypass:
    """Run a model with the attention weights of all layers 0, then of each layer alone, and compare its outputs.

    With the weights of layer l zero, a plain stack returns the same whatever comes before layer l. So something goes
    around layer l if the outputs then change with what layers 1 to l - 1 return (layer 1: with the features). This
    takes one run per layer. Where something goes around the last layer it takes one for all layers too, and up to as
    many again until it is known which layers are passed by.

    Args:
        model: The model.
        run: Calls it with other features.
        x: Its features of nodes, by type of node if there are several.
        layers: For each layer, which calls of convolutions it is, see `Wiring.layers`; all calls as one layer where
            layers are no chain.
        usual: Its output for `x`, if at hand.
        targets: Rows of the output to count, as ids; None for all.
        predict: Gives the predicted class of each row; None if outputs have no classes.
        known: `Bypass.around` of an earlier measurement, which need not be found again.
    """

    def cut(chosen: Sequence[int], features: Any = x) -> Tensor:
        with _without_weights(model, {call for layer in chosen for call in layers[layer]}):
            return score_tensor(run(features))

    every = range(len(layers))
    with eval_mode(model), inplace_messages(model):
        usual = score_tensor(run(x)) if usual is None else usual
        size, has_rows = _spread(usual), usual.shape[0] > 1
        last = cut(every[-1:]) if has_rows and len(layers) > 1 else None
        # Where nothing goes around the last layer, what comes before it changes nothing.
        bare = last if last is not None and _spread(last) <= NEGLIGIBLE * size else cut(every)
        size_bare = _spread(bare)
        if not has_rows:
            # There is no other row to compare with, so the graph without features is taken.
            nothing = _of_all_types(torch.zeros_like, x)
            size = _spread(torch.cat([usual, score_tensor(run(nothing))]))
            size_bare = _spread(torch.cat([bare, cut(every, nothing)]))
        if math.isnan(size) or math.isnan(size_bare):
            return Bypass(math.nan, spread=math.nan)
        spread = size_bare / size if size > 0 else (0.0 if size_bare == 0 else math.inf)
        kept: dict[int | None, Tensor] = {None: bare} if spread > NEGLIGIBLE else {}
        around = set()
        for layer in every if len(layers) > 1 else ():
            without = last if last is not None and layer == every[-1] else cut([layer])
            if has_rows and not _spread(without) > NEGLIGIBLE * size:
                continue
            if layer not in known:
                if layer == 0:
                    other = cut([0], _of_all_types(_other_features, x))
                else:
                    other = bare if layer == every[-1] else cut(every[: layer + 1])
                if not float((without - other).pow(2).mean().sqrt()) > NEGLIGIBLE * size:
                    continue
            around.add(layer)
            kept[layer] = without
    if not kept or predict is None:
        return Bypass(math.nan if kept else 0.0, None, spread, frozenset(around))
    shares = {layer: _kept_share(predict(usual), predict(output), targets) for layer, output in kept.items()}
    worst = max(shares, key=lambda layer: shares[layer])
    return Bypass(shares[worst], worst, spread, frozenset(around))


def odd_outputs(usual: Tensor) -> str | None:
    """A sentence that says how many rows of an output are NaN or infinite; None if all are finite."""
    bad = int((~usual.isfinite()).reshape(usual.shape[0], -1).any(dim=1).sum())
    if not bad:
        return None
    return (
        f"The model's outputs are NaN or infinite in {bad} of {usual.shape[0]} rows: what is measured of these is "
        "undefined."
    )


@torch.no_grad()
def random_outputs(model: nn.Module, run: RunOnFeatures, x: Any, usual: Tensor) -> str | None:
    """Run a model again on the same inputs; a sentence that says how far the outputs differ, None if they do not.

    Args:
        model: The model.
        run: Calls it with other features.
        x: Its features of nodes.
        usual: Its earlier output for `x`.
    """
    with eval_mode(model), inplace_messages(model):
        again = score_tensor(run(x))
    largest = float(usual.abs().max()) if usual.numel() else 0.0
    change = float((again - usual).abs().max()) / (largest or 1.0) if usual.numel() else 0.0
    if not change > torch.finfo(usual.dtype).eps ** 0.5:
        return None
    return (
        f"The model is random: two runs on the same inputs return outputs that differ by {change:.2g} of their size "
        "(dropout called without `training=self.training`, or noise). What is measured of it is partly chance."
    )


@contextmanager
def _without_weights(model: nn.Module, cut: Collection[int]) -> Iterator[None]:
    """While open, the attention weights of these convolution calls are 0; calls are numbered in the order of a run."""
    begun: list[int] = []
    count = 0

    def begin(conv: nn.Module, args: Any) -> None:
        nonlocal count
        begun.append(count)
        count += 1

    def end(conv: nn.Module, args: Any, output: Any) -> None:
        begun.pop()

    def zero(conv: MessagePassing, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        weights = softmax(scores)
        return torch.zeros_like(weights) if begun and begun[-1] in cut else weights

    with ExitStack() as stack:
        for conv in stack.enter_context(hook_softmax(model, zero)):
            stack.callback(conv.register_forward_pre_hook(begin).remove)
            stack.callback(conv.register_forward_hook(end).remove)
        yield


def _kept_share(usual: Tensor, without: Tensor, targets: Tensor | None) -> float:
    kept = (usual == without).reshape(usual.shape[0], -1).all(dim=1).float()
    return float((kept if targets is None else kept[targets]).mean())


def _spread(output: Tensor) -> float:
    """How far rows are apart: the root mean square of their distance from the mean row."""
    return float((output - output.mean(dim=0)).pow(2).mean().sqrt())


def _of_all_types(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Apply a function to the features, or to those of each node type."""
    return {kind: function(rows) for kind, rows in x.items()} if isinstance(x, Mapping) else function(x)


def _other_features(x: Tensor) -> Tensor:
    return with_noise(x, torch.arange(x.shape[0], device=x.device))
