"""One call: how well do these methods explain this model on these targets?"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from attree.attention.capture import check_model
from attree.attribution import Methods
from attree.data import GroundTruth
from attree.defaults import RANDOM_DRAWS, SEED
from attree.errors import expect
from attree.evaluation.config import EvaluationConfig, given_or_drawn
from attree.evaluation.evaluator import Evaluator
from attree.evaluation.result import Evaluation
from attree.evaluation.target_labels import TargetLabels
from attree.faithfulness import DEFAULT_PROTOCOLS, Protocols
from attree.faithfulness.reduction import Progress
from attree.io.progress import LateBar
from attree.subject import Head, Subject
from attree.subject.conventions import Call
from attree.subject.head import Mode, ReturnType
from attree.subject.labels import check_labels, labels_of
from attree.subject.readout import Readout
from attree.subject.roots import Level
from attree.subject.target_ids import Targets

REDUCING = "Reducing edges"
"""What stands before the bar that counts pairs of a target and an edge."""


def evaluate(
    model: nn.Module,
    data: Data | HeteroData | Subject,
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

    For every target, each edge around it is scored by each method and then has its attention reduced, alone, in every
    layer and head: good scores foretell what that does to the prediction. With ground truth, good scores also find
    the true edges.

    Args:
        model: A PyG attention model.
        data: The graph that it runs on, or a batch of graphs: `x`, `edge_index`, and whatever else the model's forward
            takes, found by name; or a `Subject` of the model.
        targets: Which nodes (or graphs of a batch) are explained: an id, several, a mask of nodes, or 'all'. None
            draws `num_targets` of them.
        methods: Names (`gatt`, `avgatt`, ...), or methods of one's own. None compares `gatt`, `avgatt`, `uniform` and
            `random`, and `occlusion` where edges are reduced by exact updates, which makes it cheap.
        protocols: What reducing an edge means: `coefficient`, `weight`, `removal`, `authors`, or one of one's own.
        truth: True edges of the nodes that have some.
        num_targets: How many nodes or graphs are drawn at random, 100 by default; all where there are fewer.
        call: How the model is called with the data, `call(model, data)`, if not by its forward; returns one row of
            outputs per node, pair of nodes or graph.
        level: What the outputs are those of: `node`, `edge` (pairs of nodes) or `graph`; None tells it from them.
        node_type: Heterogeneous graphs: whose outputs are explained, where the model returns those of several types.
        readout: Graph-level models: how their nodes become a graph, `sum`, `mean`, `max` or one weight a node; None
            reads it from the model.
        mode: What is predicted: `multiclass_classification` (the default for several columns of outputs),
            `binary_classification` (the default for one; several are labels), or `regression`.
        return_type: What the outputs are: `raw` (logits), `probs` or `log_probs`.
        label: Of several labels or numbers, the one that is measured.
        sets: Also judge methods by sets of edges: fidelity+ and -, characterization score, unfaithfulness, areas under
            deletion and insertion curves, sparsity and, with ground truth, precision and Jaccard. Takes several times
            as long as all else.
        random_draws: Draws that the statistics of random methods are averaged over.
        seed: Seed of the drawn targets and of methods that draw.
        progress: Called as `progress(done, total)` with numbers of pairs each time some have been reduced. None shows
            a bar on a terminal or in a notebook if that takes longer than a few seconds, as slow methods do.

    Returns:
        The result: print it, or ask it for `metrics`, `scores`, `reductions`, `to_pandas()`, `plot()`, `save(folder)`.

    >>> import torch
    >>> from torch_geometric.nn import GAT
    >>> graph = Data(x=torch.randn(20, 8), edge_index=torch.randint(0, 20, (2, 60)))
    >>> result = evaluate(GAT(8, 16, 2, out_channels=3), graph, num_targets=5, methods=["gatt"])
    >>> sorted(result.metrics)[-1]
    'explain/gatt/weight/pc_spearman'
    """
    expect(progress is None or callable(progress), "progress", "a function of two numbers, or None", progress)
    options = {"call": call, "level": level, "readout": readout, "node_type": node_type}
    subject, labels = subject_of(model, data, mode=mode, return_type=return_type, label=label, **options)
    config = EvaluationConfig(methods, protocols, random_draws=random_draws, seed=seed, sets=sets)
    ids = given_or_drawn(subject, targets, num_targets, seed)
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
    """What is explained of a model on a graph, and what the graph says of the targets.

    Args:
        model: The model.
        data: The graph, a batch of graphs, or a `Subject` of the model, of which nothing else is known.
        mode: What is predicted; None tells it from the outputs.
        return_type: What the outputs are; None tells it from them.
        label: Of several labels or numbers, the one that is measured.
        **options: Further arguments of `Subject.of_data`.
    """
    check_model(model)
    if isinstance(data, Subject):
        expect(data.model is model, "data", "a subject of the same model", "that of another")
        return data, None
    x = data.get("x") if isinstance(data, Data) else None
    if isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided:
        expect(bool(x.isfinite().all()), "data.x", "finite features", "some that are NaN or infinite")
    head = Head(mode, return_type, label)
    subject = Subject.of_data(model, data, head=head, **options)
    check_labels(labels_of(data, subject), subject.output, head)
    return subject, TargetLabels.of(data, subject)
