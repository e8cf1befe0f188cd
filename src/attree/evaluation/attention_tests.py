"""Is attention an explanation of this model? Tests after the literature, on one model and graph.

They ask whether predictions need the attention that was learned, as Jain and Wallace, "Attention is not Explanation"
(NAACL 2019), and Wiegreffe and Pinter, "Attention is not not Explanation" (EMNLP 2019), ask of text. On citation graphs
attention had been found near uniform: Li, Zhang, Shi, Wang and Zhang, "A Statistical Characterization of Attentions in
Graph Neural Networks" (ICLR workshop, 2019). And they ask whether scores depend on what was learned: Adebayo et al.,
"Sanity Checks for Saliency Maps" (NeurIPS 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from attree.attention.softmax_hook import attention_convs
from attree.attribution import AttributionMethod, Pairs, make_methods, subject_pairs
from attree.defaults import SEED
from attree.errors import expect, expect_instance, expect_int, expect_list, expect_number
from attree.evaluation.evaluate import subject_of
from attree.evaluation.other_attention import Adversary, permuted, run_with, uniform
from attree.evaluation.targets import named_or_drawn
from attree.metrics.functional import spearman
from attree.subject import Subject
from attree.subject.binding import Call
from attree.subject.head import Mode, ReturnType
from attree.subject.readout import Readout
from attree.subject.roots import Level
from attree.subject.subject import Targets
from attree.tensors.precision import exact_dtype

if TYPE_CHECKING:
    import pandas as pd

LITTLE = 0.05
"""Predictions that move less than this (mean total variation) hardly depend on what was changed."""

ALIKE = 0.7
"""A rank correlation from here on says that scores are much the same."""


@dataclass(frozen=True)
class PredictionTest:
    """What predictions do with another attention.

    Attributes:
        distance: Mean total variation between the predicted distributions; of numbers, the mean absolute difference as
            a share of their standard deviation.
        changed: Share of targets whose predicted class changes; NaN where no classes are predicted.
        accuracy: Share of targets whose class is then right; NaN without labels.
        attention: How far attention itself was moved (mean total variation), where that was searched for; else NaN.
    """

    distance: float
    changed: float
    accuracy: float = math.nan
    attention: float = math.nan


@dataclass(frozen=True)
class AttentionTests:
    """What the tests came to; printed as a table and a few sentences.

    Attributes:
        uniform: Predictions with uniform attention.
        permuted: Predictions with attention permuted within each neighbourhood, mean over the permutations.
        adversarial: Predictions with attention that was moved as far as they allow.
        accuracy: Accuracy of the model as it is; NaN without labels.
        randomized: Rank correlation of scores before and after the parameters of the last convolution, of the last two,
            and so on, are shuffled.
        seeds: Rank correlation of scores between every two of the models that were given; empty without.
        method: What tables call the method whose scores are compared.
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
        """One row per test."""
        import pandas as pd

        rows: dict[str, dict[str, float]] = {}
        if not math.isnan(self.accuracy):
            rows["learned attention"] = {"predictions moved": 0.0, "classes changed": 0.0, "accuracy": self.accuracy}
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
        """The numbers by name, as a file of metrics takes them."""
        table = self.to_pandas()
        return {
            f"{row}/{column}".replace(" ", "_"): float(value)
            for row, values in table.iterrows()
            for column, value in values.items()
            if not math.isnan(value)
        }

    @property
    def sentences(self) -> list[str]:
        """What the numbers say."""
        return list(self._sentences())

    def _sentences(self) -> Iterator[str]:
        pinned = self.uniform.distance >= LITTLE or self.permuted.distance >= LITTLE
        if pinned:
            yield (
                f"Predictions depend on the learned attention: they move by {self.uniform.distance:.2f} with uniform "
                f"and by {self.permuted.distance:.2f} with permuted attention, so it can be an explanation."
            )
        else:
            yield (
                f"Predictions hardly depend on the learned attention: they move by {self.uniform.distance:.2f} with "
                f"uniform and by {self.permuted.distance:.2f} with permuted attention. Which neighbours a node has "
                "explains them, how much it attends to each does not."
            )
        if self.adversarial.attention > 0:
            yield (
                f"Attention can be moved by {self.adversarial.attention:.2f} of at most 1 while predictions move by "
                f"{self.adversarial.distance:.3f}: they do not pin it down further."
            )
        known = [value for value in self.randomized if not math.isnan(value)]
        if known and known[-1] >= ALIKE:
            yield (
                f"{self.method} hardly depends on the parameters: with all convolutions shuffled its scores still "
                f"correlate by {known[-1]:.2f} with what they were. It shows the graph more than what was learned."
            )
        elif known:
            yield f"{self.method} depends on the parameters: shuffled, its scores correlate by {known[-1]:.2f}."
        if self.seeds:
            mean = sum(self.seeds) / len(self.seeds)
            stable = "agree" if mean >= ALIKE else "disagree"
            yield f"Models of other seeds {stable} on it (rank correlation {mean:.2f})."

    def __str__(self) -> str:
        table = self.to_pandas().to_string(float_format=lambda value: f"{value:.3f}", na_rep="")
        return "\n".join([f"{self.num_targets:,} targets", table, *(f"- {one}" for one in self.sentences)])

    def _repr_html_(self) -> str:
        table: str = self.to_pandas().to_html(float_format=lambda value: f"{value:.3f}", na_rep="")
        return table + "<ul>" + "".join(f"<li>{one}</li>" for one in self.sentences) + "</ul>"


def attention_tests(
    model: nn.Module,
    data: Data | Subject,
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

    Four questions are asked. Do predictions change with uniform attention, and with attention permuted within each
    neighbourhood? Can attention be quite another while predictions stay? Do scores change when parameters are shuffled,
    convolution by convolution from the last on? Do models trained with other seeds give the same scores? The model is
    the same afterwards.

    Args:
        model: A PyG attention model.
        data: The graph that it runs on, or a batch of graphs; or a `Subject` of the model.
        targets: Which nodes, pairs or graphs: an id, several, a mask of nodes, or 'all'. None draws `num_targets`.
        num_targets: How many are drawn at random, 100 by default.
        models: The same network trained with other seeds, to compare scores with.
        method: The method whose scores are compared: a name, or a method of one's own.
        permutations: Over how many permutations of attention predictions are averaged.
        steps: Steps of the search for other attention; 0 leaves it out.
        budget: How far predictions may move in that search, as a mean total variation.
        call: How the model is called with the data, as in `attree.evaluate`; so are all that follow.
        level: What the outputs are those of.
        readout: Graph-level models: how their nodes become a graph.
        mode: What is predicted.
        return_type: What the outputs are.
        label: Of several labels or numbers, the one that is measured.
        labels: The true class of every node, pair or graph, for the accuracy; None takes those of the data.
        seed: Seed of drawn targets, permutations and shuffled parameters.

    Returns:
        The result: print it, or ask it for its attributes, `to_pandas()` or `sentences`.
    """
    expect_int(permutations, "permutations", at_least=1)
    expect_int(steps, "steps", at_least=0)
    expect_number(budget, "budget", above=0)
    expect_instance(labels, "labels", Tensor, optional=True)
    others = expect_list(models, "models", nn.Module, "models, or none")
    (scorer,) = make_methods(method, seed=seed).values()
    expect(not (others and isinstance(data, Subject)), "models", "none where `data` is a Subject", f"{len(others)}")
    options: dict[str, Any] = {"call": call, "level": level, "readout": readout, "mode": mode}
    options |= {"return_type": return_type, "label": label}
    subject, known = subject_of(model, data, **options)
    ids = named_or_drawn(subject, targets, num_targets, seed)
    if labels is None and known is not None:
        labels = known.labels
    predictions = _Predictions(subject, ids, labels)
    with torch.no_grad():
        with_uniform = predictions.test(run_with(subject, uniform))
        drawn = [predictions.test(run_with(subject, permuted(seed + draw))) for draw in range(permutations)]
    moved, output = Adversary(budget, steps).search(subject, predictions.distance) if steps else (0.0, subject.output)
    found = predictions.test(output)
    pairs = subject_pairs(subject, ids)
    scores = scorer.score_pairs(subject, pairs)
    peers = [scores]
    for other in others:
        peers.append(scorer.score_pairs(subject_of(other, data, **options)[0], pairs))
    return AttentionTests(
        with_uniform,
        _mean(drawn),
        PredictionTest(found.distance, found.changed, found.accuracy, moved),
        predictions.accuracy(subject.output),
        list(_randomized(subject, pairs, scorer, scores, seed)),
        [float(spearman(one, two)) for place, one in enumerate(peers) for two in peers[place + 1 :]],
        scorer.label,
        ids.numel(),
    )


class _Predictions:
    """The predictions of a model for some targets, to compare others with."""

    def __init__(self, subject: Subject, targets: Tensor, labels: Tensor | None) -> None:
        self._head, self._rows = subject.head, subject.rows(targets)
        self._measured = self._head.measured(subject.output)
        self._usual = self._of(subject.output).detach()
        known = labels is not None and self._head.mode != "regression" and self._measured is None
        self._labels = labels[targets.cpu()].to(self._rows.device) if known and labels is not None else None

    def _of(self, output: Tensor) -> Tensor:
        measured = None if self._measured is None else self._measured[self._rows]
        logits = self._head.logits(output[self._rows].to(exact_dtype(output.device)), measured)
        return logits if self._head.mode == "regression" else logits.softmax(dim=-1)

    def distance(self, output: Tensor) -> Tensor:
        """How far predictions are from the usual ones, on average."""
        apart = (self._of(output) - self._usual).abs()
        if self._head.mode == "regression":
            return apart.mean() / self._usual.std().clamp(min=torch.finfo(apart.dtype).tiny)
        return apart.sum(dim=-1).mean() / 2

    def accuracy(self, output: Tensor) -> float:
        """Share of right classes; NaN without labels."""
        if self._labels is None:
            return math.nan
        return float((self._of(output).argmax(dim=-1) == self._labels).double().mean())

    def test(self, output: Tensor) -> PredictionTest:
        """Compare other outputs with the usual ones."""
        changed = math.nan
        if self._head.mode != "regression":
            changed = float((self._of(output).argmax(dim=-1) != self._usual.argmax(dim=-1)).double().mean())
        return PredictionTest(float(self.distance(output)), changed, self.accuracy(output))


def _mean(tests: Sequence[PredictionTest]) -> PredictionTest:
    count = len(tests)
    return PredictionTest(*(sum(getattr(one, name) for one in tests) / count for name in _COMPARED))


_COMPARED = ("distance", "changed", "accuracy")


def _randomized(
    subject: Subject, pairs: Pairs, method: AttributionMethod, scores: Tensor, seed: int
) -> Iterator[float]:
    """Rank correlation of scores with those before, as convolutions are shuffled from the last on."""
    convs = list(dict.fromkeys(attention_convs(subject.model)))
    generator = torch.Generator().manual_seed(seed)
    with _restored(subject.model):
        for conv in reversed(convs):
            with torch.no_grad():
                for parameter in conv.parameters():
                    order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
                    parameter.copy_(parameter.reshape(-1)[order].view_as(parameter))
            yield float(spearman(method.score_pairs(subject.fresh(), pairs), scores))


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """On exit the parameters have the values that they had."""
    kept = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)
