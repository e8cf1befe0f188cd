"""`attree.evaluate`: measure how well attribution methods explain a model, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attree.attribution import Methods
from attree.data import GroundTruth
from attree.defaults import RANDOM_DRAWS, SEED
from attree.errors import ArgumentError, expect, expect_instance
from attree.evaluation.config import EvaluationConfig
from attree.evaluation.evaluator import Evaluator
from attree.evaluation.result import Evaluation
from attree.evaluation.stability import evaluated_peers, stability_of
from attree.faithfulness import DEFAULT_PROTOCOLS, Protocols
from attree.faithfulness.effect_measures import Progress
from attree.io.terminal import LateBar
from attree.source import Reading, disk_source_of, explained_by_user
from attree.source.target_labels import predicted_classes
from attree.subject import Head, Subject
from attree.subject.arguments_from_data import Call
from attree.subject.head import Mode, ReturnType
from attree.subject.readout import Readout
from attree.subject.target_roots import Level, Targets

REDUCING = "Reducing edges"
"""Text before the progress bar of reduced pairs."""


def evaluate(
    model: nn.Module,
    data: Any,
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
    models: Sequence[nn.Module | str | Path] = (),
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
            by name. Or where graphs come from: a list or dataset of graphs, a data module, a trainer, a run of
            `attree.load_run`; labels, names and true edges are then taken from there. Or a `Subject` of the model; or
            an `OnDiskGraph`, of which only neighbourhoods are read.
        targets: Nodes, pairs of nodes or graphs to explain: an id, several ids, a mask of nodes, or 'all'. In a list or
            dataset, the positions of graphs. None draws `num_targets` at random.
        methods: Attribution methods, by name (`gatt`, `avgatt`, ...) or as objects. None compares `gatt`, `avgatt`,
            `uniform` and `random`, and also `occlusion` if `removal` is measured by exact updates, which makes it
            cheap; or those that the network supports, if it has no attention or its layers form no computation tree.
        protocols: Reduction protocols: `coefficient`, `weight`, `removal`, `authors`, or your own.
        truth: True edges of the nodes that have some; None takes those of a data module.
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
        models: The same network trained with other seeds, or folders of runs of `attree fit`: the verdict then says
            whether their explanations agree (`attree.stability`).
        random_draws: Number of draws that the statistics of random methods are averaged over.
        seed: Seed of the drawn targets and of random methods.
        progress: Called as `progress(done, total)`, in numbers of pairs, after each chunk of reductions. None shows a
            progress bar on a terminal or in a notebook if the reductions take longer than a few seconds.

    Returns:
        The result. Print it, or use `metrics`, `scores`, `reductions`, `to_pandas()`, `plot()`, `save(folder)`.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> from torch_geometric.nn import GAT
    >>> graph = Data(x=torch.randn(20, 8), edge_index=torch.randint(0, 20, (2, 60)))
    >>> result = evaluate(GAT(8, 16, 2, out_channels=3), graph, num_targets=5, methods=["gatt"])
    >>> sorted(result.metrics)[-1]
    'explain/gatt/weight/within_pearson'
    """
    expect(progress is None or callable(progress), "progress", "a function of two numbers, or None", progress)
    expect_instance(truth, "truth", GroundTruth, optional=True)
    is_list = isinstance(models, list | tuple) and all(isinstance(peer, nn.Module | str | Path) for peer in models)
    expect(is_list, "models", "a list of models or folders of runs", models)
    if (on_disk := disk_source_of(data)) is not None:
        from attree.evaluation.on_disk import DiskSubjects, check_plain, evaluate_on_disk

        check_plain(truth=truth, level=level, readout=readout, node_type=node_type, models=models or None)
        config = EvaluationConfig(methods, protocols, random_draws=random_draws, seed=seed, sets=sets)
        subjects = DiskSubjects(model, on_disk.graph, call=call, mode=mode, return_type=return_type, label=label)
        return evaluate_on_disk(subjects, targets, num_targets, config, progress)
    config = EvaluationConfig(methods, protocols, random_draws=random_draws, seed=seed, sets=sets)
    reading = Reading(call, level, node_type, readout, Head(mode, return_type, label))
    explained = explained_by_user(model, data, targets, num_targets, reading, truth, seed)
    check_defined(explained.subject, explained.targets)
    evaluator = Evaluator(explained.subject, explained.targets, config, explained.truth, labels=explained.labels)
    with closing(LateBar(REDUCING)) as bar:
        result = evaluator.evaluate(bar.update if progress is None else progress)
    if not (models and result.reductions):
        return result
    peers = evaluated_peers(models, explained, reading, config, evaluator.protocols[0])
    return replace(result, stability=stability_of([result, *peers]))


def check_defined(subject: Subject, targets: Tensor) -> None:
    """Raise if the model's prediction for a target is undefined."""
    probabilities = predicted_classes(subject, targets)
    values = subject.output[subject.rows(targets)] if probabilities is None else probabilities
    undefined = ~values.isfinite().reshape(targets.numel(), -1).all(dim=1)
    if not bool(undefined.any()):
        return
    number = int(undefined.sum())
    way_out = "" if number == targets.numel() else " (`targets` can leave these out)"
    raise ArgumentError(
        f"Expected argument `model` to return a finite output for every target, but got NaN or infinity for "
        f"{number:,} of {targets.numel():,}, such as {targets[undefined][:3].tolist()}{way_out}."
    )
