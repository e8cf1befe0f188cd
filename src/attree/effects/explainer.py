"""Occlusion as an explanation algorithm of `torch_geometric.explain`."""

from __future__ import annotations

from attree.attribution.explainer import TreeExplainer
from attree.effects.occlusion import DEFAULT_PROTOCOL, Occlusion
from attree.faithfulness.protocol import ReductionProtocol


class OcclusionExplainer(TreeExplainer):
    """The exact effect of reducing each edge's attention: see `attree.Occlusion`.

    `edge_mask` has a sign; `normalize` divides it by its largest absolute value.

    .. code-block:: python

        explainer = Explainer(
            model, algorithm=OcclusionExplainer(), explanation_type="model", edge_mask_type="object",
            model_config=dict(mode="multiclass_classification", task_level="node", return_type="raw"),
        )
        explanation = explainer(x, edge_index, index=10)

    Args:
        protocol: What reducing an edge means: `removal`, `weight`, `coefficient`, `authors`, or one of one's own.
        normalize: Divide the mask by its largest absolute value.
    """

    def __init__(self, protocol: str | ReductionProtocol = DEFAULT_PROTOCOL, normalize: bool = False) -> None:
        super().__init__(normalize=normalize, method=Occlusion(protocol))
