"""Tests from the literature of whether attention is an explanation of a model.

Two questions are tested. Do the predictions need the network's attention? Jain and Wallace, "Attention is not
Explanation" (NAACL 2019), and Wiegreffe and Pinter, "Attention is not not Explanation" (EMNLP 2019), ask this for text;
on citation graphs, attention was found to be nearly uniform (Li, Zhang, Shi, Wang and Zhang, "A Statistical
Characterization of Attentions in Graph Neural Networks", ICLR workshop, 2019). Do the scores depend on the learned
parameters? This is after Adebayo et al., "Sanity Checks for Saliency Maps" (NeurIPS 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.softmax_hook import attention_convs
from attree.attention.stand_ins import copied, stand_in
from attree.attribution import AttributionMethod, Pairs, make_methods, subject_pairs
from attree.defaults import SEED
from attree.errors import UnsupportedModelError, expect, expect_instance, expect_int, expect_list, expect_number
from attree.evaluation.attention_tests_result import AttentionTests, PredictionTest
from attree.evaluation.other_attention import Adversary, permuted, run_with, uniform
from attree.metrics.functional import spearman
from attree.source import Reading, explained_by_user
from attree.subject import Head, Subject
from attree.subject.binding import Call
from attree.subject.head import Mode, ReturnType
from attree.subject.readout import Readout
from attree.subject.roots import Level, Targets
from attree.tensors.limits import exact_dtype


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
