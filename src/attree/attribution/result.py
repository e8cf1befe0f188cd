"""Edge scores of many targets as one result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.explain import Explanation, HeteroExplanation

from attree.attention.graph import Graph
from attree.attribution.stored import FILE_FORMAT, read_attribution, typed_arrays
from attree.errors import ArgumentError, expect, expect_int, expect_list, expect_path
from attree.io.files import write_npz
from attree.tensors.ragged import find, pointers, row_of


class TargetAttribution(NamedTuple):
    """Scores of one target: its id, the edges that carry a flow to it (ids in `graph.edge_index`), and their scores."""

    target: int
    edges: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Attribution:
    """Edge scores of several targets. Edges that carry no flow to a target are not listed and have score 0.

    Attributes:
        method: Name of the attribution method.
        graph: The graph; `edges` are positions in its `edge_index`, which has one self-loop per node.
        targets: Ids of the explained nodes, links, or graphs, [T].
        ptr: The edges and scores of target k are at `ptr[k]:ptr[k + 1]`, [T + 1].
        edges: Edge ids, [M].
        scores: Scores, [M].
        node_type: Node type of the targets in a heterogeneous graph; targets are numbered within it. Edge ids count the
            edges of all types; `graph.types` has their types.
    """

    method: str
    graph: Graph
    targets: Tensor
    ptr: Tensor
    edges: Tensor
    scores: Tensor
    node_type: str | None = None

    def __post_init__(self) -> None:
        bounds, shape = (self.targets.numel() + 1,), tuple(self.ptr.shape)
        expect(shape == bounds, "ptr", f"of shape {bounds}: one bound more than there are targets", shape)
        shape = tuple(self.scores.shape)
        expect(shape == self.edges.shape, "scores", f"of shape {tuple(self.edges.shape)}: one for each edge", shape)

    def __len__(self) -> int:
        return self.targets.numel()

    def __iter__(self) -> Iterator[TargetAttribution]:
        bounds = self.ptr.tolist()
        for position, target in enumerate(self.graph.whole_nodes(self.targets).tolist()):
            part = slice(bounds[position], bounds[position + 1])
            yield TargetAttribution(target, self.edges[part], self.scores[part])

    def __getitem__(self, target: int) -> TargetAttribution:
        """Return the scores of one target, by its id."""
        part = slice(*self.ptr[self._position(target) : self._position(target) + 2].tolist())
        return TargetAttribution(target, self.edges[part], self.scores[part])

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {target: position for position, target in enumerate(self.graph.whole_nodes(self.targets).tolist())}

    def _position(self, target: int) -> int:
        if expect_int(target, "target") not in self._positions:
            explained = ", ".join(str(node) for node in self.targets[:5].tolist()) + (", ..." if len(self) > 5 else "")
            raise ArgumentError(
                f"Expected argument `target` to be one of the {len(self)} explained ones ({explained}), but got "
                f"{target}."
            )
        return self._positions[target]

    def dense(self, target: int) -> Tensor:
        """Return one target's scores of all edges of `graph.edge_index`, [num_edges]; 0 for edges without a flow."""
        _, edges, scores = self[target]
        return scores.new_zeros(self.graph.num_edges).index_add_(0, edges, scores)

    def edge_mask(self, target: int) -> Any:
        """Return one target's scores of the given edges, [E], in the order of PyG's edge masks.

        Self-loops that layers added are dropped. Given self-loops have the score of their node's self-loop. For a
        heterogeneous graph, the result is a dict by edge type.
        """
        mask = self.graph.to_original(self.dense(target))
        return mask if self.graph.types is None else self.graph.types.split_edges(mask)

    def to_explanation(self, target: int, **attributes: Any) -> Explanation | HeteroExplanation:
        """Return one target's scores as a PyG `Explanation` with further attributes (`x`, `target`, ...).

        For a heterogeneous graph, the result is a `HeteroExplanation` with one mask per edge type.
        """
        if self.graph.types is not None:
            explanation = HeteroExplanation()
            for kind, mask in self.edge_mask(target).items():
                explanation[kind].edge_index = self.graph.typed_edges[kind]
                explanation[kind].edge_mask = mask
            for name, value in {"index": torch.tensor([target]), **attributes}.items():
                explanation[name] = value
            return explanation
        return Explanation(
            edge_index=self.graph.original_edge_index,
            edge_mask=self.edge_mask(target),
            index=torch.tensor([target]),
            **attributes,
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return all scores as a table with the columns target, source, destination, score.

        For a heterogeneous graph, nodes are numbered within their types, given by the columns source_type, relation and
        target_type; the relation of a self-loop that a layer added is empty.
        """
        owners = self.graph.whole_nodes(self.targets)[row_of(self.ptr.diff())].cpu().numpy()
        columns = {"target": owners, **edge_columns(self.graph, self.edges), "score": self.scores.cpu().numpy()}
        return pd.DataFrame(columns)

    def lists(self, owner: Tensor, edges: Tensor) -> bool:
        """Whether this result lists exactly these (target position, edge) pairs, in this order."""
        return torch.equal(self.edges, edges) and torch.equal(row_of(self.ptr.diff()), owner)

    def at(self, owner: Tensor, edges: Tensor) -> Tensor:
        """Return the scores of (target position, edge) pairs; 0 for edges that are not listed."""
        listed_keys = row_of(self.ptr.diff()) * self.graph.num_edges + self.edges
        keys = owner * self.graph.num_edges + edges
        order = listed_keys.argsort()
        place, is_listed = find(listed_keys[order], keys)
        scores = self.scores.new_zeros(keys.numel())
        scores[is_listed] = self.scores[order[place[is_listed]]]
        return scores

    def to(self, device: torch.device | str) -> Attribution:
        """Return the result on another device; the graph is moved too."""
        graph = self.graph
        if graph.device != torch.device(device):
            graph = Graph(graph.original_edge_index.to(device), graph.num_nodes, graph.types)
        targets, ptr, edges, scores = (
            tensor.to(device) for tensor in (self.targets, self.ptr, self.edges, self.scores)
        )
        return Attribution(self.method, graph, targets, ptr, edges, scores, self.node_type)

    @staticmethod
    def concat(parts: Sequence[Attribution]) -> Attribution:
        """Concatenate results of the same method and graph."""
        parts = expect_list(parts, "parts", Attribution, "results")
        expect(len(parts) > 0, "parts", "at least one result", "none")
        first = parts[0]
        for part in parts[1:]:
            expect(part.method == first.method, "parts", f"results of one method, {first.method}", part.method)
            graph, other = first.graph, part.graph
            same = other is graph or other.matches(graph.original_edge_index, graph.num_nodes)
            expect(same, "parts", "results on one graph", "results on several")
        sizes = torch.cat([part.ptr.diff() for part in parts])
        ptr = pointers(sizes)
        return Attribution(
            first.method,
            first.graph,
            torch.cat([part.targets for part in parts]),
            ptr,
            torch.cat([part.edges for part in parts]),
            torch.cat([part.scores for part in parts]),
            first.node_type,
        )

    def save(self, path: str | Path) -> Path:
        """Write a NumPy `.npz` archive of plain arrays (no pickle); an interrupted write leaves no file.

        Arrays: `format`, `method`, `num_nodes`, `edge_index` [2, E] (as given), `targets` [T], `ptr` [T + 1], `edges`
        [M] (positions in the edge list with self-loops: the given edges without self-loops in their order, then one
        self-loop per node), `scores` [M] (bfloat16 becomes float32). A heterogeneous graph is stored as the union of
        its types, with the arrays `node_types`, `node_counts`, `edge_types` [K, 3], `edge_counts` and `node_type` (of
        the targets).
        """
        # NumPy has no bfloat16.
        scores = self.scores.float() if self.scores.dtype == torch.bfloat16 else self.scores
        return write_npz(
            expect_path(path, "path"),
            format=np.array(FILE_FORMAT),
            method=np.array(self.method),
            num_nodes=np.array(self.graph.num_nodes),
            edge_index=self.graph.original_edge_index.cpu().numpy(),
            targets=self.targets.cpu().numpy(),
            ptr=self.ptr.cpu().numpy(),
            edges=self.edges.cpu().numpy(),
            scores=scores.cpu().numpy(),
            **({} if self.graph.types is None else typed_arrays(self.graph.types, self.node_type)),
        )

    @classmethod
    def load(cls, path: str | Path, max_nodes: int | None = None) -> Attribution:
        """Read and check a file written by `save`; a damaged or forged file raises an `ArgumentError`.

        Args:
            path: The file.
            max_nodes: Maximum number of nodes, because each takes memory even without edges in the file. None accepts
                4 million plus one per byte of the file.
        """
        if max_nodes is not None:
            expect_int(max_nodes, "max_nodes")
        return cls(*read_attribution(expect_path(path, "path"), max_nodes))


def edge_columns(graph: Graph, edges: Tensor) -> dict[str, Any]:
    """Return the ends of edges as table columns: source and destination.

    For a heterogeneous graph, source_type, relation and target_type come first, and nodes are numbered within their
    types. The relation of a self-loop that a layer added is empty.

    Args:
        graph: The graph.
        edges: Positions in `graph.edge_index`.
    """
    ends, types = graph.whole_nodes(graph.edge_index[:, edges]), graph.types
    columns: dict[str, Any] = {}
    if types is not None:
        names, node_types = np.array([kind[1] for kind in types.edge_types] + [""]), np.array(types.node_types)
        source, destination = (node_types[types.type_of_nodes(side).cpu().numpy()] for side in ends)
        relation = names[types.type_of_edges(edges).cpu().numpy()]
        columns |= {"source_type": source, "relation": relation, "target_type": destination}
        ends = torch.stack([types.local(side) for side in ends])
    return columns | dict(zip(("source", "destination"), ends.cpu().numpy(), strict=True))
