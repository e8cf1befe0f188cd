"""Memory budgets by default, and how work is cut into chunks that fit into one."""

from __future__ import annotations

from torch import Tensor

from attree.errors import expect_number

WALK_MEMORY = 256 * 2**20
"""Default bytes of working memory for walks over computation trees."""

KEPT_WALK_MEMORY = 256 * 2**20
"""Default bytes for walks that are kept in memory to be used again."""

REDUCTION_MEMORY = 512 * 2**20
"""Default bytes of working memory for a reduction."""


def chunk_bounds(cost: Tensor, budget: float) -> list[tuple[int, int]]:
    """Cut a list of costs into consecutive chunks of at most `budget` each (a single item may exceed it).

    >>> import torch
    >>> chunk_bounds(torch.tensor([3.0, 3.0, 3.0, 9.0, 1.0]), budget=6.0)
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    expect_number(budget, "budget", above=0)
    if cost.numel() and float(cost.sum()) <= budget:
        return [(0, cost.numel())]
    # There are few chunks, so each one is found by bisection on the CPU, whatever the device of `cost`.
    total = cost.detach().cpu().double().numpy().cumsum()
    bounds, begin, spent = [], 0, 0.0
    while begin < total.size:
        end = max(int(total.searchsorted(spent + budget, side="right")), begin + 1)
        bounds.append((begin, end))
        begin, spent = end, float(total[end - 1])
    return bounds
