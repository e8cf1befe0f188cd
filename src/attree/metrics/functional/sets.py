"""Metrics of sets of edges: how a model predicts with the chosen edges alone, and without them.

A method that measures the effect of single edges predicts these effects perfectly by definition. Sets test it too,
because edges that matter together need not matter alone. Every function returns one value per target; the metric is
their mean.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attree.errors import expect
from attree.metrics.functional.ranking import Ranking, in_float64, on_device_of
from attree.tensors.arrays import pointers
from attree.tensors.precision import exact_dtype


def fidelity(predicted: Tensor, predicted_after: Tensor) -> Tensor:
    """Whether each target's prediction changes: fidelity+ without the chosen edges, fidelity- with these alone.

    Amara et al., "GraphFramEx" (LoG 2022), for explanations of the model; `torch_geometric.explain.metric.fidelity`
    returns the mean of the same values.

    Args:
        predicted: Predicted class of each target, [T].
        predicted_after: Predicted class of each target with edges masked, [T].

    >>> fidelity(torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2])).tolist()
    [0.0, 1.0, 0.0]
    """
    _same_shape(predicted=predicted, predicted_after=predicted_after)
    return (predicted != predicted_after).to(exact_dtype(predicted.device))


def characterization_score(positive: Tensor, negative: Tensor, weight: float = 0.5) -> Tensor:
    """Weighted harmonic mean of fidelity+ and 1 - fidelity- (Amara et al., 2022); 0 if either is 0.

    Args:
        positive: Fidelity+, higher is better.
        negative: Fidelity-, lower is better.
        weight: Weight of fidelity+, in (0, 1).

    >>> round(characterization_score(torch.tensor(0.5), torch.tensor(0.1)).item(), 4)
    0.6429
    """
    expect(0 < weight < 1, "weight", "in (0, 1)", weight)
    return 1 / (weight / positive + (1 - weight) / (1 - negative))


def unfaithfulness(probability: Tensor, probability_after: Tensor) -> Tensor:
    r"""Distance of each target's prediction from the chosen edges alone to its prediction from all edges.

    .. math:: 1 - \exp(-\mathrm{KL}(q \,\|\, p))

    Here p is the distribution predicted from the whole graph and q that from the chosen edges, as in
    `torch_geometric.explain.metric.unfaithfulness` (Agarwal et al., "Evaluating explainability for graph neural
    networks", 2023).

    Args:
        probability: Class probabilities with all edges, [T, classes].
        probability_after: Class probabilities with the chosen edges alone, [T, classes].

    >>> round(unfaithfulness(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.5
    """
    _same_shape(probability=probability, probability_after=probability_after)
    divergence = torch.nn.functional.kl_div(probability.log(), probability_after, reduction="none").sum(dim=-1)
    return 1 - (-divergence).exp()


def curve_area(shares: Tensor, values: Tensor) -> Tensor:
    """Area under each target's curve of predictions over the share of removed or added edges, by trapezoids.

    Petsiuk et al., "RISE" (BMVC 2018). A deletion curve falls early if the important edges are removed first, so lower
    is better. An insertion curve rises early, so higher is better.

    Args:
        shares: Shares of edges, ascending from 0 to 1, [n].
        values: The prediction at each share, [T, n].

    >>> curve_area(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([[1.0, 0.0, 0.0]])).tolist()
    [0.25]
    """
    ordered = shares.dim() == 1 and bool((shares.diff() > 0).all())
    expect(ordered, "shares", "ascending numbers", shares.tolist())
    expect(values.shape[-1:] == shares.shape, "values", f"of {shares.numel()} columns", tuple(values.shape))
    return torch.trapezoid(values, shares.to(values), dim=-1)


def sparsity(scores: Tensor, owner: Tensor, num_targets: int, mass: float = 0.9) -> Tensor:
    """Share of each target's edges that can be dropped while the rest keep most of the total score.

    Args:
        scores: Score of every pair, [P]; only the absolute value counts.
        owner: Position of every pair's target, ascending.
        num_targets: Number of targets.
        mass: Share of a target's total score to keep.

    >>> sparsity(torch.tensor([10.0, 0.0, 0.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 0, 0, 1, 1]), 2).tolist()
    [0.75, 0.0]
    """
    needed = edges_needed(scores, owner, num_targets, mass)
    return 1 - needed / owner.bincount(minlength=num_targets).clamp(min=1)


def edges_needed(scores: Tensor, owner: Tensor, num_targets: int, mass: float) -> Tensor:
    """Number of each target's edges, largest first, that hold a share `mass` of the target's total score.

    Args:
        scores: Score of every pair, [P]; only the absolute value counts.
        owner: Position of every pair's target, ascending.
        num_targets: Number of targets.
        mass: Share of a target's total score to hold.

    >>> edges_needed(torch.tensor([10.0, 0.0, -1.0, 1.0]), torch.tensor([0, 0, 1, 1]), 2, mass=0.9).tolist()
    [1.0, 2.0]
    """
    column = in_float64(scores).abs().nan_to_num(0.0).cpu()
    nonzero = column.nonzero().view(-1)  # most effects are exactly 0: they hold nothing, and need no sorting
    ranking = Ranking(column[nonzero])
    num_sizes, rank = len(ranking.counts), ranking.dense
    # One integer an edge sorts by target, then by descending size. Edges of the same size need no order.
    of_edge = owner.cpu()[nonzero].numpy()
    keys = np.sort(of_edge * num_sizes + (num_sizes - 1 - rank))
    counts = np.bincount(of_edge, minlength=num_targets)
    sorted_owner = np.repeat(np.arange(num_targets), counts)
    size_of_rank = np.empty(num_sizes)
    size_of_rank[rank] = ranking.values.numpy()
    sizes = size_of_rank[num_sizes - 1 - (keys - sorted_owner * num_sizes)]
    total = np.bincount(sorted_owner, sizes, num_targets)
    earlier = sizes.cumsum() - sizes
    before = earlier - earlier[(counts.cumsum() - counts)[sorted_owner]]
    is_needed = before < mass * total[sorted_owner] - 1e-12
    return on_device_of(scores, torch.from_numpy(np.bincount(sorted_owner, is_needed, num_targets)))


def precision_at_k(scores: Tensor, labels: Tensor, owner: Tensor, num_targets: int) -> Tensor:
    """Share of true edges among each target's k highest-scored edges, with k the number of its true edges.

    NaN for targets without true edges. Among equal scores, the edge that is listed first ranks first.

    Args:
        scores: Score of every pair, [P].
        labels: Whether the pair's edge is true, [P].
        owner: Position of every pair's target, ascending.
        num_targets: Number of targets.

    >>> owner = torch.tensor([0, 0, 0, 0])
    >>> precision_at_k(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0]), owner, 1).tolist()
    [0.5]
    """
    values = in_float64(scores)
    true, owner = labels.to(values.device).double(), owner.to(values.device)
    count = torch.zeros(num_targets, dtype=torch.float64, device=true.device).index_add_(0, owner, true)
    order, place = ranked(values, owner)
    sorted_owner = owner[order]
    hits = torch.zeros_like(count).index_add_(0, sorted_owner, true[order] * (place < count[sorted_owner]))
    return on_device_of(scores, hits / count.masked_fill(count == 0, torch.nan))


def jaccard(scores: Tensor, labels: Tensor, owner: Tensor, num_targets: int) -> Tensor:
    """Jaccard index (intersection over union) of each target's k highest-scored edges and its k true edges.

    Args:
        scores: Score of every pair, [P].
        labels: Whether the pair's edge is true, [P].
        owner: Position of every pair's target, ascending.
        num_targets: Number of targets.

    >>> owner = torch.tensor([0, 0, 0, 0])
    >>> round(jaccard(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0]), owner, 1).item(), 4)
    0.3333
    """
    precision = precision_at_k(scores, labels, owner, num_targets)
    return precision / (2 - precision)


def ranked(scores: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pairs' order by target, then by descending score, and each ordered pair's place within its target."""
    order = scores.nan_to_num(nan=-torch.inf).argsort(descending=True, stable=True)
    order = order[owner[order].argsort(stable=True)]
    sorted_owner = owner[order]
    begin = pointers(sorted_owner.bincount())[:-1]
    return order, torch.arange(sorted_owner.numel(), device=sorted_owner.device) - begin[sorted_owner]


def _same_shape(**columns: Tensor) -> None:
    (first, a), (second, b) = columns.items()
    expect(a.shape == b.shape, second, f"of the shape of `{first}`, {tuple(a.shape)}", tuple(b.shape))
