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
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from attree.attention.softmax_hook import attention_convs
from attree.attribution import AttributionMethod, Pairs, make_methods, subject_pairs
from attree.defaults import SEED
from attree.errors import expect, expect_instance, expect_int, expect_list, expect_number
from attree.evaluation.attention_tests_result import AttentionTests, PredictionTest
from attree.evaluation.config import given_or_drawn
from attree.evaluation.evaluate import subject_of
from attree.evaluation.other_attention import Adversary, permuted, run_with, uniform
from attree.metrics.functional import spearman
from attree.subject import Subject
from attree.subject.conventions import Call
from attree.subject.head import Mode, ReturnType
from attree.subject.readout import Readout
from attree.subject.roots import Level
from attree.subject.target_ids import Targets
from attree.tensors.limits import exact_dtype


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
    neighbourhood? Can attention be very different while predictions stay the same? Do scores change when parameters are
    shuffled, from the last convolution to the first? Do models trained with other seeds give the same scores? The model
    is left as it was.

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

    >>> from torch_geometric.nn import GAT
    >>> graph = Data(x=torch.randn(20, 8), edge_index=torch.randint(0, 20, (2, 60)))
    >>> tests = attention_tests(GAT(8, 16, 2, out_channels=3), graph, num_targets=5, steps=0)
    >>> 0 <= tests.uniform.changed <= 1  # share of predictions that are others with uniform attention
    True
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
    ids = given_or_drawn(subject, targets, num_targets, seed)
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
    """Rank correlation with the original scores, as convolutions are shuffled from the last to the first."""
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
