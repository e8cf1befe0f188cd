"""GAtt and its two ablations.

Shin et al., "Faithful and Accurate Self-Attention Attribution for Message Passing Neural Networks via the Computation
Tree Viewpoint", AAAI 2025.
"""

from __future__ import annotations

from torch import Tensor

from attree.attribution.blocks import EdgeBlock
from attree.attribution.flow_method import FlowMethod


class GAtt(FlowMethod):
    r"""GAtt: attention summed over an edge's occurrences in the computation tree, each weighted by the way to the root.

    .. math:: \phi^v_{i,j} = \sum_{m=1}^{L} [\mathbf{A}(L) \cdots \mathbf{A}(m+1)]_{v,j} \, [\mathbf{A}(m)]_{j,i}

    where :math:`v` is the target, :math:`(i, j)` the edge from i to j and :math:`[\mathbf{A}(m)]_{j,i}` its attention
    weight in layer m.

    The paper's worked example: edge (40 -> 27), here (1 -> 0), occurs twice in the tree of target 27, here 0. Its
    weight is 0.25 in the last layer, and 0.9 in the first, from where it passes the last layer's self-loop of 0.25:

    >>> import torch
    >>> from attree.attention import Attention, Graph
    >>> graph = Graph(torch.tensor([[1], [0]]), num_nodes=2)  # edges: 1 -> 0, then the loops of 0 and of 1
    >>> attention = Attention.from_weights(graph, [torch.tensor([0.9, 0.1, 1.0]), torch.tensor([0.25, 0.25, 1.0])])
    >>> round(GAtt().attribute(attention, 0).dense(0)[0].item(), 6)  # 0.25 + 0.9 * 0.25
    0.475
    """

    name = "gatt"
    label = "GAtt"

    def score(self, block: EdgeBlock) -> Tensor:
        return block.weighted()


class GAttSim(FlowMethod):
    r"""GAtt without contribution adjustment: the attention of an edge's occurrences in the tree, simply added.

    .. math:: \sum_{m=1}^{L} n_m(j) \, [\mathbf{A}(m)]_{j,i}

    where :math:`n_m(j)` counts the flows from j to the target through layers m+1 ... L.
    """

    name = "gatt_sim"
    label = "GAtt-sim"
    weighs_branches = False

    def walk_weights(self, alphas: list[Tensor], used: list[Tensor]) -> list[Tensor]:
        return used

    def score(self, block: EdgeBlock) -> Tensor:
        return block.weighted()


class GAttAvg(FlowMethod):
    r"""GAtt without the proximity effect: GAtt divided by the number of flows that start with the edge."""

    name = "gatt_avg"
    label = "GAtt-avg"
    counts_flows = True

    def score(self, block: EdgeBlock) -> Tensor:
        weighted = block.weighted()
        # Edges without any flow divide 0 by 1; the result drops them.
        return weighted / block.flows().clamp(min=1).to(weighted.dtype)
