"""Explanation of one prediction: edges with their scores and exact effects, as text, figure and files.

The nodes that a prediction reads, with their scores and exact effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import torch
from rich.text import Text
from torch import Tensor

from attree.attribution import (
    METHODS,
    AttentionPath,
    AttributionMethod,
    FlowMethod,
    GAtt,
    GlobalPairs,
    attribute_nodes,
    global_pairs,
)
from attree.errors import expect_int, expect_path
from attree.evaluation import Evaluation
from attree.explanation.sentence import NO_EDGE, EdgeEffect, sentence_of
from attree.faithfulness import NodeEffects, ReductionProtocol, node_effects, resolve_protocol
from attree.io.files import replacing
from attree.io.terminal import in_notebook, plain_console
from attree.source import edge_name
from attree.subject import Subject
from attree.subject.missed_by_attention import follows_all_nodes

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class NodeScore:
    """One node of an explanation.

    Attributes:
        node: The node.
        score: The score that the method gives to the node; its effect, if the method has no node scores.
        effect: The drop in the probability of the predicted class (or in the number) without the node's messages.
        changes: Whether the predicted class changes.
        name: The node in words.
    """

    node: int
    score: float
    effect: float
    changes: bool
    name: str


def nodes_of_target(
    subject: Subject,
    target: int,
    method: AttributionMethod | None,
    protocol: ReductionProtocol,
    name: Callable[[int], str],
) -> list[NodeScore]:
    """Return the nodes that a target reads, by descending size of the score.

    Args:
        subject: The subject.
        target: A node, pair or graph.
        method: The method that scores the nodes: a walk by its r at the input; any other, or None, by the effect.
        protocol: How the messages of a node are removed.
        name: Returns the name of a node.
    """
    effects: NodeEffects = node_effects(subject, [target], protocol)
    scores = effects.delta_pc.double()
    if isinstance(method, GAtt):
        scores = attribute_nodes(subject, [target], method).dense(target).double()[effects.node]
    order = scores.abs().argsort(descending=True, stable=True)
    nodes, values = effects.node[order].tolist(), scores[order].tolist()
    numbers, names = subject.graph.whole_ids(nodes), map(name, nodes)
    effect_of, is_changed = effects.delta_pc[order].tolist(), effects.changed[order].tolist()
    return [NodeScore(*row) for row in zip(numbers, values, effect_of, is_changed, names, strict=True)]


SHOWN_EDGES = 8
SHOWN_NODES = 5
SHOWN_PAIRS = 3
DRAWN_EDGES = 60
CAPTION_WIDTH = 60


@dataclass(frozen=True)
class TargetExplanation:
    """Explanation of the prediction for one node, pair of nodes or graph; made by `attree.explain`.

    Print it, or use `sentence`, `edges`, `plot()`, `show()`, `page(path)`, `subgraph(k)` and the `to_...` methods.

    Attributes:
        evaluation: The measurements for this target alone.
        subject: The model and its inputs.
        positions: Positions of the explanation's edges among the evaluation's pairs, by descending size of the score:
            an edge that speaks against the prediction counts like one that speaks for it.
    """

    evaluation: Evaluation
    subject: Subject
    positions: Tensor

    @property
    def target(self) -> int:
        """The explained node, pair (its column) or graph."""
        return int(self.evaluation.targets[0])

    @property
    def _place(self) -> int:
        """The id of the target in the subject, which may be a part of a larger graph."""
        return int(self.evaluation.pairs.targets[0])

    @property
    def method(self) -> str:
        """Name of the method that scored the edges."""
        return next(iter(self.evaluation.pair_scores))

    @property
    def protocol(self) -> str:
        """Name of the protocol that the effects were measured with."""
        return next(iter(self.evaluation.reductions))

    @property
    def predicted(self) -> int | None:
        """The predicted class; 1 or 0 for a label that is predicted or not; None for regression."""
        probabilities = self.evaluation.predictions
        return None if probabilities is None else int(probabilities[0].argmax())

    @property
    def probability(self) -> float | None:
        """The probability of the predicted class, or of having or not having the label; None for regression."""
        probabilities = self.evaluation.predictions
        return None if probabilities is None else float(probabilities[0].max())

    @property
    def label(self) -> int | None:
        """The explained label of a model that predicts several; None for other models."""
        measured = self.evaluation.target_labels.measured
        return None if measured is None else int(measured[0])

    @property
    def true_class(self) -> int | None:
        """The true class; None if the data does not have it."""
        labels = self.evaluation.target_labels.labels
        if labels is None or self.evaluation.predictions is None or float(labels[0]) < 0:
            return None
        return int(labels[0])

    @property
    def scores(self) -> Tensor:
        """Scores of the edges, by descending size."""
        return self.evaluation.pair_scores[self.method][self.positions]

    @property
    def edges(self) -> list[EdgeEffect]:
        """The edges of the explanation, by descending size of the score."""
        ends, reduction = self._ends(), self.evaluation.reductions[self.protocol]
        graph = self.evaluation.pairs.graph
        whole = [graph.whole_ids(nodes) for nodes in ends]
        scores, effects = self.scores.tolist(), reduction.delta_pc[self.positions].tolist()
        changed = reduction.changed[self.positions].tolist()
        after: Sequence[tuple[float | None, int | None]] = [(None, None)] * len(ends)
        if reduction.probability is not None and self.evaluation.predictions is not None:
            best = reduction.probability[self.positions].max(dim=-1)
            after = list(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        return [
            EdgeEffect(ids[0], ids[1], score, effect, then[0], then[1], changes, self._edge_name(nodes[0], nodes[1]))
            for (ids, nodes), score, effect, then, changes in zip(
                zip(whole, ends, strict=True), scores, effects, after, changed, strict=True
            )
        ]

    def paths(self, k: int = 3) -> list[AttentionPath]:
        """Return the `k` walks into the target with the most attention, with the effect of each of their edges."""
        return self.evaluation.paths(self.target, k)

    @property
    def sentence(self) -> str:
        """The explanation in one sentence: the prediction, and the prediction without the strongest edge."""
        sentence = sentence_of(self.evaluation, self.subject, self.edges, self.protocol)
        if not self.edges and follows_all_nodes(self.subject) and self.nodes:
            return sentence.replace(
                NO_EDGE, f"No edge reaches it; of the nodes that it reads, {self.nodes[0].name} is first."
            )
        return sentence

    @cached_property
    def nodes(self) -> list[NodeScore]:
        """The nodes that the prediction reads, by descending size of the score; measured when they are first read.

        The score is the method's own (GAtt, Uniform, Structure: how much of the walk ends in the node), or else the
        effect: the drop in the probability when all messages of the node are removed.
        """
        method = self.evaluation.settings[self.method]
        walker = METHODS[self.method].make() if self.method in METHODS else None
        if isinstance(walker, FlowMethod) and method.get("skips", "ignore") != "ignore":
            walker = type(walker)(skips=method["skips"])
        protocol = resolve_protocol(self.protocol, self.subject.model)
        return nodes_of_target(self.subject, self._place, walker, protocol, self._node_name)

    def global_pairs(self, k: int = 10) -> GlobalPairs | None:
        """Return the strongest pairs of attention over all nodes beyond the edges, and attention by hop distance.

        Args:
            k: Number of pairs.

        Returns:
            The pairs; None if the model does not attend over all nodes.
        """
        return global_pairs(self.subject, self._place, expect_int(k, "k", 1))

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self._lines()])

    def _colored(self) -> Text:
        """Return the printed form with the words for and against in their colours, for terminals."""
        from attree.report.style import AGAINST, FOR

        text = Text(str(self))
        text.highlight_regex(r"(?m)\S+  (for|raises)(?= ?\*?$)", FOR)
        text.highlight_regex(r"(?m)\S+  (against|lowers)(?= ?\*?$)", AGAINST)
        return text

    def _lines(self) -> list[str]:
        """Return a table of the strongest edges, one line per edge, and the strongest paths."""
        top_edges = self.edges[:SHOWN_EDGES]
        width = max((len(edge.name) for edge in top_edges), default=0)
        label = self.evaluation.method_labels.get(self.method, self.method)
        lines = [f"{'edge':<{width}}  {label:>12}  {'effect':>10}"] if top_edges else []
        for edge in top_edges:
            mark = " *" if edge.changes else ""
            line = f"{edge.name:<{width}}  {edge.score:>12.3g}  {edge.effect:>+10.3g}  {edge.side}{mark}"
            lines.append(line.rstrip())
        hidden = len(self.positions) - len(top_edges)
        if hidden > 0:
            lines.append(f"and {hidden:,} more")
        if any(edge.changes for edge in top_edges):
            lines.append("*: the predicted class changes")
        attention = self.evaluation.attention
        attends = attention is not None and attention.has_attention
        paths = [str(path) for path in self.paths()] if top_edges and attends else []
        lines = [*lines, f"strongest paths: {'; '.join(paths)}"] if paths else lines
        return [*lines, *self._node_lines()] if follows_all_nodes(self.subject) else lines

    def _node_lines(self) -> list[str]:
        """Return the first nodes, the strongest pairs beyond the edges, and attention by hop distance."""
        top_nodes = self.nodes[:SHOWN_NODES]
        width = max((len(node.name) for node in top_nodes), default=4)
        label = self.evaluation.method_labels.get(self.method, self.method)
        lines = [f"{'node':<{width}}  {label:>12}  {'effect':>10}"] if top_nodes else []
        lines += [f"{node.name:<{width}}  {node.score:>12.3g}  {node.effect:>+10.3g}" for node in top_nodes]
        pairs = self.global_pairs(SHOWN_PAIRS)
        if pairs is None:
            return lines
        named = [
            f"{self._node_name(query)} reads {self._node_name(key)} ({score:.2g})"
            for query, key, score in zip(pairs.query.tolist(), pairs.key.tolist(), pairs.score.tolist(), strict=True)
        ]
        if named:
            lines.append(f"strongest attention beyond the edges: {'; '.join(named)}")
        shares = [
            f"{'no path' if hop < 0 else hop}: {share:.0%}"
            for hop, share in zip(pairs.hops.tolist(), pairs.share.tolist(), strict=True)
        ]
        return [*lines, f"attention over all nodes by hops: {', '.join(shares)}"]

    def _repr_html_(self) -> str:
        from html import escape

        from attree.report.style import sign_color

        def colored(value: float) -> str:
            color = sign_color(value)
            return f'<span style="color: {color}">{value:+.3g}</span>' if color else f"{value:.3g}"

        table = self.to_pandas().head(SHOWN_EDGES)
        html: str = table.assign(effect=table["effect"].map(colored)).to_html(
            index=False,
            float_format="{:.3g}".format,
            escape=False,
            formatters={name: lambda text: escape(str(text)) for name in table if str(name).endswith("_name")},
        )
        return f"<p>{escape(self.sentence)}</p>{html}"

    def subgraph(self, k: int) -> TargetExplanation:
        """Return a connected explanation of up to `k` edges, grown from the target.

        The subgraph starts at the target (graph level: at the edge with the largest score). Each step adds the edge
        with the largest score, for or against, that touches the subgraph.

        Args:
            k: Number of edges.
        """
        expect_int(k, "k", 1)
        ends = self._ends()
        reached = set(self._root_nodes())
        if not reached and ends:
            reached = set(ends[0])
        places: list[int] = []
        waiting = list(range(len(ends)))
        while waiting and len(places) < k:
            # Edges are ordered by score. Only edges that enter the subgraph carry a flow to the target: they go first.
            place = next((edge for edge in waiting if ends[edge][1] in reached), None)
            if place is None:
                place = next((edge for edge in waiting if ends[edge][0] in reached), None)
            if place is None:
                break
            places.append(place)
            waiting.remove(place)
            reached |= set(ends[place])
        return replace(self, positions=self.positions[torch.tensor(sorted(places), dtype=torch.long)])

    def plot(self, max_edges: int = DRAWN_EDGES, nodes: bool = False) -> Figure:
        """Draw the neighbourhood with edges coloured by their scores: red for the prediction, green against it.

        Args:
            max_edges: Maximum number of edges. If there are more, the figure has the edges with the largest scores and
                their paths to the target.
            nodes: Paint the nodes by their scores, such as the atoms of a molecule.
        """
        from attree.report.case_study import (
            case_study,
            neighbourhood_name,  # Matplotlib is slow to import
        )

        pairs, about = self.evaluation.pairs, self.evaluation.target_labels
        dense = self.scores.new_zeros(pairs.graph.num_edges)
        dense[pairs.edges[self.positions]] = self.scores
        truth, roots = self.evaluation.truth, self._root_nodes()
        has_truth = truth is not None and self.subject.level == "node" and bool((truth.targets == self.target).any())
        number = self.target if about.ids is None else int(about.ids[0])
        names = about.node_names
        if names is None and self._first_node:
            names = [str(node - self._first_node) for node in range(pairs.graph.num_nodes)]
        painted = None
        if nodes:
            painted = torch.zeros(pairs.graph.num_nodes, dtype=torch.float64)
            places, origin = torch.tensor([node.node for node in self.nodes]), pairs.graph.origin
            places = places if origin is None else torch.searchsorted(origin.nodes.cpu(), places)
            painted[places] = torch.tensor([node.score for node in self.nodes]).double()
        return case_study(
            pairs.graph,
            roots[0] if self.subject.level == "node" else None,
            pairs.num_layers or 1,
            {self.method: dense},
            truth.edges_of(self.target) if has_truth and truth is not None else None,
            max_edges,
            name=neighbourhood_name(self.subject, int(pairs.targets[0]), number, about.node_names),
            caption=fill(self.sentence, CAPTION_WIDTH),
            node_names=names,
            edges=pairs.edges[self.positions],
            roots=roots,
            node_scores=painted,
        )

    def show(self) -> Any:
        """Show the explorer in a notebook (a figure if anywidget is not installed); elsewhere print the text."""
        from attree.report.page import MissingWidgetError, show

        if not in_notebook():
            plain_console().print(self._colored(), soft_wrap=True)
            return self.plot()
        try:
            return show(self.evaluation)
        except MissingWidgetError:
            return self.plot()

    def page(self, path: str | Path) -> Path:
        """Write the explorer as one HTML file that opens in any browser; returns the path."""
        from attree.report.page import write_page

        return write_page(expect_path(path, "path"), self.evaluation)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per edge, the strongest first: nodes and their names, score, effect, prediction without it."""
        import pandas as pd

        edges, names = self.edges, self.evaluation.target_labels.node_names
        table = pd.DataFrame({"source": [e.source for e in edges], "destination": [e.destination for e in edges]})
        if names is not None:
            table["source_name"] = [names[edge.source] for edge in edges]
            table["destination_name"] = [names[edge.destination] for edge in edges]
        table["score"] = [edge.score for edge in edges]
        table["effect"] = [edge.effect for edge in edges]
        table["changes"] = [edge.changes for edge in edges]
        if self.evaluation.predictions is not None:
            table["predicted"] = [edge.predicted for edge in edges]
            table["probability"] = [edge.probability for edge in edges]
        return table

    def to_networkx(self) -> nx.MultiDiGraph:
        """Return the neighbourhood; nodes have `name` and `is_target`, edges `score`, `effect` and `changes`."""
        names = self.evaluation.target_labels.node_names
        roots = set(self.evaluation.pairs.graph.whole_ids(self._root_nodes()))
        import networkx as nx

        drawn = nx.MultiDiGraph(sentence=self.sentence, method=self.method, protocol=self.protocol)
        for node in sorted(roots | {end for edge in self.edges for end in (edge.source, edge.destination)}):
            drawn.add_node(node, name=str(node) if names is None else str(names[node]), is_target=node in roots)
        for edge in self.edges:
            drawn.add_edge(
                edge.source, edge.destination, score=edge.score, effect=edge.effect, changes=bool(edge.changes)
            )
        return drawn

    def to_graphml(self, path: str | Path) -> Path:
        """Write the neighbourhood as GraphML, for Gephi, Cytoscape or yEd; returns the path."""
        import networkx as nx

        path = expect_path(path, "path")
        with replacing(path) as temporary:
            nx.write_graphml(self.to_networkx(), temporary)
        return path

    def _root_nodes(self) -> list[int]:
        """Return the nodes that the prediction is read from; an empty list for a whole graph."""
        if self.subject.level == "graph":
            return []
        return [int(node) for node in self.subject.roots(self.evaluation.pairs.targets).node.tolist()]

    def _ends(self) -> list[list[int]]:
        """Return source and destination of each edge of the explanation."""
        pairs = self.evaluation.pairs
        ends: list[list[int]] = pairs.graph.edge_index[:, pairs.edges[self.positions]].cpu().T.tolist()
        return ends

    @property
    def _first_node(self) -> int:
        """Id of the first node of the explained graph in a batch, whose nodes are numbered from 0; otherwise 0."""

        first = self.evaluation.target_labels.first_nodes
        return 0 if first is None or self.subject.level != "graph" else int(first[0])

    def _node_name(self, node: int) -> str:
        names, (number,) = self.evaluation.target_labels.node_names, self.evaluation.pairs.graph.whole_ids([node])
        return str(number - self._first_node) if names is None else str(names[node])

    def _edge_name(self, source: int, destination: int) -> str:
        ends = [self._node_name(source), self._node_name(destination)]
        return edge_name(*ends, is_loop=source == destination)
