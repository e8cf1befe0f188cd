"""Penalties that compare GAtt scores of training targets with true edges, or with the exact effects of edges."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from attree.attribution.baselines import hashed_uniform
from attree.attribution.gatt import GAtt
from attree.attribution.subgraphs import subject_pairs
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
from attree.faithfulness.engine_choice import Reducer
from attree.faithfulness.protocol import protocol_names, resolve_protocol
from attree.penalties.distribution import TINY
from attree.penalties.penalty import AttentionPenalty, PenalizedStep
from attree.subject import Subject
from attree.tensors.precision import exact_dtype


class TrueEdges(AttentionPenalty):
    r"""Supervision with true edges. It moves the GAtt scores of training targets to their true edges.

    .. math:: \frac{1}{|S|} \sum_{v \in S} -\log
        \frac{\sum_{e \in \text{true}(v)} \phi^v_e}{\sum_{e} \phi^v_e}

    where :math:`\phi^v_e` is the GAtt score of edge e for target v, and S are the training nodes with true edges, or a
    share of them. True edges of validation and test nodes are not used. For attention in sequences, see Liu et al.,
    "Neural Machine Translation with Supervised Attention", COLING 2016.

    The penalty is 0 in a step without such nodes, as may happen with sampled batches.

    Args:
        strength: The factor of the penalty in the loss.
        share: The share of the training nodes to supervise. Whether a node is supervised depends on its id and `seed`.
        seed: Seed of the choice of supervised nodes.
        truth: The true edges; None takes those of attree's data modules (Infection, BA-Shapes, HeteroInfection).
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
        """Return minus the log of the share of GAtt scores on true edges, as a mean over supervised training nodes."""
        truth = step.truth if self.truth is None else self.truth
        if truth is None:
            raise ArgumentError(
                "Expected argument `penalties` to have `true_edges` only for data with true edges (Infection, "
                "BA-Shapes, HeteroInfection, or your own `truth`), but this data has none."
            )
        if is_batch_of_graphs(step.batch) or has_queried_links(step.batch):
            raise UnsupportedModelError(
                "Expected node classification on one graph for the penalty `true_edges`, but got a batch of "
                "several graphs, or of links."
            )
        attention = step.attention
        if attention.graph.types is not None and any("n_id" in store for store in step.batch.node_stores):
            raise UnsupportedModelError(
                "Expected a whole heterogeneous graph for the penalty `true_edges`, but got a sampled subgraph."
            )
        truth, ids = truth.to(attention.graph.device), step.node_ids
        nodes = self.supervised(step.trained_nodes, ids, truth)
        if nodes.numel() == 0:
            return attention.weights[0].sum() * 0.0
        attribution = GAtt().attribute(attention, step.roots(nodes))
        owner = torch.repeat_interleave(attribution.ptr.diff())
        ends = attention.graph.edge_index[:, attribution.edges]
        source, destination = ends if ids is None else ids[ends]
        dataset_ids = nodes if ids is None else ids[nodes]
        order = torch.argsort(truth.targets)
        position = order[torch.searchsorted(truth.targets[order], dataset_ids)]
        is_true = truth.labels(position[owner], source, destination)
        mass = attribution.scores.new_zeros(2, nodes.numel())
        mass = mass.index_add(1, owner, torch.stack([attribution.scores * is_true, attribution.scores]))
        return (mass[1].clamp(min=TINY).log() - mass[0].clamp(min=TINY).log()).mean()

    def supervised(self, nodes: Tensor, ids: Tensor | None, truth: GroundTruth) -> Tensor:
        """Return those of some nodes that are supervised: nodes with true edges, drawn by their id."""
        dataset_ids = nodes if ids is None else ids[nodes]
        is_drawn = hashed_uniform(self.seed, dataset_ids, dataset_ids, exact_dtype(dataset_ids.device)) < self.share
        return nodes[is_drawn & torch.isin(dataset_ids, truth.targets)]


class EffectConsistency(AttentionPenalty):
    r"""Consistency with exact effects. It makes the GAtt scores of some targets correlate with the effects of edges.

    .. math:: 1 - \text{corr} \left( \phi^v_e, \; p_v - p_v^{(e)} \right)

    over all edges e in the neighbourhoods of a few targets v. :math:`\phi` is the GAtt score, :math:`p_v` the
    probability of the predicted class of v, and :math:`p_v^{(e)}` this probability with the attention of e reduced; the
    difference is dPC. The correlation is Pearson's, as in the paper's faithfulness. The effects are computed exactly,
    in eval mode, with the weights of the step. They are constants: the gradient changes attention, not the effects.

    Args:
        strength: The factor of the penalty in the loss.
        targets: Number of the step's training nodes, graphs or links to draw.
        protocol: Reduction protocol: `removal`, `weight`, `coefficient` or `authors`.
        seed: Seed of the draws.
    """

    name = "effect"

    def __init__(self, strength: float = 1.0, targets: int = 8, protocol: str = "removal", seed: int = 0) -> None:
        super().__init__(strength)
        self.targets = expect_int(targets, "targets", 1)
        is_name = isinstance(protocol, str) and protocol in protocol_names()
        expect(is_name, "protocol", f"one of {', '.join(protocol_names())}", protocol)
        self.protocol = protocol
        self.seed = expect_seed(seed)
        self._cached_reducer: tuple[weakref.ref[Any], weakref.ref[Any], Reducer] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the reducer, which holds the model, out of copies."""
        return {**vars(self), "_cached_reducer": None}

    def measure_step(self, step: PenalizedStep) -> Tensor:
        """Return 1 minus the correlation of GAtt scores with the exact effects of edges, on randomly drawn targets."""
        attention = step.attention
        device = attention.graph.device.type
        with torch.no_grad(), torch.autocast(device, enabled=False):
            reducer = self._reducer(step)
            recorded = reducer.record()
            subject = reducer.subject.with_attention(recorded.attention)
            if not attention.graph.matches(subject.graph.original_edge_index, subject.graph.num_nodes):
                raise UnsupportedModelError(
                    "Expected the training step to run on the edges of its batch for the penalty `effect`, but it ran "
                    "on other edges."
                )
            if subject.level == "node" and subject.node_type != step.trained_type:
                raise UnsupportedModelError(
                    "Expected the model to predict the nodes at `train_mask` for the penalty `effect`, which are of "
                    f"type {step.trained_type!r}, but it predicts nodes of type {subject.node_type!r}."
                )
            candidates = step.trained_nodes if subject.level == "node" else subject.targets("all")
            order = torch.randperm(candidates.numel(), generator=step.generator(self.seed))[: self.targets]
            pairs = subject_pairs(subject, candidates[order.to(candidates.device)].sort().values)
            effect = recorded.reduce(pairs, resolve_protocol(self.protocol, step.model)).delta_pc
            weights = subject.node_weights
        if weights is None:
            scored = subject.with_attention(attention)
        else:
            scored = Subject.of_attention(attention, subject.batch, weights)
        return 1 - correlation(GAtt().score_pairs(scored, pairs), effect)

    def _reducer(self, step: PenalizedStep) -> Reducer:
        """Return the reducer of the model and batch. It is kept while both stay the same."""
        if (
            self._cached_reducer is not None
            and self._cached_reducer[0]() is step.batch
            and self._cached_reducer[1]() is step.model
        ):
            return self._cached_reducer[2]
        if not isinstance(step.batch, Data | HeteroData):
            raise UnsupportedModelError(
                "Expected the batch to be torch_geometric.data.Data or HeteroData for the penalty `effect`, but got "
                f"{type(step.batch).__name__}."
            )
        reducer = Reducer(Subject.of_data(step.model, step.batch))
        self._cached_reducer = weakref.ref(step.batch), weakref.ref(step.model), reducer
        return reducer


def correlation(scores: Tensor, effect: Tensor) -> Tensor:
    """Return Pearson's correlation, differentiable with respect to the scores; 0 if one of them is constant."""
    x, y = scores - scores.mean(), effect.to(scores.dtype) - effect.to(scores.dtype).mean()
    return (x * y).sum() / (x.square().sum() * y.square().sum()).clamp(min=TINY**2).sqrt()


def has_queried_links(batch: Any) -> bool:
    """Whether a batch has links to predict."""
    return isinstance(getattr(batch, "edge_label_index", None), Tensor)


def is_batch_of_graphs(batch: Any) -> bool:
    """Whether a batch consists of several graphs, rather than of one graph or a subgraph."""
    return isinstance(getattr(batch, "batch", None), Tensor)
