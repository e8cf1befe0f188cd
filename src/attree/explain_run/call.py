"""A call of `attree explain`: parse its targets, find its rank among processes, and fingerprint what its rows need."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage

from attree import __version__
from attree.attribution import AttributionMethod
from attree.errors import ArgumentError, expect
from attree.evaluation.config import Shard, choose_targets
from attree.faithfulness import ReductionProtocol

FORMS = "ids and ranges (2,44,100-110), random:20, errors, errors:20, truth, truth:20 or all"
"""The forms of `--targets`, for messages."""


def asks_for_errors(text: str) -> bool:
    """Whether `--targets` asks for misclassified targets, so that predictions are needed to parse it.

    >>> asks_for_errors("errors:5"), asks_for_errors("random:5")
    (True, False)
    """
    return text.strip().partition(":")[0] == "errors"


def parse_targets(
    text: str, count: int, wrong: Tensor | None = None, true: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Parse the `--targets` argument into ids.

    Args:
        text: Ids and ranges (`2,44,100-110`), `random:20`, `errors` (misclassified targets), `truth` (targets with
            true edges) or `all`. `errors:20` and `truth:20` draw 20 of them at random. A list of ids may be in
            brackets.
        count: Number of nodes, pairs or graphs.
        wrong: Ids of the misclassified ones.
        true: Ids of those with true edges; None if the data has no ground truth.
        seed: Seed of random draws.

    >>> parse_targets("2, 7-9", count=10).tolist(), parse_targets("[2,7]", count=10).tolist()
    ([2, 7, 8, 9], [2, 7])
    """
    text = text.strip()
    if text == "all":
        return torch.arange(count)
    if found := re.fullmatch(r"(random|errors|truth)(?::(\d+))?", text):
        kind, number = found.groups()
        if kind == "errors":
            expect(wrong is not None and wrong.numel() > 0, "targets", "others, as no prediction is wrong", text)
        if kind == "truth":
            expect(true is not None, "targets", "others, as this data has no ground truth", text)
        known = {"random": torch.arange(count), "errors": wrong, "truth": true}[kind]
        if known is not None and (number is not None or kind != "random"):
            return known if number is None else known[choose_targets(int(number), known.numel(), seed)]
    ids: list[int] = []
    for part in text.removeprefix("[").removesuffix("]").split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if found is None:
            raise ArgumentError(f"Expected argument `targets` to be {FORMS}, but got {text!r}.")
        first, last = int(found[1]), int(found[2] or found[1])
        inside = first <= last < count
        expect(inside, "targets", f"ids in [0, {count}), ranges from low to high", part.strip())
        ids += range(first, last + 1)
    return torch.tensor(list(dict.fromkeys(ids)), dtype=torch.int64)


INTERACTIVE = ("bash", "interactive")
"""Names of SLURM jobs that are an interactive shell, where a command is a single process."""


def process_shard(environment: Mapping[str, str] | None = None) -> Shard:
    """Return the rank of this process and the number of processes, from the variables of torchrun or SLURM.

    Processes share work by claiming parts, so these numbers only decide which process prints.

    Args:
        environment: Environment variables; None takes those of the process.

    >>> process_shard({"RANK": "1", "WORLD_SIZE": "4"})
    Shard(rank=1, world_size=4)
    >>> process_shard({})
    Shard(rank=0, world_size=1)
    """
    given = os.environ if environment is None else environment
    if "RANK" in given or "WORLD_SIZE" in given:
        return _shard(given, "RANK", "WORLD_SIZE")
    if "SLURM_PROCID" in given and given.get("SLURM_JOB_NAME") not in INTERACTIVE:
        # The tasks of an `srun` step may be fewer than those of its job.
        return _shard(given, "SLURM_PROCID", next(name for name in _TASKS if name in given or name == _TASKS[-1]))
    return Shard()


_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def _shard(given: Mapping[str, str], rank_name: str, size_name: str) -> Shard:
    try:
        rank, size = int(given[rank_name]), int(given[size_name])
    except (KeyError, ValueError) as error:
        raise ArgumentError(
            f"Expected the variables {rank_name} and {size_name} to be the rank of this process and their number, "
            f"but got {given.get(rank_name)!r} and {given.get(size_name)!r}."
        ) from error
    if not 0 <= rank < size:
        raise ArgumentError(f"Expected the variable {rank_name} to be in [0, {size_name}), but got {rank} of {size}.")
    return Shard(rank, size)


GRAPH_FIELDS = ("x", "edge_index")
"""The fields of a graph that attree's networks read."""

UNREAD_FIELDS = ("y", "batch", "ptr", "train_mask", "val_mask", "test_mask")
"""The fields that no network reads to predict. Users' networks may read any other field."""


def call_fingerprint(
    module: nn.Module,
    graphs: Iterable[Data | HeteroData],
    targets: Tensor,
    methods: Mapping[str, AttributionMethod],
    protocols: Iterable[ReductionProtocol],
    bounds: list[tuple[int, int]],
    by_neighbourhood: bool,
    top: int | None = None,
) -> dict[str, str]:
    """Return hashes of all that the rows of a call depend on, by name.

    Args:
        module: The network with its weights.
        graphs: The graphs that it runs on.
        targets: Ids of the targets, in order.
        methods: The attribution methods, whose settings include their seed.
        protocols: The reduction protocols.
        bounds: First and last target of each part.
        by_neighbourhood: Whether the network runs on neighbourhoods instead of the whole graph.
        top: Number of edges to keep per target; None keeps all.
    """
    state = module.state_dict()
    way = "neighbourhoods" if by_neighbourhood else "whole"
    return {
        "version": __version__,
        "network": _hash(repr(module)),
        "weights": _hash(*(part for name in sorted(state) for part in (name, state[name]))),
        "data": _hash(*(part for graph in graphs for part in _read_of(graph))),
        "targets": _hash(targets),
        "methods": _hash(json.dumps({name: one.settings() for name, one in methods.items()}, default=str)),
        "protocols": _hash(*map(repr, protocols)),
        "parts": _hash(json.dumps([way, bounds])),
    } | ({} if top is None else {"top": _hash(top)})


def _read_of(graph: Data | HeteroData) -> Iterator[Any]:
    """Yield the tensors of a graph that a network may read; of a heterogeneous graph, type by type."""
    if isinstance(graph, HeteroData):
        for kind, store in (*graph.node_items(), *graph.edge_items()):
            yield kind
            yield from (store[field] for field in _fields(store))
        return
    yield from (graph[field] for field in _fields(graph))


def _fields(store: Data | BaseStorage) -> list[str]:
    own = [field for field in GRAPH_FIELDS if field in store]
    others = [field for field in sorted(store.keys()) if field not in (*GRAPH_FIELDS, *UNREAD_FIELDS)]
    return own + [field for field in others if isinstance(store[field], Tensor)]


def _hash(*contents: Any) -> str:
    digest = hashlib.sha256()
    for content in contents:
        if isinstance(content, Tensor):
            values = content.detach().cpu().contiguous()
            digest.update(f"{values.dtype} {tuple(values.shape)}\0".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(str(content).encode() + b"\0")
    return digest.hexdigest()[:16]
