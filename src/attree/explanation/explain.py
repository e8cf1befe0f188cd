"""`attree.explain`: why did the model predict this for one node, pair of nodes or graph?"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data, HeteroData

from attree.attribution import METHODS, AttributionMethod, make_methods
from attree.data import GroundTruth
from attree.defaults import SEED
from attree.errors import ArgumentError, expect, expect_int
from attree.evaluation import Evaluation
from attree.evaluation.evaluate import subject_of
from attree.explanation.explanation import TargetExplanation
from attree.explanation.measure import explain_subject
from attree.faithfulness import ReductionProtocol
from attree.subject import Subject
from attree.subject.conventions import Call
from attree.subject.head import Mode, ReturnType
from attree.subject.readout import Readout
from attree.subject.roots import Level

METHOD = "occlusion"
PROTOCOL = "removal"

Target = int | tuple[int, int]
"""A node, a graph of a batch, a column of `edge_label_index`, or the two nodes of a pair."""


def explain(
    model: nn.Module,
    data: Data | HeteroData | Subject,
    target: Target = 0,
    method: str | AttributionMethod = METHOD,
    protocol: str | ReductionProtocol = PROTOCOL,
    truth: GroundTruth | None = None,
    *,
    call: Call | None = None,
    level: Level | None = None,
    readout: Readout | None = None,
    mode: Mode | None = None,
    return_type: ReturnType | None = None,
    label: int | None = None,
    seed: int = SEED,
    **more: Any,
) -> TargetExplanation:
    """Explain one prediction of a model: which edges it rests on, and what it would be without each of them.

    .. code-block:: python

        explanation = attree.explain(model, data, 42)
        print(explanation)                     # one sentence, and the strongest edges
        explanation.plot().savefig("42.png")   # the neighbourhood of node 42
        explanation.subgraph(5).to_graphml("42.graphml")

    Args:
        model: A PyG attention model.
        data: The graph that it runs on, or a batch of graphs; or a `Subject` of the model.
        target: What is explained: the id of a node, the number of a graph in a batch (0 for a graph alone), the column
            of a pair in `edge_label_index`, or a pair (u, v) of nodes itself.
        method: What scores the edges: a name (`occlusion`, `gatt`, ...) or a method of one's own. The exact effect of
            every edge is measured whatever the method is; by default it is the score, too.
        protocol: What reducing an edge means: `removal`, `weight`, `coefficient`, `authors`, or one of one's own.
        truth: True edges of the nodes that have some; the picture marks them.
        call: How the model is called with the data, if not by its forward: see `attree.evaluate`.
        level: What the outputs are those of, `node`, `edge` or `graph`; None tells it from them.
        readout: Graph-level models: how their nodes become a graph; None reads it from the model.
        mode: What is predicted; None tells it from the outputs.
        return_type: What the outputs are: `raw`, `probs` or `log_probs`; None tells it from them.
        label: Of several labels or numbers, the one that is explained.
        seed: Seed of methods that draw.
        **more: What else `Subject.of_data` takes, such as the `node_type` of a heterogeneous graph.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> from torch_geometric.nn import GAT
    >>> graph = Data(x=torch.randn(20, 8), edge_index=torch.randint(0, 20, (2, 60)))
    >>> explanation = explain(GAT(8, 16, 2, out_channels=3), graph, 7)
    >>> explanation.sentence.startswith("The network says class")
    True
    >>> list(explanation.to_pandas().columns[:4])
    ['source', 'destination', 'score', 'effect']
    """
    ids, data = _ids(target, data)
    options = {"call": call, "level": level, "readout": readout, **more}
    subject, labels = subject_of(model, data, mode=mode, return_type=return_type, label=label, **options)
    (made,) = make_methods([method], seed=seed).values()
    return explain_subject(subject, ids, made, protocol, labels, truth)


def explain_evaluated(
    evaluation: Evaluation,
    target: int,
    method: str | AttributionMethod | None = None,
    protocol: str | ReductionProtocol | None = None,
) -> TargetExplanation:
    """Explain one prediction of an evaluated model; any target, not only those that were evaluated.

    Args:
        evaluation: The result of an evaluation.
        target: A node, pair or graph.
        method: What scores the edges; None takes what the evaluation recommends, or else the exact effect.
        protocol: What reducing an edge means; None takes the evaluation's last one.
    """
    expect_int(target, "target")
    if evaluation.subject is None:
        raise ArgumentError(
            "Expected argument `evaluation` to be one of a model at hand, but got one from files, which has no model: "
            "attree.explain(model, data, target) explains any target."
        )
    if method is None:
        best = evaluation.verdict.method
        # A method of one's own cannot be made by its name.
        method = best if best is not None and best in METHODS else METHOD
    if protocol is None:
        protocol = PROTOCOL if not evaluation.reductions or PROTOCOL in evaluation.reductions else _last(evaluation)
    (made,) = make_methods([method]).values()
    return explain_subject(evaluation.subject, target, made, protocol, evaluation.named, evaluation.truth)


def _last(evaluation: Evaluation) -> str:
    return list(evaluation.reductions)[-1]


def _ids(target: Any, data: Any) -> tuple[int, Any]:
    """The id of what is explained, and the data; a pair of nodes becomes the only pair of the data."""
    is_pair = isinstance(target, Sequence) and not isinstance(target, str) and len(target) == 2
    if not is_pair:
        return expect_int(target, "target"), data
    pair = [expect_int(node, "target") for node in target]
    known = isinstance(data, Data) and "edge_label_index" in data
    expect(known, "target", "an id, as the data has no `edge_label_index` for a pair of nodes", tuple(pair))
    nodes = int(data.num_nodes)
    expect(max(pair) < nodes, "target", f"nodes in [0, {nodes})", tuple(pair))
    data = copy.copy(data)
    data.edge_label_index = torch.tensor(pair, device=data.edge_index.device).view(2, 1)
    if "edge_label" in data:  # of the pairs that were there
        del data["edge_label"]
    return 0, data
