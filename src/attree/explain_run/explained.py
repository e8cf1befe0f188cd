"""Find what `attree explain` explains of a run: nodes, pairs or graphs, whatever `ExplainCallback` would explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn
from torch_geometric.data import Data, HeteroData

from attree.attribution import AttributionMethod
from attree.callbacks.find_data import find_module_data
from attree.callbacks.module_subject import find_subject, known_head
from attree.errors import UnsupportedModelError, expect
from attree.explain_run.graph_targets import ExplainedGraphs
from attree.explain_run.node_targets import ExplainedNodes
from attree.explain_run.targets import ExplainedTargets
from attree.faithfulness import ReductionProtocol
from attree.models import Classifier, GraphClassifier
from attree.runs.load_run import FinishedRun
from attree.subject import Head, Subject

LOGITS = Head("multiclass_classification", "raw")


def explained_of(
    run: FinishedRun,
    text: str,
    seed: int,
    methods: Mapping[str, AttributionMethod],
    protocols: Sequence[ReductionProtocol],
    by_neighbourhood: bool = False,
) -> ExplainedTargets:
    """Return the targets of a run, found in its module and data module as `ExplainCallback` finds them.

    Args:
        run: The run.
        text: The nodes, pairs or graphs, as in `--targets`; see `parse_targets`.
        seed: Seed of random targets.
        methods: The attribution methods.
        protocols: The reduction protocols.
        by_neighbourhood: Never run the network on the whole graph.
    """
    module, data = run.module, find_module_data(run.data, seed)

    def make_subject(graph: Data) -> Subject:
        if isinstance(module, GraphClassifier):
            return Subject.of(module, graph.x, graph.edge_index, batch=graph.batch, readout=module.readout, head=LOGITS)
        return find_subject(
            module,
            graph,
            head=known_head(module),
            num_classes=data.count_classes(),
            only_links=data.only_links,
            node_type=data.node_type,
        )

    if not data.is_one_graph:
        expect(not by_neighbourhood, "by_neighbourhood", "used where nodes are explained", "a run on many graphs")
        explained: ExplainedTargets = ExplainedGraphs(make_subject, data, text, seed, methods, protocols)
        _expect_level(explained.sample(), "graph", module)
        return explained
    graph = data.graphs[0]
    if by_neighbourhood:
        found = "a heterogeneous graph" if isinstance(graph, HeteroData) else "pairs of nodes"
        expect(data.has_plain_nodes, "by_neighbourhood", "used where nodes of one type are explained", found)
    is_known = isinstance(module, Classifier) and data.has_plain_nodes  # its outputs need not be looked at
    if is_known or by_neighbourhood:
        subject = Subject.of(run.net, graph.x, graph.edge_index, level="node", head=LOGITS)
    else:
        subject = make_subject(graph)
        if data.has_links and subject.level == "node":  # the module does not predict the graph's pairs
            data = replace(data, has_links=False)
        _expect_level(subject, "edge" if data.has_links else "node", module)
    return ExplainedNodes(subject, data, text, seed, methods, protocols, by_neighbourhood)


def _expect_level(subject: Subject, level: str, module: nn.Module) -> None:
    """Refuse predictions whose targets have no ids: nodes of many graphs, or one graph as a whole."""
    if subject.level != level:
        expected = {
            "graph": "predict classes of graphs, as its data has many",
            "edge": "predict pairs of nodes, as its data asks for them",
        }.get(level, "predict classes of nodes")
        raise UnsupportedModelError(
            f"Expected {type(module).__name__} to {expected}, but it predicts one row a {subject.level}: use "
            "attree.evaluate and attree.explain."
        )
