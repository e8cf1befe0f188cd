"""Penalties that compare GAtt of training targets with what is right: true edges, or the exact effects of edges."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from attree.attribution.baselines import hashed_uniform
from attree.attribution.gatt import GAtt
from attree.attribution.subject_pairs import subject_pairs
from attree.data.ground_truth import GroundTruth
from attree.errors import (
    ArgumentError,
    UnsupportedModelError,
    expect,
    expect_instance,
    expect_int,
    expect_number,
    expect_seed,
)
from attree.faithfulness.choose import Reducer
from attree.faithfulness.protocol import protocol_names, resolve_protocol
from attree.penalties.penalty import AttentionPenalty, PenalizedStep
from attree.subject import Subject

TINY = 1e-12
"""Smaller numbers count as this where a logarithm is taken or a root divided by."""


class TrueEdges(AttentionPenalty):
    r"""Supervision by known true edges: pushes GAtt of training targets onto the edges that truly explain them.

    .. math:: \frac{1}{|S|} \sum_{v \in S} -\log
        \frac{\sum_{e \in \text{true}(v)} \phi^v_e}{\sum_{e} \phi^v_e}

    where :math:`\phi^v_e` is GAtt of edge e for target v. S are the training nodes that have a true explanation, or a
    share of them: validation and test nodes are never looked at. For attention of a sequence: Liu et al., "Neural
    Machine Translation with Supervised Attention", COLING 2016.

    A step that trains on none of these nodes, as a sampled batch may, has a penalty of 0.

    Args:
        strength: The factor of the penalty in the loss.
        share: The share of the training targets that are supervised; each is drawn by its id and the seed.
        seed: Another seed, another draw.
        truth: The true edges; by default those of attree's data (Infection, BA-Shapes, HeteroInfection).
    """

    name = "true_edges"

    def __init__(
        self, strength: float = 1.0, share: float = 1.0, seed: int = 0, truth: GroundTruth | None = None
    ) -> None:
        super().__init__(strength)
        self.share = expect_number(share, "share", above=0, at_most=1)
        self.seed = expect_seed(seed)
        expect_instance(truth, "truth", GroundTruth, optional=True)
        self.truth = truth

    def measure_step(self, step: PenalizedStep) -> Tensor:
        truth = step.truth if self.truth is None else self.truth
        if truth is None:
            raise ArgumentError(
                "Expected argument `penalties` to have `true_edges` only for data with true explanations (Infection, "
                "BA-Shapes, HeteroInfection, or a `truth` of your own), but this data has none."
            )
        if is_batch_of_graphs(step.batch) or has_queried_pairs(step.batch):
            raise UnsupportedModelError("Expected the penalty `true_edges` to see a graph whose nodes are classified.")
        attention = step.attention
        if attention.graph.types is not None and any("n_id" in store for store in step.batch.node_stores):
            raise UnsupportedModelError(
                "Expected the penalty `true_edges` to see a whole heterogeneous graph, but got a sampled part of one."
            )
        truth, ids = truth.to(attention.graph.device), step.node_ids
        nodes = self.supervised(step.trained_nodes, ids, truth)
        if nodes.numel() == 0:
            return attention.weights[0].sum() * 0.0
        found = GAtt().attribute_from(attention, step.roots(nodes))
        owner = torch.repeat_interleave(found.ptr.diff())
        ends = attention.graph.edge_index[:, found.edges]
        source, destination = ends if ids is None else ids[ends]
        named = nodes if ids is None else ids[nodes]
        order = torch.argsort(truth.targets)
        position = order[torch.searchsorted(truth.targets[order], named)]
        is_true = truth.labels(position[owner], source, destination)
        mass = found.scores.new_zeros(2, nodes.numel())
        mass = mass.index_add(1, owner, torch.stack([found.scores * is_true, found.scores]))
        return (mass[1].clamp(min=TINY).log() - mass[0].clamp(min=TINY).log()).mean()

    def supervised(self, nodes: Tensor, ids: Tensor | None, truth: GroundTruth) -> Tensor:
        """Those of some nodes that are supervised: they have a true explanation and are drawn by their id."""
        named = nodes if ids is None else ids[nodes]
        drawn = hashed_uniform(self.seed, named, named, torch.float64) < self.share
        return nodes[drawn & torch.isin(named, truth.targets)]


class EffectConsistency(AttentionPenalty):
    r"""Consistency with the exact effect: pulls GAtt of a few targets towards what reducing each edge does.

    .. math:: 1 - \text{corr} \left( \phi^v_e, \; p_v - p_v^{(e)} \right)

    over all edges e of the neighbourhoods of a few targets v: :math:`\phi` is GAtt, :math:`p_v` the probability of the
    predicted class of v and :math:`p_v^{(e)}` the same with the attention of e reduced (dPC). The correlation is
    Pearson's, which the paper measures faithfulness by. The effects are computed exactly, in eval mode, with the
    weights of the step, and count as constants: the gradient moves attention towards the effects, not the effects.

    Args:
        strength: The factor of the penalty in the loss.
        targets: How many of the step's training nodes, graphs or links are drawn.
        protocol: What reduces an edge: `removal`, `weight`, `coefficient` or `authors`.
        seed: Another seed, other draws.
    """

    name = "effect"

    def __init__(self, strength: float = 1.0, targets: int = 8, protocol: str = "removal", seed: int = 0) -> None:
        super().__init__(strength)
        self.targets = expect_int(targets, "targets", 1)
        known = isinstance(protocol, str) and protocol in protocol_names()
        expect(known, "protocol", f"one of {', '.join(protocol_names())}", protocol)
        self.protocol = protocol
        self.seed = expect_seed(seed)
        self._kept: tuple[weakref.ref[Any], weakref.ref[Any], Reducer] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies do not take the engine along, which holds the model."""
        return {**vars(self), "_kept": None}

    def measure_step(self, step: PenalizedStep) -> Tensor:
        attention = step.attention
        device = attention.graph.device.type
        with torch.no_grad(), torch.autocast(device, enabled=False):
            reducer = self._reducer(step)
            recorded = reducer.record()
            subject = reducer.subject.seen(recorded.attention)
            if not attention.graph.matches(subject.graph.original_edge_index, subject.graph.num_nodes):
                raise UnsupportedModelError(
                    "Expected the training step to run on the edges of its batch for the penalty `effect`, but it ran "
                    "on others."
                )
            if subject.level == "node" and subject.node_type != step.trained_type:
                raise UnsupportedModelError(
                    f"Expected the penalty `effect` to see a model that predicts the nodes at `train_mask`, of type "
                    f"{step.trained_type!r}, but it predicts those of type {subject.node_type!r}."
                )
            chosen = step.trained_nodes if subject.level == "node" else subject.targets("all")
            order = torch.randperm(chosen.numel(), generator=step.generator(self.seed))[: self.targets]
            pairs = subject_pairs(subject, chosen[order.to(chosen.device)].sort().values)
            effect = recorded.reduce(pairs, resolve_protocol(self.protocol, step.model)).delta_pc
            weights = subject.node_weights if subject.level == "graph" else None
        is_graph = subject.level == "graph"
        scored = Subject.of_attention(attention, subject.batch, weights) if is_graph else subject.seen(attention)
        return 1 - correlation(GAtt().score_pairs(scored, pairs), effect)

    def _reducer(self, step: PenalizedStep) -> Reducer:
        """The engine for the model and its batch, kept while these stay the same."""
        if self._kept is not None and self._kept[0]() is step.batch and self._kept[1]() is step.model:
            return self._kept[2]
        if not isinstance(step.batch, Data | HeteroData):
            raise UnsupportedModelError(
                "Expected the penalty `effect` to see what the model is called with as torch_geometric.data.Data or "
                f"HeteroData, but got {type(step.batch).__name__}."
            )
        reducer = Reducer(Subject.of_data(step.model, step.batch))
        self._kept = weakref.ref(step.batch), weakref.ref(step.model), reducer
        return reducer


def correlation(scores: Tensor, effect: Tensor) -> Tensor:
    """Pearson's correlation, differentiable with respect to the scores; 0 where one of both is constant."""
    x, y = scores - scores.mean(), effect.to(scores.dtype) - effect.to(scores.dtype).mean()
    return (x * y).sum() / (x.square().sum() * y.square().sum()).clamp(min=TINY**2).sqrt()


def has_queried_pairs(batch: Any) -> bool:
    """Whether a step learns from pairs of nodes."""
    return isinstance(getattr(batch, "edge_label_index", None), Tensor)


def is_batch_of_graphs(batch: Any) -> bool:
    """Whether a batch of PyG's is one of graphs, rather than one graph or a part of one."""
    return isinstance(getattr(batch, "batch", None), Tensor)
