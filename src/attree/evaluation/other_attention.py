"""Run a model with other attention than its own: uniform, permuted, or chosen to differ while predictions stay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention.eager import eval_mode, score_tensor
from attree.attention.edge_hook import EdgeHook, hook_edges
from attree.attention.softmax_hook import hook_softmax
from attree.errors import UnsupportedModelError
from attree.subject import Subject

Softmax = Callable[[Tensor], Tensor]

Change = Callable[[int, Tensor, Tensor, Softmax], Tensor]
"""Called as `change(number, destination, scores, softmax)` in place of the softmax with that number in a pass;
`destination` is the node that each scored edge enters. Returns the weights that the model uses."""


def run_with(subject: Subject, change: Change) -> Tensor:
    """What the subject's model returns when every attention softmax is changed; gradients pass if they are enabled."""
    edges, number = EdgeHook(), 0

    def hook(conv: MessagePassing, scores: Tensor, softmax: Softmax) -> Tensor:
        nonlocal number
        own = edges.scored(conv, scores.shape[0])
        if own is None:
            raise UnsupportedModelError(
                f"Expected {type(conv).__name__} to apply its softmax to one score per edge of the graph it is given, "
                f"but {scores.shape[0]} scores are not one for each: its attention cannot be exchanged."
            )
        number += 1
        return change(number - 1, own[1], scores, softmax)

    with ExitStack() as stack:
        stack.enter_context(eval_mode(subject.model))
        convs = stack.enter_context(hook_softmax(subject.model, hook))
        stack.enter_context(hook_edges(convs, edges))
        return score_tensor(subject.call.run())


def uniform(number: int, destination: Tensor, scores: Tensor, softmax: Softmax) -> Tensor:
    """Weights that tell no edges apart."""
    return softmax(torch.zeros_like(scores))


def permuted(seed: int) -> Change:
    """Weights that change places among the edges that enter the same node, in every head alike."""

    def change(number: int, destination: Tensor, scores: Tensor, softmax: Softmax) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 1000 + number)
        shuffled = torch.randperm(destination.numel(), generator=generator).to(destination.device)
        places = destination.argsort(stable=True)
        sources = shuffled[destination[shuffled].argsort(stable=True)]
        weights = softmax(scores)
        return torch.zeros_like(weights).index_copy(0, places, weights[sources])

    return change


@dataclass
class Adversary:
    """Looks for attention that differs from the model's own as much as possible while predictions hardly move.

    The scores before softmax are shifted edge by edge, head by head and layer by layer. Adam maximises how far the
    weights of the edges that enter a node are from the model's own (total variation, mean over the nodes that more than
    one edge enters), less a penalty for how far predictions move beyond `budget`. After Jain and Wallace, "Attention is
    not Explanation" (NAACL 2019), section 4.2; as Wiegreffe and Pinter (EMNLP 2019) note, such weights need not be
    reachable by training: they show that predictions do not pin attention down.

    Attributes:
        budget: How far predictions may move on average, as a total variation.
        steps: Steps of Adam.
        rate: Its learning rate, in units of scores.
        penalty: Weight of what predictions move beyond the budget.
    """

    budget: float = 0.01
    steps: int = 60
    rate: float = 0.3
    penalty: float = 50.0

    def search(self, subject: Subject, distance: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
        """How far attention could be moved, and what the model then returns.

        Args:
            subject: What is explained.
            distance: How far predictions are from the model's own, from its outputs.
        """
        shifts: list[Tensor] = []
        moved: list[Tensor] = []

        def change(number: int, destination: Tensor, scores: Tensor, softmax: Softmax) -> Tensor:
            if number == len(shifts):
                generator = torch.Generator().manual_seed(number)
                start = 0.01 * torch.randn(scores.shape, generator=generator)
                shifts.append(start.to(scores).requires_grad_())
            weights = softmax(scores + shifts[number])
            moved.append(_attention_distance(destination, softmax(scores), weights))
            return weights

        best = 0.0, subject.output
        with torch.inference_mode(False), torch.enable_grad():
            optimizer: torch.optim.Adam | None = None
            for _ in range(self.steps):
                moved.clear()
                output = run_with(subject, change)
                apart, attention = distance(output), torch.stack(moved).mean()
                if float(apart.detach()) <= self.budget and float(attention.detach()) > best[0]:
                    best = float(attention.detach()), output.detach()
                loss = self.penalty * torch.relu(apart - self.budget) - attention
                optimizer = torch.optim.Adam(shifts, lr=self.rate) if optimizer is None else optimizer
                gradients = torch.autograd.grad(loss, shifts, allow_unused=True)
                for shift, gradient in zip(shifts, gradients, strict=True):
                    shift.grad = torch.zeros_like(shift) if gradient is None else gradient
                optimizer.step()
        return best


def _attention_distance(destination: Tensor, usual: Tensor, other: Tensor) -> Tensor:
    """Total variation of the weights that enter a node, mean over heads and the nodes that several edges enter."""
    count = int(destination.max()) + 1 if destination.numel() else 0
    apart = (usual - other).abs().reshape(destination.numel(), -1).mean(dim=1) / 2
    by_node = apart.new_zeros(count).index_add(0, destination, apart)
    several = destination.bincount(minlength=count) > 1
    return by_node[several].mean() if bool(several.any()) else by_node.sum()
