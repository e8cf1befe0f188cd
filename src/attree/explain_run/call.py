"""What a call of `attree explain` asks for: its targets, its share of processes, and a hash of what its rows need."""

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
from attree.evaluation.targets import Shard, choose_targets
from attree.faithfulness import ReductionProtocol

FORMS = "ids and ranges (2,44,100-110), random:20, errors, errors:20, truth, truth:20 or all"
"""What targets look like."""


def asks_for_errors(text: str) -> bool:
    """Whether the text asks for misclassified targets, so that predictions are needed to parse it.

    >>> asks_for_errors("errors:5"), asks_for_errors("random:5")
    (True, False)
    """
    return text.strip().partition(":")[0] == "errors"


def parse_targets(
    text: str, count: int, wrong: Tensor | None = None, true: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Parse the `--targets` argument into ids.

    Args:
        text: Ids and ranges (`2,44,100-110`), `random:20`, `errors` (misclassified ones), `truth` (those with a true
            explanation) or `all`. `errors:20` and `truth:20` draw as many of them at random. Brackets around a list
            of ids may be left out.
        count: How many nodes, pairs or graphs there are.
        wrong: Ids of those that are misclassified.
        true: Ids of those that have a true explanation; None if none has.
        seed: Seed of a random choice.

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
"""Names of SLURM jobs that are a shell: one process, whatever the variables say of tasks."""


def process_shard(environment: Mapping[str, str] | None = None) -> Shard:
    """Which process this is: `RANK` of `WORLD_SIZE`, or `SLURM_PROCID` of the step's tasks, or the only one.

    Processes need not know one another, as each claims parts: their number is said, and the first one speaks for all.

    Args:
        environment: Variables; None takes those of the process.

    >>> process_shard({"RANK": "1", "WORLD_SIZE": "4"})
    Shard(rank=1, world_size=4)
    >>> process_shard({})
    Shard(rank=0, world_size=1)
    """
    given = os.environ if environment is None else environment
    if "RANK" in given or "WORLD_SIZE" in given:
        return _shard(given, "RANK", "WORLD_SIZE")
    if "SLURM_PROCID" in given and given.get("SLURM_JOB_NAME") not in INTERACTIVE:
        # Those of `srun`, where it differs from what was asked for as a whole.
        return _shard(given, "SLURM_PROCID", next(name for name in _TASKS if name in given or name == _TASKS[-1]))
    return Shard()


_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def _shard(given: Mapping[str, str], rank_name: str, size_name: str) -> Shard:
    try:
        rank, size = int(given[rank_name]), int(given[size_name])
    except (KeyError, ValueError) as error:
        raise ArgumentError(
            f"Expected the variables {rank_name} and {size_name} to be this process's number and how many there are, "
            f"but got {given.get(rank_name)!r} and {given.get(size_name)!r}."
        ) from error
    if not 0 <= rank < size:
        raise ArgumentError(f"Expected the variable {rank_name} to be in [0, {size_name}), but got {rank} of {size}.")
    return Shard(rank, size)


GRAPH_FIELDS = ("x", "edge_index")
"""What attree's networks read of a graph."""

UNREAD_FIELDS = ("y", "batch", "ptr", "train_mask", "val_mask", "test_mask")
"""What no network reads to predict; others' networks may read all else."""


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
    """Hashes of all that the rows of a call depend on.

    Args:
        module: The network with its weights.
        graphs: What it runs on.
        targets: Ids of what is explained, in order.
        methods: The attribution methods; a seed is among their settings.
        protocols: The reduction protocols.
        bounds: Which targets make each part.
        by_neighbourhood: Whether the network runs on neighbourhoods instead of the whole graph.
        top: How many edges of each target are kept; None keeps all.
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
    """The tensors of a graph that a network may read; those of a heterogeneous graph behind their types."""
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
