"""Statistics within targets: against SciPy target by target, in batches, and in two processes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy.stats import pearsonr
from torch import Tensor

from attree.metrics import EffectSizes, WithinPearson
from attree.metrics.functional import edges_of_effect, effect_sizes, median, pearson_by_target, strongest_effects
from helpers.processes import spawn

TARGETS = 30


def columns() -> tuple[Tensor, Tensor, Tensor]:
    """Scores, effects and owners; some targets have no effect, some constant scores, some one pair, one none at all."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(2, 15, (TARGETS,), generator=generator)
    sizes[3], sizes[4] = 1, 0
    owner = torch.repeat_interleave(sizes)
    scores, effects = torch.randn(2, owner.numel(), generator=generator, dtype=torch.float64)
    effects[owner % 7 == 2] = 0.0
    scores[owner % 5 == 1] = 0.1 + 0.2  # a number whose mean need not be itself
    return scores + 100, effects * 10.0 ** -(owner % 8).double(), owner


def plainly(scores: Tensor, effects: Tensor, owner: Tensor) -> list[float]:
    values = []
    for target in range(TARGETS):
        x, y = (column[owner == target].numpy() for column in (scores, effects))
        if len(set(y.tolist())) < 2:
            values.append(math.nan)
        else:
            values.append(0.0 if len(set(x.tolist())) == 1 else float(pearsonr(x, y).statistic))
    return values


def test_every_target_has_the_correlation_of_its_own_edges() -> None:
    expected = plainly(*columns())
    assert 0.0 in expected
    values = pearson_by_target(*columns(), TARGETS)
    # Scores lie near 100 with a spread of 1, which costs SciPy two of its sixteen digits in each of two factors.
    np.testing.assert_allclose(values.numpy(), expected, atol=1e-11)
    metric = WithinPearson()
    for part in ((0, 10), (10, TARGETS)):
        batch = (columns()[2] >= part[0]) & (columns()[2] < part[1])
        metric.update(*(column[batch] for column in columns()))
    assert metric.compute().item() == pytest.approx(np.nanmean(expected), abs=1e-11)


def test_the_order_of_targets_changes_no_digit() -> None:
    scores, effects, owner = columns()
    expected = pearson_by_target(scores, effects, owner, TARGETS)
    order = (owner * 7 % TARGETS).argsort(stable=True)
    values = pearson_by_target(scores[order], effects[order], owner[order], TARGETS)
    torch.testing.assert_close(values, expected, equal_nan=True, atol=0, rtol=0)


def test_a_shift_or_scale_between_targets_changes_nothing() -> None:
    """Unlike pooled statistics, which see that targets differ."""
    scores, effects, owner = columns()
    other = scores * (1 + owner) + 7.0 * owner
    torch.testing.assert_close(
        pearson_by_target(other, effects, owner, TARGETS),
        pearson_by_target(scores, effects, owner, TARGETS),
        equal_nan=True,
        atol=1e-11,
        rtol=0,
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_undefined_scores_make_all_undefined(value: float) -> None:
    scores, effects, owner = columns()
    scores[7] = value
    assert pearson_by_target(scores, effects, owner, TARGETS).isnan().all()
    nothing = WithinPearson()
    nothing.update(*(column[:0] for column in columns()))
    assert nothing.compute().isnan()


def test_sizes_by_counting() -> None:
    _, effects, owner = columns()
    strongest, needed = [], []
    for target in range(TARGETS):
        sizes = sorted(effects[owner == target].abs().tolist(), reverse=True)
        strongest.append(max(sizes, default=0.0))
        held = [sum(sizes[:count]) >= 0.9 * sum(sizes) for count in range(1, len(sizes) + 1)]
        needed.append(held.index(True) + 1 if sum(sizes) > 0 else math.nan)
    assert strongest_effects(effects, owner, TARGETS).tolist() == strongest
    np.testing.assert_array_equal(edges_of_effect(effects, owner, TARGETS), needed)
    sizes = EffectSizes()(effects, owner)
    present = [value for target, value in enumerate(strongest) if (owner == target).any()]
    assert sizes["strongest"].item() == pytest.approx(np.median(present))
    assert sizes["edges_90"].item() == np.nanmedian(needed)
    assert sizes["targets_with"].item() == np.count_nonzero(strongest)


@pytest.mark.long
def test_medians_of_more_targets_than_torch_quantile_takes() -> None:
    count = 2**24 + 2
    strongest = torch.arange(count, dtype=torch.float64)
    edges = strongest.flip(0)
    edges[0] = math.nan
    sizes = effect_sizes(strongest, edges)
    assert sizes["strongest"].item() == np.median(strongest.numpy())
    assert sizes["edges_90"].item() == np.median(edges[1:].numpy())
    assert sizes["targets_with"].item() == count - 1


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_median_is_the_half_quantile(count: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count))
    assert torch.equal(median(values), values.quantile(0.5))
    values[count // 2] = math.nan
    assert median(values).isnan()


def compute(rank: int, split: int) -> dict[str, Tensor]:
    within, sizes = WithinPearson(), EffectSizes()
    scores, effects, owner = columns()
    share = owner < split if rank == 0 else owner >= split
    if share.any():
        within.update(scores[share], effects[share], owner[share])
        sizes.update(effects[share], owner[share])
    return {"within": within.compute(), **sizes.compute()}


def in_process(rank: int, file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}/store", rank=rank, world_size=2)
    values = {split: compute(rank, split) for split in (0, 7, TARGETS)}
    torch.save(values, f"{file}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_compute_what_one_computes(tmp_path: Path) -> None:
    spawn(in_process, (str(tmp_path),))
    expected = compute(0, TARGETS)
    for rank in range(2):
        for values in torch.load(tmp_path / f"{rank}.pt").values():
            assert values == expected
