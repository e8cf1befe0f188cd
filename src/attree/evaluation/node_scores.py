"""Node scores of an evaluation's targets: which nodes the predictions read, by the first walk among its methods."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attribution import METHODS, GAtt, NodeAttribution, attribute_nodes
from attree.errors import ArgumentError, UnsupportedModelError
from attree.io.files import read_npz, write_npz
from attree.subject import Subject
from attree.tensors.ragged import are_pointers

MOST_PAIRS = 10_000_000
"""Node scores of larger evaluations are not computed: they would take about as long as those of edges."""


def walk_among(methods: Iterable[str]) -> GAtt | None:
    """Return the first method, by name, that scores nodes by a walk: GAtt, Uniform or Structure; None if none does."""
    for name in methods:
        if name in METHODS and issubclass(METHODS[name], GAtt):
            method = METHODS[name].make()
            assert isinstance(method, GAtt)
            return method
    return None


def scores_of_nodes(
    subject: Subject | None, targets: Tensor, methods: Iterable[str], num_pairs: int
) -> NodeAttribution | None:
    """Return the node scores of some targets; None without a model or a walk, or if there are too many pairs."""
    method = walk_among(methods)
    if subject is None or method is None or num_pairs > MOST_PAIRS:
        return None
    try:
        return attribute_nodes(subject, targets, method)
    except (UnsupportedModelError, ArgumentError):  # a walk that this network does not have
        return None


def write_node_scores(path: Path, nodes: NodeAttribution) -> Path:
    """Write node scores as plain arrays: `method`, `targets`, `ptr`, `nodes`, `scores`."""
    arrays = {name: getattr(nodes, name).cpu().numpy() for name in ("targets", "ptr", "nodes", "scores")}
    return write_npz(path, method=nodes.method, **arrays)


def read_node_scores(path: Path, graph: Graph) -> NodeAttribution | None:
    """Read a file of `write_node_scores`; None if there is none. A damaged file raises an `ArgumentError`."""
    if not path.is_file():
        return None
    arrays = read_npz(path)
    try:
        parts = (torch.from_numpy(arrays[name]) for name in ("targets", "ptr", "nodes", "scores"))
        nodes = NodeAttribution(str(arrays["method"]), graph, *parts)
        ids = nodes.nodes
        fits = are_pointers(nodes.ptr, len(nodes), ids.numel()) and nodes.scores.shape == ids.shape
        fits = fits and nodes.scores.is_floating_point() and ids.dtype == nodes.targets.dtype == torch.int64
        fits = fits and (ids.numel() == 0 or 0 <= int(ids.min()) <= int(ids.max()) < graph.num_nodes)
    except (KeyError, TypeError, ValueError, RuntimeError):
        fits = False
    if not fits:
        raise ArgumentError(f"Expected argument `folder` to hold node scores that fit its graph, but {path} does not.")
    return nodes
