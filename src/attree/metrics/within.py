"""Statistics within targets as `torchmetrics.Metric` classes; `attree.metrics.functional.within` has the functions."""

from __future__ import annotations

from torch import Tensor

from attree.metrics.base import ColumnMetric
from attree.metrics.functional.within import edges_of_effect, effect_sizes, pearson_by_target, strongest_effects


class WithinPearson(ColumnMetric):
    """Mean over targets of Pearson's correlation between scores and effects of the target's edges.

    Targets without an effect do not count; see `attree.metrics.functional.pearson_by_target`. All pairs of a target
    must be in one update.

    >>> import torch
    >>> metric = WithinPearson()
    >>> effects, target = torch.tensor([0.5, 0.0, 0.0, 0.5, 0.0]), torch.tensor([4, 4, 4, 8, 8])
    >>> metric(torch.tensor([1.0, 1.0, 0.0, 0.2, 0.1]), effects, target)
    tensor(0.7500, dtype=torch.float64)
    """

    columns = ("values",)
    plot_lower_bound = -1.0
    plot_upper_bound = 1.0

    def update(self, scores: Tensor, effects: Tensor, target: Tensor) -> None:
        """Append the targets of some pairs.

        Args:
            scores: The method's score of each pair.
            effects: The effect of reducing each pair's edge.
            target: The target of each pair, as integers.
        """
        ids, owner = target.unique(return_inverse=True)
        self.append(values=pearson_by_target(scores, effects, owner, ids.numel()))

    def compute(self) -> Tensor:
        """Compute the mean over the targets of all processes; NaN if no target has an effect."""
        return self.column("values").sort().values.nanmean()  # sorted, so that no order of processes changes a digit


class EffectSizes(ColumnMetric):
    """How large effects are, as medians over targets, and how many targets have one.

    The strongest effect of a single edge (0 for a target without an effect), and the number of edges that hold 90 % of
    a target's effect. All pairs of a target must be in one update, with targets in ascending order.

    >>> import torch
    >>> sizes = EffectSizes()(torch.tensor([0.5, 0.125, -0.125, 0.0, 0.0]), torch.tensor([4, 4, 4, 8, 8]))
    >>> {name: value.item() for name, value in sizes.items()}
    {'strongest': 0.25, 'edges_90': 3.0, 'targets_with': 1.0}
    """

    columns = ("strongest", "edges")

    def update(self, effects: Tensor, target: Tensor) -> None:
        """Append the targets of some pairs.

        Args:
            effects: The effect of reducing each pair's edge.
            target: The target of each pair, as integers, ascending.
        """
        ids, owner = target.unique(return_inverse=True)
        strongest = strongest_effects(effects, owner, ids.numel())
        self.append(strongest=strongest, edges=edges_of_effect(effects, owner, ids.numel()))

    def compute(self) -> dict[str, Tensor]:
        """Compute the medians over the targets of all processes; NaN if there are none."""
        return effect_sizes(self.column("strongest"), self.column("edges"))
