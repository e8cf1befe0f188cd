"""Tests from the literature of whether attention is an explanation of a model, and their result.

Two questions are tested. Do the predictions need the network's attention? Jain and Wallace, "Attention is not
Explanation" (NAACL 2019), and Wiegreffe and Pinter, "Attention is not not Explanation" (EMNLP 2019), ask this for text;
on citation graphs, attention was found to be nearly uniform (Li, Zhang, Shi, Wang and Zhang, "A Statistical
Characterization of Attentions in Graph Neural Networks", ICLR workshop, 2019). Do the scores depend on the learned
parameters? This is after Adebayo et al., "Sanity Checks for Saliency Maps" (NeurIPS 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attree.attention.instruments import LayerCall, Softmax, Watcher, instrument
from attree.attention.softmax_hook import attention_convs
from attree.attention.stand_ins import copied, eval_mode, score_tensor, stand_in
from attree.attribution import AttributionMethod, Pairs, make_methods, subject_pairs
from attree.defaults import SEED
from attree.errors import UnsupportedModelError, expect, expect_instance, expect_int, expect_list, expect_number
from attree.metrics.functional import spearman
from attree.source import Reading, explained_by_user
from attree.subject import Head, Subject
from attree.subject.arguments_from_data import Call
from attree.subject.head import Mode, ReturnType
from attree.subject.readout import Readout
from attree.subject.target_roots import Level, Targets
from attree.tensors.precision import exact_dtype

if TYPE_CHECKING:
    import pandas as pd


Change = Callable[[int, Tensor, Tensor, Softmax], Tensor]
"""Function `change(number, destination, scores, softmax)` that replaces the softmax `number` of a forward pass.

`destination` is the destination node of each scored edge. It returns the attention weights that the model then uses.
"""


def run_with(subject: Subject, change: Change) -> Tensor:
    """Return the model's output with every attention softmax replaced by `change`. Gradients work if enabled."""
    with eval_mode(subject.model), instrument(subject.model, _ChangedAttention(change)):
        return score_tensor(subject.call.run())


class _ChangedAttention(Watcher):
    """Replaces every softmax by a function."""

    def __init__(self, change: Change) -> None:
        self._change, self._num_softmaxes = change, 0

    def softmax(self, call: LayerCall, scores: Tensor, softmax: Softmax) -> Tensor:
        edges = call.scored_edges(scores.shape[0])
        if edges is None:
            raise UnsupportedModelError(
                f"Expected {type(call.conv).__name__} to apply its softmax to one score per edge of its input graph, "
                f"but {scores.shape[0]} scores do not match the edges: its attention cannot be replaced."
            )
        self._num_softmaxes += 1
        return self._change(self._num_softmaxes - 1, edges[1], scores, softmax)


def uniform(number: int, destination: Tensor, scores: Tensor, softmax: Softmax) -> Tensor:
    """Return uniform attention weights."""
    return softmax(torch.zeros_like(scores))


def permuted(seed: int) -> Change:
    """Return a function that permutes attention weights among the edges of each destination, equally in all heads."""

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
    """Searches for attention that differs from the model's own as much as possible, with nearly equal predictions.

    Each score before softmax gets its own shift, for every edge, head and layer. Adam maximises the distance between
    the shifted and the model's own weights (total variation per destination, mean over destinations with more than one
    edge), minus a penalty on predictions that move beyond `budget`. After Jain and Wallace, "Attention is not
    Explanation" (NAACL 2019), section 4.2. As Wiegreffe and Pinter (EMNLP 2019) note, training need not be able to
    reach such weights. They show that the predictions do not determine the attention.

    Attributes:
        budget: Largest allowed mean change of the predictions, as a total variation.
        steps: Number of steps of Adam.
        rate: Learning rate of Adam, in units of scores.
        penalty: Factor of the penalty on predictions that move beyond the budget.
    """

    budget: float = 0.01
    steps: int = 60
    rate: float = 0.3
    penalty: float = 50.0

    def search(self, subject: Subject, distance: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
        """Return the largest distance of attention that was found, and the model's output with that attention.

        Args:
            subject: The model call to explain.
            distance: Returns the distance of some outputs' predictions from the model's own.
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
    """Return the total variation of a destination's weights, mean over heads and destinations with several edges."""
    count = int(destination.max()) + 1 if destination.numel() else 0
    apart = (usual - other).abs().reshape(destination.numel(), -1).mean(dim=1) / 2
    by_node = apart.new_zeros(count).index_add(0, destination, apart)
    several = destination.bincount(minlength=count) > 1
    return by_node[several].mean() if bool(several.any()) else by_node.sum()


LITTLE = 0.05
"""Largest move of predictions (mean total variation) that counts as hardly any."""

ALIKE = 0.7
"""Smallest rank correlation at which scores count as similar."""


@dataclass(frozen=True)
class PredictionTest:
    """Change of the predictions with other attention.

    Attributes:
        distance: Mean total variation between the predicted distributions; for regression, the mean absolute
            difference divided by the standard deviation of the predictions.
        changed: Share of targets whose predicted class changes; NaN for regression.
        accuracy: Accuracy with the other attention; NaN without labels.
        attention: Distance of the other attention from the model's (mean total variation), if it was searched for;
            else NaN.
    """

    distance: float
    changed: float
    accuracy: float = math.nan
    attention: float = math.nan


@dataclass(frozen=True)
class AttentionTests:
    """The result of `attention_tests`; printed as a table and a few sentences.

    Attributes:
        uniform: Predictions with uniform attention.
        permuted: Predictions with attention permuted within each neighbourhood, mean over the permutations.
        adversarial: Predictions with the most different attention that the search found.
        accuracy: Accuracy of the model itself; NaN without labels.
        randomized: Rank correlation between the original scores and those with shuffled parameters: of the last
            convolution, of the last two, and so on.
        seeds: Rank correlation of scores for every two of the given models; empty if none were given.
        method: Name in tables of the method whose scores are compared.
        num_targets: Number of targets.
    """

    uniform: PredictionTest
    permuted: PredictionTest
    adversarial: PredictionTest
    accuracy: float
    randomized: list[float]
    seeds: list[float] = field(default_factory=list)
    method: str = "GAtt"
    num_targets: int = 0

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with one row per test."""
        import pandas as pd

        rows: dict[str, dict[str, float]] = {}
        if not math.isnan(self.accuracy):
            rows["network attention"] = {
                "predictions moved": 0.0,
                "classes changed": 0.0,
                "accuracy": self.accuracy,
            }
        rows |= {
            f"{name} attention": {
                "predictions moved": test.distance,
                "classes changed": test.changed,
                "accuracy": test.accuracy,
                "attention moved": test.attention,
            }
            for name, test in (("uniform", self.uniform), ("permuted", self.permuted), ("other", self.adversarial))
        }
        for count, value in enumerate(self.randomized, start=1):
            layers = "last layer" if count == 1 else f"last {count} layers"
            rows[f"{layers} shuffled"] = {"rank correlation of scores": value}
        if self.seeds:
            rows["other seeds"] = {"rank correlation of scores": sum(self.seeds) / len(self.seeds)}
        return pd.DataFrame.from_dict(rows, orient="index")

    def to_dict(self) -> dict[str, float]:
        """Return all defined numbers by name, for a file of metrics."""
        table = self.to_pandas()
        return {
            f"{row}/{column}".replace(" ", "_"): float(value)
            for row, values in table.iterrows()
            for column, value in values.items()
            if not math.isnan(value)
        }

    @property
    def sentences(self) -> list[str]:
        """The conclusions from the numbers, in words."""
        return list(self._sentences())

    def _sentences(self) -> Iterator[str]:
        """Yield the conclusions from the tests of attention, one sentence each."""
        pinned = self.uniform.distance >= LITTLE or self.permuted.distance >= LITTLE
        if pinned:
            yield (
                f"Predictions depend on the network's attention: they move by {self.uniform.distance:.2f} with uniform "
                f"and by {self.permuted.distance:.2f} with permuted attention, so it can be an explanation."
            )
        else:
            yield (
                f"Predictions hardly depend on the network's attention: they move by {self.uniform.distance:.2f} with "
                f"uniform and by {self.permuted.distance:.2f} with permuted attention. How much a node attends to each "
                "neighbour does not explain them; which neighbours it has may."
            )
        if self.adversarial.attention >= LITTLE:
            yield (
                f"Other attention gives the same predictions: it differs by {self.adversarial.attention:.2f} of at "
                f"most 1 from the network's attention, and predictions move by {self.adversarial.distance:.3f}."
            )
        elif self.adversarial.attention > 0:
            yield (
                "The search found no other attention that gives the same predictions: it came as far as "
                f"{self.adversarial.attention:.3f} of at most 1."
            )
        defined = [value for value in self.randomized if not math.isnan(value)]
        if defined and defined[-1] >= ALIKE:
            yield (
                f"{self.method} hardly depends on the parameters: with all convolutions shuffled its scores still "
                f"correlate by {defined[-1]:.2f} with what they were. It shows the graph more than what was learned."
            )
        elif defined:
            yield f"{self.method} depends on the parameters: shuffled, its scores correlate by {defined[-1]:.2f}."
        if self.seeds:
            mean = sum(self.seeds) / len(self.seeds)
            stable = "agree" if mean >= ALIKE else "disagree"
            yield f"Models of other seeds {stable} on it (rank correlation {mean:.2f})."

    def __str__(self) -> str:
        table = self.to_pandas().to_string(float_format=lambda value: f"{value:.3f}", na_rep="")
        count = f"{self.num_targets:,} target{'' if self.num_targets == 1 else 's'}"
        return "\n".join([count, table, *(f"- {sentence}" for sentence in self.sentences)])

    def _repr_html_(self) -> str:
        table: str = self.to_pandas().to_html(float_format=lambda value: f"{value:.3f}", na_rep="")
        return table + "<ul>" + "".join(f"<li>{sentence}</li>" for sentence in self.sentences) + "</ul>"


def attention_tests(
    model: nn.Module,
    data: Any,
    targets: Targets | None = None,
    *,
    num_targets: int | None = None,
    models: Sequence[nn.Module] = (),
    method: str | AttributionMethod = "gatt",
    permutations: int = 10,
    steps: int = 60,
    budget: float = 0.01,
    call: Call | None = None,
    level: Level | None = None,
    readout: Readout | None = None,
    mode: Mode | None = None,
    return_type: ReturnType | None = None,
    label: int | None = None,
    labels: Tensor | None = None,
    seed: int = SEED,
) -> AttentionTests:
    """Test whether attention is an explanation of a model's predictions.

    The tests ask four questions. Do predictions change with uniform attention, or with attention permuted within each
    neighbourhood? Can attention be very different with the same predictions? Do scores change if parameters are
    shuffled, from the last convolution to the first? Do models trained with other seeds have the same scores? The model
    is unchanged afterwards.

    Args:
        model: A PyG attention model.
        data: The graph or batch that the model runs on, a list, dataset, data module, trainer or run, or a `Subject` of
            the model, as in `attree.evaluate`.
        targets: Nodes, pairs or graphs: an id, several ids, a mask of nodes, or 'all'. None draws `num_targets`.
        num_targets: Number of targets to draw at random, 100 by default.
        models: The same network trained with other seeds, to compare scores with.
        method: The method whose scores are compared, by name or as an object.
        permutations: Number of permutations of attention to average over.
        steps: Number of steps of the search for other attention; 0 skips the search.
        budget: Largest allowed change of the predictions in the search, as a mean total variation.
        call: Function that calls the model, as in `attree.evaluate`.
        level: What a row of outputs belongs to, as in `attree.evaluate`.
        readout: For graph-level models, how nodes become a graph, as in `attree.evaluate`.
        mode: PyG's mode, as in `attree.evaluate`.
        return_type: PyG's return type, as in `attree.evaluate`.
        label: Index of the label or number to measure, if the model predicts several.
        labels: The true class of every node, pair or graph, for the accuracy; None takes the labels of the data.
        seed: Seed of drawn targets, permutations and shuffled parameters.

    Returns:
        The result. Print it, or use its attributes, `to_pandas()` or `sentences`.

    >>> from torch_geometric.data import Data
    >>> from torch_geometric.nn import GAT
    >>> graph = Data(x=torch.randn(20, 8), edge_index=torch.randint(0, 20, (2, 60)))
    >>> tests = attention_tests(GAT(8, 16, 2, out_channels=3), graph, num_targets=5, steps=0)
    >>> 0 <= tests.uniform.changed <= 1  # share of predictions that uniform attention changes
    True
    """
    expect_int(permutations, "permutations", at_least=1)
    expect_int(steps, "steps", at_least=0)
    expect_number(budget, "budget", above=0)
    expect_instance(labels, "labels", Tensor, optional=True)
    others = expect_list(models, "models", nn.Module, "models, or none")
    (scorer,) = make_methods(method, seed=seed).values()
    expect(not (others and isinstance(data, Subject)), "models", "empty if `data` is a Subject", f"{len(others)}")
    reading = Reading(call, level, None, readout, Head(mode, return_type, label))
    explained = explained_by_user(model, data, targets, num_targets, reading, None, seed)
    subject, ids = explained.subject, explained.targets
    if not subject.attention.has_attention:
        raise UnsupportedModelError(
            f"Expected a network with attention along edges, which the tests replace, but {subject.call.name} has "
            "none: `attree.evaluate` compares methods for any network."
        )
    if labels is None and explained.labels is not None:
        labels = explained.labels.labels
    predictions = _Predictions(subject, ids, labels)
    with torch.no_grad():
        with_uniform = predictions.test(run_with(subject, uniform))
        drawn = [predictions.test(run_with(subject, permuted(seed + draw))) for draw in range(permutations)]
    moved, output = Adversary(budget, steps).search(subject, predictions.distance) if steps else (0.0, subject.output)
    furthest = predictions.test(output)
    pairs = subject_pairs(subject, ids)
    scores = scorer.score_pairs(subject, pairs)
    peers = [scores]
    for other in others:
        peer = explained_by_user(other, explained.graph, ids, None, reading, None, seed).subject
        peers.append(scorer.score_pairs(peer, pairs))
    return AttentionTests(
        with_uniform,
        _mean(drawn),
        PredictionTest(furthest.distance, furthest.changed, furthest.accuracy, moved),
        predictions.accuracy(subject.output),
        list(_randomized(subject, pairs, scorer, scores, seed)),
        [float(spearman(first, second)) for first, second in combinations(peers, 2)],
        scorer.label,
        ids.numel(),
    )


class _Predictions:
    """A model's predictions for some targets, to compare other predictions with."""

    def __init__(self, subject: Subject, targets: Tensor, labels: Tensor | None) -> None:
        self._head, self._rows = subject.head, subject.rows(targets)
        self._measured = self._head.measured(subject.output)
        self._usual = self._of(subject.output).detach()
        are_classes = self._head.mode != "regression" and self._measured is None
        has_labels = are_classes and labels is not None
        self._labels = labels.cpu()[targets.cpu()].to(self._rows.device) if has_labels and labels is not None else None

    def _of(self, output: Tensor) -> Tensor:
        measured = None if self._measured is None else self._measured[self._rows]
        logits = self._head.logits(output[self._rows].to(exact_dtype(output.device)), measured)
        return logits if self._head.mode == "regression" else logits.softmax(dim=-1)

    def distance(self, output: Tensor) -> Tensor:
        """Return the mean distance of other outputs' predictions from the model's."""
        apart = (self._of(output) - self._usual).abs()
        if self._head.mode == "regression":
            return apart.mean() / self._usual.std().clamp(min=torch.finfo(apart.dtype).tiny)
        return apart.sum(dim=-1).mean() / 2

    def accuracy(self, output: Tensor) -> float:
        """Return the accuracy of some outputs; NaN without labels."""
        if self._labels is None:
            return math.nan
        return float((self._of(output).argmax(dim=-1) == self._labels).cpu().double().mean())

    def test(self, output: Tensor) -> PredictionTest:
        """Compare the predictions of other outputs with the model's."""
        changed = math.nan
        if self._head.mode != "regression":
            changed = float((self._of(output).argmax(dim=-1) != self._usual.argmax(dim=-1)).cpu().double().mean())
        return PredictionTest(float(self.distance(output)), changed, self.accuracy(output))


def _mean(tests: Sequence[PredictionTest]) -> PredictionTest:
    count = len(tests)
    return PredictionTest(*(sum(getattr(test, name) for test in tests) / count for name in _COMPARED))


_COMPARED = ("distance", "changed", "accuracy")


def _randomized(
    subject: Subject, pairs: Pairs, method: AttributionMethod, scores: Tensor, seed: int
) -> Iterator[float]:
    """Yield the rank correlation with the original scores, while convolutions are shuffled from last to first."""
    shuffled = stand_in(subject.call.user_model, copied)
    convs = list(dict.fromkeys(attention_convs(shuffled)))
    generator = torch.Generator().manual_seed(seed)
    for conv in reversed(convs):
        with torch.no_grad():
            for parameter in conv.parameters():
                order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
                parameter.copy_(parameter.reshape(-1)[order].view_as(parameter))
        yield float(spearman(method.score_pairs(subject.on_model(shuffled), pairs), scores))
