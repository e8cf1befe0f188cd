"""The file `evaluation.npz`: the arrays of an evaluation, written, and read with checks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from attree.attention import Graph
from attree.attribution import Pairs
from attree.attribution.result import FREE_NODES, origin_arrays, read_origin, read_types, typed_arrays
from attree.errors import ArgumentError, MissingDataError, expect
from attree.faithfulness import Reduction
from attree.io.files import read_npz, write_npz
from attree.source.target_labels import TargetLabels
from attree.subject.target_roots import LEVELS, Level
from attree.tensors.arrays import are_pointers

FILE_FORMAT = "attree-evaluation-1"

PAIR_ARRAYS = ("targets", "ptr", "edges", "flow")

DELTAS = ("delta_pc", "delta_ne", "changed")

TARGET_ARRAYS = {
    "true_classes": "labels",
    "ids": "ids",
    "first_nodes": "first_nodes",
    "roots": "roots",
    "measured": "measured",
}
"""Names of arrays with one row per target, each with the attribute of `TargetLabels` that it holds."""

DIMENSIONS = {"predictions": 2, "roots": 2}
"""Numbers of dimensions of arrays with one row per target; 1 for all others."""

NAME_ARRAYS = ("class_names", "node_names")


class Arrays(NamedTuple):
    """The content of a file, under the names of `Evaluation`'s attributes."""

    pairs: Pairs
    pair_scores: dict[str, Tensor]
    reductions: dict[str, Reduction]
    method_labels: dict[str, str]
    meanings: dict[str, str]
    network: str
    predictions: Tensor | None
    target_labels: TargetLabels
    population: int | None
    stored_level: float | None


def write_arrays(path: Path, content: Arrays) -> Path:
    """Write an evaluation to one `.npz` archive."""
    pairs, scores, reductions, about = content.pairs, content.pair_scores, content.reductions, content.target_labels
    arrays: dict[str, np.ndarray] = {
        "format": np.array(FILE_FORMAT),
        "edge_index": _array(pairs.graph.original_edge_index),
        "num_nodes": np.array(pairs.graph.num_nodes),
        "num_layers": np.array(-1 if pairs.num_layers is None else pairs.num_layers),
        "level": np.array("graph" if pairs.num_layers is None else pairs.level),
        "methods": _text(scores),
        "labels": _text(content.method_labels.get(name, name) for name in scores),
        "protocols": _text(reductions),
        "meanings": _text(content.meanings.get(name, "") for name in reductions),
        "network": np.array(content.network),
        "dataset": np.array(about.dataset or ""),
        "population": np.array(-1 if content.population is None else content.population),
        "verdict_level": np.array(math.nan if content.stored_level is None else content.stored_level),
    }
    arrays |= origin_arrays(pairs.graph)
    if pairs.graph.types is not None:
        arrays |= typed_arrays(pairs.graph.types, None)
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
    arrays |= {name: _text(texts) for name, texts in names.items() if texts is not None}
    return write_npz(path, **arrays)


def read_arrays(path: Path) -> Arrays:
    """Read a file of `write_arrays`. Arrays that do not fit together raise an `ArgumentError`."""
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
    """Return the evaluation that the arrays of an `.npz` file hold; raise unless the arrays fit together."""
    expect(str(arrays["format"]) == FILE_FORMAT, "folder", f"one of format {FILE_FORMAT}", str(arrays["format"]))
    num_nodes, depth = int(arrays["num_nodes"]), int(arrays["num_layers"])
    graph = Graph(torch.from_numpy(arrays["edge_index"]), num_nodes, read_types(arrays, num_nodes)[0])
    read_origin(arrays, graph)
    targets, ptr, edges, flow = (torch.from_numpy(arrays[name]) for name in PAIR_ARRAYS)
    fits = are_pointers(ptr, targets.numel(), edges.numel()) and flow.shape == edges.shape and flow.dtype == torch.bool
    fits = fits and (edges.numel() == 0 or (int(edges.min()) >= 0 and int(edges.max()) < graph.num_edges))
    expect(fits, "folder", "an evaluation with pairs that fit its graph", "pairs that do not fit")
    level = str(arrays.get("level", "graph" if depth < 0 else "node"))  # files before 0.3 have none
    expect(level in LEVELS and (level == "graph") == (depth < 0), "folder", "an evaluation of a known level", level)
    pairs = Pairs(targets, ptr, edges, flow, graph, None if depth < 0 else depth, level=cast("Level", level))

    def column(name: str) -> Tensor:
        values = torch.from_numpy(arrays[name])
        expect(values.shape == edges.shape, "folder", f"`{name}` of {edges.numel()} pairs", tuple(values.shape))
        return values

    methods, protocols = arrays["methods"].tolist(), arrays["protocols"].tolist()
    scores = {name: column(f"scores/{name}") for name in methods}
    reductions = {name: Reduction(pairs, *(column(f"{delta}/{name}") for delta in DELTAS)) for name in protocols}
    labels = dict(zip(methods, arrays["labels"].tolist(), strict=True))
    # Files of the first version have no meanings, network, dataset or target labels.
    meanings = dict(zip(protocols, arrays["meanings"].tolist(), strict=True)) if "meanings" in arrays else {}
    network = str(arrays.get("network", ""))
    # Files before 0.3 have neither a population nor a level.
    population, verdict_level = int(arrays.get("population", -1)), float(arrays.get("verdict_level", math.nan))
    return Arrays(
        pairs,
        scores,
        reductions,
        labels,
        meanings,
        network,
        *_read_targets(arrays, pairs),
        None if population < 0 else population,
        None if math.isnan(verdict_level) else verdict_level,
    )


def _read_targets(arrays: dict[str, np.ndarray], pairs: Pairs) -> tuple[Tensor | None, TargetLabels]:
    """Return predictions and labels of the targets. Arrays that are missing were unknown when the file was written."""
    rows = {name: torch.from_numpy(arrays[name]) for name in ("predictions", *TARGET_ARRAYS) if name in arrays}
    count = pairs.graph.num_nodes
    for name, values in rows.items():
        fits = values.dim() == DIMENSIONS.get(name, 1) and len(values) == pairs.targets.numel()
        if name == "roots" and fits:
            fits = (
                values.shape[1] == 2
                and not values.is_floating_point()
                and bool(((values >= 0) & (values < count)).all())
            )
        expect(fits, "folder", f"`{name}` of {pairs.targets.numel()} targets", tuple(values.shape))
    predictions = rows.pop("predictions", None)
    names: dict[str, list[str]] = {name: arrays[name].tolist() for name in NAME_ARRAYS if name in arrays}
    if "node_names" in names:
        expect(len(names["node_names"]) == count, "folder", f"{count} names of nodes", len(names["node_names"]))
    return predictions, TargetLabels(
        rows.get("true_classes"),
        names.get("class_names"),
        names.get("node_names"),
        rows.get("ids"),
        rows.get("first_nodes"),
        str(arrays.get("dataset", "")) or None,
        rows.get("roots"),
        rows.get("measured"),
    )


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()


def _text(values: Iterable[str]) -> np.ndarray:
    return np.array(list(values), dtype=np.str_)
