"""Effects are multiples of one resolution: rounding errors are no effects, and ties are no changes of the class."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attree.attention import Graph
from attree.attribution import graph_pairs
from attree.defaults import RESOLUTION, RESOLUTION_FLOAT32
from attree.faithfulness import Reduction
from attree.faithfulness.effect_measures import ReductionWriter
from attree.subject import Head

NOISE = 1e-13
"""A rounding error: far below the resolution."""


def measured(
    before: list[list[float]], after: list[list[float]], head: Head | None = None, **options: float
) -> Reduction:
    """Effects on graph 0 of reductions that turn the outputs `before` into the first rows of `after`, one per edge."""
    graph = Graph(torch.tensor([[0] * len(after), [1] * len(after)]), num_nodes=2)
    pairs = graph_pairs(graph, torch.zeros(2, dtype=torch.int64)).only(torch.arange(len(after) + 2) < len(after))
    outputs = torch.tensor(before, dtype=torch.float64)
    writer = ReductionWriter(pairs, outputs, (Head() if head is None else head).resolve(outputs), **options)
    writer.fill(torch.arange(len(after)), torch.tensor(after, dtype=torch.float64))
    return writer.result


def logits(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def test_effects_are_multiples_of_the_resolution_and_rounding_errors_are_zero() -> None:
    after = [logits(0.7 + NOISE, 0.3 - NOISE), logits(0.7 - NOISE, 0.3 + NOISE), logits(0.65, 0.35)]
    found = measured([logits(0.7, 0.3)], [*after, logits(0.65 + NOISE, 0.35 - NOISE)])
    assert found.delta_pc[:2].tolist() == [0.0, 0.0]
    assert found.delta_ne[:2].tolist() == [0.0, 0.0]
    assert float(found.delta_pc[2]) == float(found.delta_pc[3]) == pytest.approx(0.05, abs=RESOLUTION)
    assert float(found.delta_ne[2]) == float(found.delta_ne[3])


@pytest.mark.parametrize("noise", [NOISE, -NOISE])
def test_a_tie_changes_no_class(noise: float) -> None:
    found = measured([logits(0.5 + noise, 0.5 - noise)], [logits(0.5 - noise, 0.5 + noise), logits(0.3, 0.7)])
    assert found.changed.tolist() == [False, True]
    found = measured([logits(0.6, 0.4)], [logits(0.5 - noise, 0.5 + noise), logits(0.4, 0.6)])
    assert found.changed.tolist() == [False, True]


def test_the_resolution_of_numbers_is_relative_to_their_size() -> None:
    head = Head("regression")
    small = measured([[2e-6]], [[2e-6 - 1e-12], [2e-6 + 1e-19]], head)
    assert small.delta_pc.tolist() == pytest.approx([1e-12, 0.0], rel=1e-3)
    large = measured([[2e6]], [[2e6 - 1e-2], [2e6 + 1e-5]], head)
    assert large.delta_pc.tolist() == pytest.approx([1e-2, 0.0], rel=1e-3)


def test_a_model_that_runs_in_float32_has_a_larger_resolution() -> None:
    found = measured([logits(0.7, 0.3)], [logits(0.7 + 2e-6, 0.3 - 2e-6)], step=RESOLUTION_FLOAT32)
    assert found.delta_pc.tolist() == [0.0]


def test_nan_stays_nan() -> None:
    found: Tensor = measured([logits(0.7, 0.3)], [[math.nan, 0.0]]).delta_pc
    assert found.isnan().all()
