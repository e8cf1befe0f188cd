"""What goes around attention: how much of a prediction is left when all attention weights are 0.

GAtt explains what passes along attention weights. A residual, jumping knowledge, TransformerConv's root weight or a
positional input is not weighed by attention: with all weights 0 the outputs then still tell nodes apart, and GAtt
explains only a part of the prediction. A plain stack of attention layers returns the same for every node: nothing goes
around.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.eager import eval_mode, score_tensor
from attree.attention.inplace_messages import inplace_messages
from attree.attention.softmax_hook import hook_softmax

NEGLIGIBLE = 1e-3
"""Up to this spread, outputs without attention count as the same for all: norms magnify rounding errors to it."""


@dataclass(frozen=True)
class Bypass:
    """How much of a model's output goes around its attention.

    Attributes:
        share: Share of the targets whose predicted class is the same with all attention weights 0; 0 where nothing
            goes around attention, NaN where the outputs are no numbers.
        spread: How far outputs of different nodes or graphs are apart with all attention weights 0, as a share of how
            far they are apart otherwise.
    """

    share: float
    spread: float

    @property
    def exists(self) -> bool:
        """Whether anything goes around attention."""
        return self.spread > NEGLIGIBLE

    def __str__(self) -> str:
        if math.isnan(self.share):
            return "What goes around attention is undefined: the model's outputs are no numbers."
        if not self.exists:
            return "Nothing goes around attention: with all weights 0 the outputs are the same for all."
        return (
            f"With all attention weights 0, {self.share:.0%} of the targets keep their predicted class: "
            "something goes around attention (a skip, a readout), which explains only a part of these predictions."
        )


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
    x: Tensor,
    edge_index: Tensor,
    *args: Any,
    targets: Tensor | None = None,
    predict: Callable[[Tensor], Tensor] = predicted_class,
    **kwargs: Any,
) -> Bypass:
    """Run `model(x, edge_index, *args, **kwargs)` with all attention weights 0 and compare with what it returns.

    Args:
        model: The model, which returns one row of scores per node or per graph.
        x: Node features.
        edge_index: The graph's edges.
        *args: Further positional arguments of the model.
        targets: Rows of the output to count, as ids; None for all.
        predict: Gives the predicted class of each row of scores.
        **kwargs: Further keyword arguments of the model.
    """

    def run(features: Tensor) -> Tensor:
        return score_tensor(model(features, edge_index, *args, **kwargs))

    with eval_mode(model), inplace_messages(model):
        usual = run(x)
        with hook_softmax(model, _no_weight):
            without = run(x)
        outputs = [usual, without]
        if usual.shape[0] == 1:
            # There is no other row to tell it from, so it is told from that of the graph without features.
            outputs[0] = torch.cat([usual, run(torch.zeros_like(x))])
            with hook_softmax(model, _no_weight):
                outputs[1] = torch.cat([without, run(torch.zeros_like(x))])
    apart, apart_without = (_spread(output) for output in outputs)
    if math.isnan(apart) or math.isnan(apart_without):
        return Bypass(math.nan, math.nan)
    spread = apart_without / apart if apart > 0 else (0.0 if apart_without == 0 else math.inf)
    kept = (predict(usual) == predict(without)).reshape(usual.shape[0], -1).all(dim=1).float()
    kept = kept if targets is None else kept[targets]
    return Bypass(float(kept.mean()) if spread > NEGLIGIBLE else 0.0, spread)


def _no_weight(conv: MessagePassing, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.zeros_like(softmax(scores))


def _spread(output: Tensor) -> float:
    """How far rows are apart: the root mean square of their distance from the mean row."""
    return float((output - output.mean(dim=0)).pow(2).mean().sqrt())
