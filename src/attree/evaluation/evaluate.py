"""`attree.evaluate`: measure how well attribution methods explain a model, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data, HeteroData

from attree.attention.capture import check_model
from attree.attribution import Methods
from attree.data import GroundTruth
from attree.data.on_disk import OnDiskGraph
from attree.defaults import RANDOM_DRAWS, SEED
from attree.errors import ArgumentError, expect, expect_instance
from attree.evaluation.config import EvaluationConfig, given_or_drawn
from attree.evaluation.evaluator import Evaluator
from attree.evaluation.result import Evaluation
from attree.evaluation.target_labels import TargetLabels, predicted_classes
from attree.faithfulness import DEFAULT_PROTOCOLS, Protocols
from attree.faithfulness.reduction import Progress
from attree.io.terminal import LateBar
from attree.subject import Head, Subject
from attree.subject.binding import Call
from attree.subject.head import Mode, ReturnType, check_classes, check_labels, labels_of
from attree.subject.readout import Readout
from attree.subject.roots import Level, Targets

REDUCING = "Reducing edges"
"""Text before the progress bar of reduced pairs."""


def evaluate(
    model: nn.Module,
    data: Data | HeteroData | Subject | OnDiskGraph,
    targets: Targets | None = None,
    methods: Methods | None = None,
    protocols: Protocols = DEFAULT_PROTOCOLS,
    truth: GroundTruth | None = None,
    *,
    num_targets: int | None = None,
    call: Call | None = None,
    level: Level | None = None,
    node_type: str | None = None,
    readout: Readout | None = None,
    mode: Mode | None = None,
    return_type: ReturnType | None = None,
    label: int | None = None,
    sets: bool = False,
    random_draws: int = RANDOM_DRAWS,
    seed: int = SEED,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure how well attribution methods explain a model's predictions.

    Each method scores every edge around every target. Then the attention of each edge is reduced, one edge at a time,
    in all layers and heads. Good scores predict the effect of that on the target's prediction. With ground truth, good
    scores also find the true edges.

    Args:
        model: A PyG attention model.
        data: The graph or batch that the model runs on: `x`, `edge_index`, and other arguments of the model's forward
            by name; or a `Subject` of the model; or an `OnDiskGraph`, of which only neighbourhoods are read.
        targets: Nodes, pairs of nodes or graphs to explain: an id, several ids, a mask of nodes, or 'all'. None draws
            `num_targets` at random.
        methods: Attribution methods, by name (`gatt`, `avgatt`, ...) or as objects. None compares `gatt`, `avgatt`,
            `uniform` and `random`, and also `occlusion` if edges are reduced by exact updates, which makes it cheap.
        protocols: Reduction protocols: `coefficient`, `weight`, `removal`, `authors`, or your own.
        truth: True edges of the nodes that have some.
        num_targets: Number of targets to draw at random, 100 by default; all if there are fewer.
        call: Function that calls the model instead of its forward: `call(model, data)` returns one row of outputs per
            node, pair of nodes or graph.
        level: What a row of outputs belongs to: `node`, `edge` (a pair of nodes) or `graph`; None infers it.
        node_type: For heterogeneous graphs, the node type to explain if the model returns outputs of several types.
        readout: For graph-level models, how nodes become a graph: `sum`, `mean`, `max` or one weight per node; None
            infers it from the model.
        mode: PyG's mode: `multiclass_classification` (the default for several output columns),
            `binary_classification` (the default for one column; several columns are labels), or `regression`.
        return_type: PyG's return type: `raw` (logits), `probs` or `log_probs`; None infers it from the outputs.
        label: Index of the label or number to measure, if the model predicts several.
        sets: Also measure sets of edges: fidelity+ and -, characterization score, unfaithfulness, areas under deletion
            and insertion curves, sparsity and, with ground truth, precision and Jaccard. This takes several times as
            long as all other measurements.
        random_draws: Number of draws that the statistics of random methods are averaged over.
        seed: Seed of the drawn targets and of random methods.
        progress: Called as `progress(done, total)`, in numbers of pairs, after each chunk of reductions. None shows a
            progress bar on a terminal or in a notebook if the reductions take longer than a few seconds.

    Returns:
        The result. Print it, or use `metrics`, `scores`, `reductions`, `to_pandas()`, `plot()`, `save(folder)`.

    >>> import torch
    >>> from torch_geometric.nn import GAT
    >>> graph = Data(x=torch.randn(20, 8), edge_index=torch.randint(0, 20, (2, 60)))
    >>> result = evaluate(GAT(8, 16, 2, out_channels=3), graph, num_targets=5, methods=["gatt"])
    >>> sorted(result.metrics)[-1]
    'explain/gatt/weight/within_pearson'
    """
    expect(progress is None or callable(progress), "progress", "a function of two numbers, or None", progress)
    expect_instance(truth, "truth", GroundTruth, optional=True)
    if isinstance(data, OnDiskGraph):
        from attree.evaluation.disk_subjects import DiskSubjects, check_plain
        from attree.evaluation.on_disk import evaluate_on_disk

        check_plain(truth=truth, level=level, readout=readout, node_type=node_type)
        config = EvaluationConfig(methods, protocols, random_draws=random_draws, seed=seed, sets=sets)
        subjects = DiskSubjects(model, data, call=call, mode=mode, return_type=return_type, label=label)
        return evaluate_on_disk(subjects, targets, num_targets, config, progress)
    options = {"call": call, "level": level, "readout": readout, "node_type": node_type}
    subject, labels = subject_of(model, data, mode=mode, return_type=return_type, label=label, **options)
    config = EvaluationConfig(methods, protocols, random_draws=random_draws, seed=seed, sets=sets)
    ids = given_or_drawn(subject, targets, num_targets, seed)
    check_defined(subject, ids)
    evaluator = Evaluator(subject, ids, config, truth, labels=labels)
    with closing(LateBar(REDUCING)) as bar:
        return evaluator.evaluate(bar.update if progress is None else progress)


def subject_of(
    model: nn.Module,
    data: Data | HeteroData | Subject,
    *,
    mode: Mode | None = None,
    return_type: ReturnType | None = None,
    label: int | None = None,
    **options: Any,
) -> tuple[Subject, TargetLabels | None]:
    """Return the subject of a model on a graph, and the labels and names of its targets.

    Args:
        model: The model.
        data: The graph or batch; or a `Subject` of the model, for which labels and names are unknown.
        mode: PyG's mode; None infers it from the outputs.
        return_type: PyG's return type; None infers it from the outputs.
        label: Index of the label or number to measure, if the model predicts several.
        **options: Further arguments of `Subject.of_data`.
    """
    check_model(model)
    if isinstance(data, Subject):
        same = model in (data.model, data.call.user_model)
        expect(same, "data", "a subject of the same model", "a subject of another model")
        return data, None
    x = data.get("x") if isinstance(data, Data) else None
    if isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided:
        expect(bool(x.isfinite().all()), "data.x", "finite features", "NaN or infinite features")
    check_weights(model)
    head = Head(mode, return_type, label)
    subject = Subject.of_data(model, data, head=head, **options)
    check_arguments(subject)
    labels = labels_of(data, subject)
    check_labels(labels, subject.output, head)
    width = x.shape[1] if isinstance(x, Tensor) and x.dim() == 2 else None
    check_classes(labels, subject.output, head, width)
    return subject, TargetLabels.of(data, subject)


def check_weights(model: nn.Module) -> None:
    """Raise if a weight of the model is NaN or infinite, or a buffer NaN."""
    named = [*model.named_parameters(), *model.named_buffers()]
    dense = [(name, values) for name, values in named if not is_lazy(values) and values.is_floating_point()]
    for name, values in dense:
        if isinstance(values, nn.Parameter):
            expect(bool(values.isfinite().all()), "model", "one with finite weights", f"NaN or infinity in `{name}`")
        else:
            expect(not bool(values.isnan().any()), "model", "one with finite weights", f"NaN in the buffer `{name}`")


def check_arguments(subject: Subject) -> None:
    """Raise if features of nodes are sparse, or if an argument that the model reads is NaN or infinite."""
    call = subject.call
    if call.has_features:  # rows of a sparse tensor cannot be taken
        expect(call.x.layout == torch.strided, "data.x", "a dense tensor", call.x.layout)
    for name, value in zip(call.names, call.values, strict=True):
        # A whole graph is passed with its labels, which may be unknown.
        if call.convention is not None and not any(word in name for word in ("x", "attr", "weight", "pos")):
            continue
        for tensor in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.layout == torch.strided:
                expect(bool(tensor.isfinite().all()), f"data.{name}", "finite", "NaN or infinite values")


def check_defined(subject: Subject, targets: Tensor) -> None:
    """Raise if the model's prediction for a target is undefined."""
    probabilities = predicted_classes(subject, targets)
    values = subject.output[subject.rows(targets)] if probabilities is None else probabilities
    undefined = ~values.isfinite().reshape(targets.numel(), -1).all(dim=1)
    if not bool(undefined.any()):
        return
    some = int(undefined.sum())
    way_out = "" if some == targets.numel() else " (`targets` can leave these out)"
    raise ArgumentError(
        f"Expected argument `model` to return a finite output for every target, but got NaN or infinity for "
        f"{some:,} of {targets.numel():,}, such as {targets[undefined][:3].tolist()}{way_out}."
    )
