"""The file that holds the scores and reductions of an evaluation: plain arrays, checked when they are read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attree.attention import Graph
from attree.attribution import Pairs
from attree.attribution.stored import FREE_NODES
from attree.errors import ArgumentError, MissingDataError, expect
from attree.evaluation.target_labels import TargetLabels
from attree.faithfulness import Reduction
from attree.io.files import read_npz, write_npz
from attree.tensors.ragged import are_pointers

FILE_FORMAT = "attree-evaluation-1"

PAIR_ARRAYS = ("targets", "ptr", "edges", "flow")
DELTAS = ("delta_pc", "delta_ne", "changed")
TARGET_ARRAYS = {"true_classes": "labels", "ids": "ids", "first_nodes": "first_nodes"}
"""Attributes of `TargetLabels` with a value a target, by the name of their array."""

NAME_ARRAYS = ("class_names", "node_names")


class Arrays(NamedTuple):
    """What a file holds, as `Evaluation` names it."""

    pairs: Pairs
    pair_scores: dict[str, Tensor]
    reductions: dict[str, Reduction]
    labels: dict[str, str]
    meanings: dict[str, str]
    network: str
    predictions: Tensor | None
    about: TargetLabels


def write_arrays(path: Path, content: Arrays) -> Path:
    """Write an evaluation to one `.npz` archive."""
    pairs, scores, reductions, about = content.pairs, content.pair_scores, content.reductions, content.about
    arrays: dict[str, np.ndarray] = {
        "format": np.array(FILE_FORMAT),
        "edge_index": _array(pairs.graph.original_edge_index),
        "num_nodes": np.array(pairs.graph.num_nodes),
        "num_layers": np.array(-1 if pairs.num_layers is None else pairs.num_layers),
        "methods": _text(scores),
        "labels": _text(content.labels.get(name, name) for name in scores),
        "protocols": _text(reductions),
        "meanings": _text(content.meanings.get(name, "") for name in reductions),
        "network": np.array(content.network),
        "dataset": np.array(about.dataset or ""),
    }
    arrays |= {name: _array(getattr(pairs, name)) for name in PAIR_ARRAYS}
    arrays |= {f"scores/{name}": _array(values) for name, values in scores.items()}
    for protocol, reduction in reductions.items():
        arrays |= {f"{name}/{protocol}": _array(getattr(reduction, name)) for name in DELTAS}
    optional = {
        "predictions": content.predictions,
        **{key: getattr(about, name) for key, name in TARGET_ARRAYS.items()},
    }
    arrays |= {name: _array(values) for name, values in optional.items() if values is not None}
    names = {name: getattr(about, name) for name in NAME_ARRAYS}
    arrays |= {name: _text(known) for name, known in names.items() if known is not None}
    return write_npz(path, **arrays)


def read_arrays(path: Path) -> Arrays:
    """Read what `write_arrays` wrote; whatever does not fit together is refused."""
    if not path.is_file():
        raise MissingDataError(f"Expected argument `folder` to hold a saved evaluation, but {path} does not exist.")
    arrays = read_npz(path)
    try:
        num_nodes, limit = int(arrays["num_nodes"]), FREE_NODES + path.stat().st_size
        expect(num_nodes <= limit, "folder", f"an evaluation of at most {limit:,} nodes", num_nodes)
        return _read(arrays)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ArgumentError(
            f"Expected argument `folder` to hold a whole evaluation, but {path} is not one: {error}"
        ) from error


def _read(arrays: dict[str, np.ndarray]) -> Arrays:
    expect(str(arrays["format"]) == FILE_FORMAT, "folder", f"one of format {FILE_FORMAT}", str(arrays["format"]))
    graph = Graph(torch.from_numpy(arrays["edge_index"]), int(arrays["num_nodes"]))
    depth = int(arrays["num_layers"])
    targets, ptr, edges, flow = (torch.from_numpy(arrays[name]) for name in PAIR_ARRAYS)
    fits = are_pointers(ptr, targets.numel(), edges.numel()) and flow.shape == edges.shape and flow.dtype == torch.bool
    fits = fits and (edges.numel() == 0 or (int(edges.min()) >= 0 and int(edges.max()) < graph.num_edges))
    expect(fits, "folder", "an evaluation whose pairs fit its graph", "pairs that do not")
    pairs = Pairs(targets, ptr, edges, flow, graph, None if depth < 0 else depth)

    def column(name: str) -> Tensor:
        values = torch.from_numpy(arrays[name])
        expect(values.shape == edges.shape, "folder", f"`{name}` of {edges.numel()} pairs", tuple(values.shape))
        return values

    methods, protocols = arrays["methods"].tolist(), arrays["protocols"].tolist()
    scores = {name: column(f"scores/{name}") for name in methods}
    reductions = {name: Reduction(pairs, *(column(f"{delta}/{name}") for delta in DELTAS)) for name in protocols}
    labels = dict(zip(methods, arrays["labels"].tolist(), strict=True))
    # Files of the first version have neither meanings nor what is known of the model and the targets.
    meanings = dict(zip(protocols, arrays["meanings"].tolist(), strict=True)) if "meanings" in arrays else {}
    network = str(arrays.get("network", ""))
    return Arrays(pairs, scores, reductions, labels, meanings, network, *_read_targets(arrays, pairs))


def _read_targets(arrays: dict[str, np.ndarray], pairs: Pairs) -> tuple[Tensor | None, TargetLabels]:
    """Predictions, and what is known of the targets; what was not known was not written."""
    rows = {name: torch.from_numpy(arrays[name]) for name in ("predictions", *TARGET_ARRAYS) if name in arrays}
    for name, values in rows.items():
        fits = len(values) == pairs.targets.numel() and values.dim() == (2 if name == "predictions" else 1)
        expect(fits, "folder", f"`{name}` of {pairs.targets.numel()} targets", tuple(values.shape))
    predictions = rows.pop("predictions", None)
    names: dict[str, list[str]] = {name: arrays[name].tolist() for name in NAME_ARRAYS if name in arrays}
    count = pairs.graph.num_nodes
    if "node_names" in names:
        expect(len(names["node_names"]) == count, "folder", f"{count} names of nodes", len(names["node_names"]))
    return predictions, TargetLabels(
        rows.get("true_classes"),
        names.get("class_names"),
        names.get("node_names"),
        rows.get("ids"),
        rows.get("first_nodes"),
        str(arrays.get("dataset", "")) or None,
    )


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()


def _text(values: Iterable[str]) -> np.ndarray:
    return np.array(list(values), dtype=np.str_)
