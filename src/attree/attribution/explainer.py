"""GAtt and related methods as explanation algorithms of `torch_geometric.explain`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch_geometric.explain import Explanation, HeteroExplanation
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.explain.config import ExplanationType

from attree.attribution.baselines import AvgAtt
from attree.attribution.gatt import FlowMethod, GAtt, GAttAvg, GAttSim
from attree.attribution.method import AttributionMethod
from attree.attribution.result import Attribution
from attree.errors import expect, expect_bool, expect_instance
from attree.subject import Head, Subject
from attree.subject.missed_by_attention import bypass_of, what_attention_misses
from attree.subject.readout import Readout, check_readout
from attree.subject.target_roots import Level
from attree.tensors.precision import exact_dtype

logger = logging.getLogger(__name__)

Features = Tensor | dict[str, Tensor]
Edges = Tensor | dict[tuple[str, str, str], Tensor]


class TreeExplainer(ExplainerAlgorithm):
    """Explains a model by the attention weights of its convolutions.

    The model is any PyG model with attention convolutions (see `attree.attention.capture_attention`), on a homogeneous
    or heterogeneous graph, with outputs of nodes, links (`task_level="edge"`) or graphs. `edge_mask` holds the
    method's scores, one for each given edge; self-loops that the convolutions add are left out. For a heterogeneous
    graph, the result is a `HeteroExplanation` with one mask per edge type.

    If several nodes or graphs are explained at once (`index` is a tensor, or None for all), `edge_mask` is the sum of
    their masks. Graphs of a batch share no edges, so each edge has the score for its own graph. `attribute` returns
    separate masks.

    Args:
        heads: The head to read in each layer; None averages all heads.
        readout: Graph-level models: how nodes are pooled, `sum`, `mean`, `max`, or one weight per node; None reads it
            from the model. For `max`, the pooled nodes are found from the output of the last convolution.
        normalize: Divide the mask by its largest absolute score. Soft-mask metrics of PyG (`fidelity`,
            `unfaithfulness`) and hard thresholds need this.
        node_type: Heterogeneous graphs: the node type to explain, if the model returns outputs of several types.
        method: The method that scores edges; default: that of the class.
    """

    method_class: ClassVar[type[FlowMethod]]

    def __init__(
        self,
        heads: Sequence[int] | None = None,
        readout: Readout | None = None,
        normalize: bool = False,
        node_type: str | None = None,
        *,
        method: AttributionMethod | None = None,
    ) -> None:
        super().__init__()
        check_readout(readout)
        expect_instance(method, "method", AttributionMethod, optional=True)
        self.method: AttributionMethod = self.method_class(heads) if method is None else method
        self.readout = readout
        self.normalize = expect_bool(normalize, "normalize")
        expect(node_type is None or isinstance(node_type, str), "node_type", "the name of a type, or None", node_type)
        self.node_type = node_type
        self._warned: WeakSet[nn.Module] = WeakSet()

    def forward(
        self,
        model: nn.Module,
        x: Features,
        edge_index: Edges,
        *,
        target: Tensor,
        index: int | Tensor | None = None,
        **kwargs: Any,
    ) -> Explanation | HeteroExplanation:
        """Compute the explanation; called by `torch_geometric.explain.Explainer`."""
        subject = self._subject(model, x, edge_index, kwargs)
        if model not in self._warned and not self.method.reads_effects:  # effects include everything the model does
            self._warned.add(model)
            for sentence in what_attention_misses(subject, bypass_of(subject)):
                warnings.warn(sentence, stacklevel=2)
        graph, dtype = subject.graph, subject.layers.weights[0].dtype
        scores = torch.zeros(graph.num_edges, dtype=exact_dtype(graph.device), device=graph.device)
        for part in self.method.stream(subject, "all" if index is None else index):
            scores.index_add_(0, part.edges, part.scores.to(scores.dtype))
        mask = graph.to_original(scores).to(dtype)
        if self.normalize and mask.numel():
            mask = mask / mask.abs().max().clamp(min=torch.finfo(dtype).tiny)
        if graph.types is None:
            return Explanation(edge_mask=mask)
        explanation = HeteroExplanation()
        explanation.set_value_dict("edge_mask", graph.types.split_edges(mask))
        return explanation

    def attribute(
        self, model: nn.Module, x: Features, edge_index: Edges, *, index: int | Tensor | None = None, **kwargs: Any
    ) -> Attribution:
        """Explain several nodes or graphs in one pass; `result.edge_mask(i)` is the mask of `i`.

        This also works without a `torch_geometric.explain.Explainer`.

        Args:
            model: The model to explain.
            x: Node features.
            edge_index: Edges, [2, E].
            index: Nodes, or graphs of the batch, to explain; None for all.
            **kwargs: Further arguments of the model; graph-level models need `batch`.
        """
        return self.method.attribute(self._subject(model, x, edge_index, kwargs), "all" if index is None else index)

    def _subject(self, model: nn.Module, x: Features, edge_index: Edges, kwargs: dict[str, Any]) -> Subject:
        """Return the subject of a model's call, with the level and the head that PyG's `Explainer` configures."""
        level: Level | None = None
        head: Head | None = None
        try:
            config = self.model_config
        except ValueError:  # used without a `torch_geometric.explain.Explainer`
            pass
        else:
            level = config.task_level.value
            head = Head(config.mode.value, config.return_type.value)
        return Subject.of(
            model, x, edge_index, level=level, readout=self.readout, head=head, node_type=self.node_type, **kwargs
        )

    def supports(self) -> bool:
        """Whether the explainer supports the settings; if not, the reason is logged."""
        config = self.explainer_config
        name = type(self).__name__
        reason = None
        if config.explanation_type != ExplanationType.model:
            reason = (
                f"'{name}' explains the predictions of the model, not the labels "
                f"(got `explanation_type={config.explanation_type.value}`, expected `model`)"
            )
        elif config.node_mask_type is not None:
            reason = f"'{name}' scores edges only (got `node_mask_type={config.node_mask_type.value}`, expected None)"
        if reason is not None:
            logger.error(reason)
        return reason is None


class GAttExplainer(TreeExplainer):
    """GAtt (Shin et al., "Faithful and Accurate Self-Attention Attribution for Message Passing Neural Networks via the
    Computation Tree Viewpoint", AAAI 2025); see `attree.attribution.GAtt`.

    .. code-block:: python

        explainer = Explainer(
            model, algorithm=GAttExplainer(), explanation_type="model", edge_mask_type="object",
            model_config=dict(mode="multiclass_classification", task_level="node", return_type="raw"),
        )
        explanation = explainer(x, edge_index, index=10)
    """

    method_class = GAtt


class GAttSimExplainer(TreeExplainer):
    """GAtt without contribution adjustment; see `attree.attribution.GAttSim`."""

    method_class = GAttSim


class GAttAvgExplainer(TreeExplainer):
    """GAtt without the proximity effect; see `attree.attribution.GAttAvg`."""

    method_class = GAttAvg


class AvgAttExplainer(TreeExplainer):
    """Attention averaged over layers and heads, on edges that carry a flow; see `attree.attribution.AvgAtt`."""

    method_class = AvgAtt
