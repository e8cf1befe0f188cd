"""Effects of attention reduction: the paper's measures, and the interface of the engines that reduce edges.

Effects are rounded to multiples of a resolution, in every engine. Rounding errors of the engines are far below it, so
that an effect is the same number by each engine and with any number of threads, and an effect of 0 is exactly 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attribution.pairs import Pairs
from attree.errors import expect_memory
from attree.faithfulness.protocol import ReductionProtocol
from attree.subject import Head, Subject
from attree.tensors.arrays import Rows, take_rows
from attree.tensors.memory import REDUCTION_MEMORY
from attree.tensors.precision import resolution, round_to

Progress = Callable[[int, int], None]
"""Called as `progress(done, total)` with numbers of pairs after each batch of reductions."""


@dataclass(frozen=True)
class Reduction:
    """Effects of reducing each pair's edge on the prediction of the pair's target.

    Attributes:
        pairs: The pairs.
        delta_pc: Decline of the predicted class's probability, p[k] - p'[k], [P]; for regression, of the predicted
            number.
        delta_ne: Change of the negative entropy, -sum p' log p' + sum p log p, [P]; NaN for regression.
        changed: Whether the predicted class changed, [P].
        probability: Class probabilities after the reduction, [P, classes]; None if not requested.
    """

    pairs: Pairs
    delta_pc: Tensor
    delta_ne: Tensor
    changed: Tensor
    probability: Tensor | None = None


class ReductionWriter:
    """Fills in a `Reduction`, some pairs at a time.

    Args:
        pairs: The pairs. A pair that is never filled in keeps an effect of 0: its edge carries no flow to the target.
        output: The model's output before any reduction, in the dtype to measure effects in.
        head: How the outputs are read.
        with_probability: Also store class probabilities.
        effect_only: Fill in dPC only; do not read dNE and dP of the result.
        step: The resolution of probabilities; None for that of the output's type. For regression, it is relative to
            the size of the outputs.
    """

    def __init__(
        self,
        pairs: Pairs,
        output: Tensor,
        head: Head,
        with_probability: bool = False,
        effect_only: bool = False,
        step: float | None = None,
    ) -> None:
        self._effect_only = effect_only
        self._head = head if head.is_settled else head.resolve(output)
        self._measured = self._head.measured(output)
        self._logits = self._head.logits(output, self._measured)
        self._target = pairs.target_rows
        # Computed per target: there are far fewer targets than pairs.
        self._owner = pairs.owner
        rows = pairs.targets if pairs.rows is None else pairs.rows
        self._step = resolution(output.dtype) if step is None else step
        if self._head.mode == "regression":
            self._step *= _magnitude(self._logits)
        self._before = Prediction.of(self._logits[rows], self._step)
        zeros = torch.zeros(len(pairs), dtype=output.dtype, device=output.device)
        is_number = self._head.mode == "regression"
        entropy = torch.full_like(zeros, math.nan) if is_number else zeros.clone()
        probability = self._logits.softmax(dim=-1)[self._target] if with_probability and not is_number else None
        self.result = Reduction(pairs, zeros, entropy, torch.zeros_like(zeros, dtype=torch.bool), probability)

    def fill(self, positions: Tensor, output: Tensor) -> None:
        """Set the effects on the chosen pairs, given their targets' outputs after the reduction, one row per pair."""
        result, target = self.result, None
        if self._measured is not None or self._head.mode == "regression":
            target = take_rows(self._target, positions)
        measured = None if self._measured is None else self._measured[target]
        after = self._head.logits(output.to(self._logits.dtype), measured)
        if self._head.mode == "regression":
            result.delta_pc[positions] = round_to((self._logits[target] - after).squeeze(1), self._step)
            return
        owner = take_rows(self._owner, positions)
        if self._effect_only:
            result.delta_pc[positions] = round_to(self._before.decline(owner, after), self._step)
            return
        delta_pc, delta_ne, changed, probability = self._before.at(owner).compare(after, self._step)
        result.delta_pc[positions] = round_to(delta_pc, self._step)
        result.delta_ne[positions] = round_to(delta_ne, self._step)
        result.changed[positions] = changed
        if result.probability is not None:
            result.probability[positions] = probability


class ReductionEngine(ABC):
    """One way to reduce attention; `attree.faithfulness.engine_choice` has the list of all.

    Args:
        subject: The subject to explain.
        memory: Bytes of working memory.
    """

    way: ClassVar[str]
    """Description of the engine, for messages."""

    def __init__(self, subject: Subject, memory: int = REDUCTION_MEMORY) -> None:
        expect_memory(memory)
        self.subject = subject
        self.memory = memory

    @abstractmethod
    def record(self) -> ReductionPass:
        """Run the model with its current weights."""


class ReductionPass(ABC):
    """One forward pass of a model, in which edges can be reduced.

    Args:
        subject: The subject to explain.
        attention: Attention weights of the forward pass, or a function that captures them when they are needed.
        output: Output of the forward pass, in the dtype to measure effects in.

    Attributes:
        resolution: The smallest effect that counts.
    """

    def __init__(self, subject: Subject, attention: Attention | Callable[[], Attention], output: Tensor) -> None:
        self.subject = subject
        self._attention = attention
        self.output = output
        self.resolution = resolution(output.dtype)

    @property
    def attention(self) -> Attention:
        """Attention weights of the forward pass."""
        if not isinstance(self._attention, Attention):
            self._attention = self._attention()
        return self._attention

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """Number of layers that pairs must have been made for."""

    @property
    def reach(self) -> int | None:
        """Number of hops whose edges can affect a target; None if any edge can."""
        return self.num_layers

    def reach_of(self, protocol: ReductionProtocol) -> int | None:
        """Number of hops whose edges can affect a target when they are reduced by a protocol; None if any edge can."""
        return self.reach

    def reduce(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        with_probability: bool = False,
        progress: Progress | None = None,
    ) -> Reduction:
        """Reduce every pair's edge, one at a time, and measure the effect on the pair's target.

        Args:
            pairs: The pairs.
            protocol: The reduction protocol.
            with_probability: Also return the class probabilities after each reduction.
            progress: Called as `progress(done, total)` with numbers of pairs after each batch of reductions.
        """
        pairs.check(self.subject.graph, self.num_layers)
        writer = ReductionWriter(pairs, self.output, self.subject.head, with_probability, step=self.resolution)
        self.measure(pairs, protocol, writer, progress or _ignore)
        return writer.result

    @abstractmethod
    def measure(self, pairs: Pairs, protocol: ReductionProtocol, writer: ReductionWriter, progress: Progress) -> None:
        """Reduce the pairs' edges, one at a time, and pass the targets' new outputs to `writer`."""

    def effect(self, pairs: Pairs, protocol: ReductionProtocol) -> Tensor:
        """Return the dPC of every pair, [P]."""
        return self.reduce(pairs, protocol).delta_pc

    def deletes_data(self, again: bool = False) -> bool:
        """Whether the engine's `removal` is that of the data; engines that run the model on changed data always are.

        Args:
            again: Whether an earlier pass of the same model was found to: a cheaper experiment is enough.
        """
        return True

    def reduce_sets(self, targets: Tensor, owner: Tensor, sets: Rows, protocol: ReductionProtocol) -> Tensor:
        """Return the outputs of targets when all edges of a set are reduced at once, one row per set.

        Args:
            targets: The targets.
            owner: Position in `targets` of each set's target, ascending.
            sets: The edges of each set, as positions in `graph.edge_index`.
            protocol: The reduction protocol.
        """
        raise NotImplementedError(f"{type(self).__name__} reduces single edges only")

    def check(self, targets: Tensor) -> None:  # noqa: B027
        """Raise if the engine does not support some of the targets; by default it supports all."""


def _ignore(done: int, total: int) -> None:
    """Report no progress."""


class Prediction(NamedTuple):
    """Predictions before a reduction, one row each.

    Attributes:
        predicted: The predicted class, [n].
        probability: Probability of the predicted class, [n].
        negative_entropy: sum p log p over the classes, [n].
    """

    predicted: Tensor
    probability: Tensor
    negative_entropy: Tensor

    @classmethod
    def of(cls, logits: Tensor, margin: float = 0.0) -> Prediction:
        """Return the predictions of logits, [n, classes]; classes within a margin of the most probable one tie.

        The first of them is the predicted class, so that rounding errors do not decide.
        """
        log_p = logits.log_softmax(dim=-1)
        p = log_p.exp()
        predicted = (p >= p.amax(dim=-1, keepdim=True) - margin).byte().argmax(dim=-1)
        return cls(predicted, p.gather(-1, predicted.unsqueeze(-1)).squeeze(-1), _negative_entropy(p, log_p))

    def at(self, rows: Tensor) -> Prediction:
        """Return some of the rows."""
        return Prediction(*(values.index_select(0, rows) for values in self))

    def decline(self, rows: Tensor, reduced_logits: Tensor) -> Tensor:
        """Return the dPC of some of the rows, given their logits after a reduction."""
        predicted = take_rows(self.predicted, rows).unsqueeze(-1)
        after = reduced_logits.log_softmax(dim=-1).gather(-1, predicted).squeeze(-1).exp_()
        return take_rows(self.probability, rows).sub_(after)

    def compare(self, reduced_logits: Tensor, margin: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compare with the predictions after a reduction, row by row.

        Args:
            reduced_logits: Logits after the reduction, [n, classes].
            margin: A class replaces the predicted one only if its probability is larger by more than this.

        Returns:
            dPC, dNE, dP (bool), and the class probabilities after the reduction.

        >>> before, after = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])
        >>> pc, ne, changed, _ = Prediction.of(before).compare(after)
        >>> round(pc.item(), 4), round(ne.item(), 4), changed.item()
        (0.7616, 0.0, True)
        """
        log_q = reduced_logits.log_softmax(dim=-1)
        q = log_q.exp()
        still = q.gather(-1, self.predicted.unsqueeze(-1)).squeeze(-1)
        delta_ne = self.negative_entropy - _negative_entropy(q, log_q)
        return self.probability - still, delta_ne, q.amax(dim=-1) > still + margin, q


def _magnitude(numbers: Tensor) -> float:
    """Return the power of ten nearest to the largest number; 1 if there is none, or it is 0 or not finite."""
    largest = float(numbers.abs().max()) if numbers.numel() else 0.0
    return 10.0 ** round(math.log10(largest)) if 0.0 < largest < math.inf else 1.0


def _negative_entropy(p: Tensor, log_p: Tensor) -> Tensor:
    # A probability of exactly 0 adds nothing, as in xlogy; an undefined one makes the sum undefined.
    return torch.where(p == 0, 0.0, p * log_p).sum(-1)
