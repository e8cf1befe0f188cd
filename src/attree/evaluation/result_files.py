"""The file that holds the scores and reductions of an evaluation: plain arrays, checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attree.attention import LoopedGraph
from attree.attribution import Pairs
from attree.attribution.stored import FREE_NODES
from attree.errors import ArgumentError, MissingDataError, expect
from attree.faithfulness import Reduction
from attree.files import read_npz, write_npz
from attree.ragged import are_pointers

FILE_FORMAT = "attree-evaluation-1"

PAIR_ARRAYS = ("targets", "ptr", "edges", "flow")
DELTAS = ("delta_pc", "delta_ne", "changed")


def write_arrays(
    path: Path,
    pairs: Pairs,
    scores: Mapping[str, Tensor],
    reductions: Mapping[str, Reduction],
    labels: Mapping[str, str],
) -> Path:
    """Write pairs, each method's scores and each protocol's deltas to one `.npz` archive."""
    arrays: dict[str, np.ndarray] = {
        "format": np.array(FILE_FORMAT),
        "edge_index": _array(pairs.graph.original_edge_index),
        "num_nodes": np.array(pairs.graph.num_nodes),
        "num_layers": np.array(-1 if pairs.num_layers is None else pairs.num_layers),
        "methods": np.array(list(scores), dtype=np.str_),
        "labels": np.array([labels.get(name, name) for name in scores], dtype=np.str_),
        "protocols": np.array(list(reductions), dtype=np.str_),
    }
    arrays |= {name: _array(getattr(pairs, name)) for name in PAIR_ARRAYS}
    arrays |= {f"scores/{name}": _array(values) for name, values in scores.items()}
    for protocol, reduction in reductions.items():
        arrays |= {f"{name}/{protocol}": _array(getattr(reduction, name)) for name in DELTAS}
    return write_npz(path, **arrays)


def read_arrays(path: Path) -> tuple[Pairs, dict[str, Tensor], dict[str, Reduction], dict[str, str]]:
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


def _read(
    arrays: dict[str, np.ndarray],
) -> tuple[Pairs, dict[str, Tensor], dict[str, Reduction], dict[str, str]]:
    expect(str(arrays["format"]) == FILE_FORMAT, "folder", f"one of format {FILE_FORMAT}", str(arrays["format"]))
    graph = LoopedGraph(torch.from_numpy(arrays["edge_index"]), int(arrays["num_nodes"]))
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
    return pairs, scores, reductions, dict(zip(methods, arrays["labels"].tolist(), strict=True))


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()
