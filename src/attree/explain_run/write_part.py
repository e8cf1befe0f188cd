"""One part of a call of `attree explain`: what any scheduler needs to spread a call over processes and machines.

A call is plain data. `missing_parts` begins its folder and says which parts are missing; `write_part` writes one of
them, in any process that sees the run and the folder, and returns one small row. It loads the run at the first part.

The fingerprint of a call of `attree explain`: hashes of everything that the call's rows depend on.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage

from attree import __version__
from attree.attribution import DEFAULT_METHODS, AttributionMethod, make_methods
from attree.data import OnDiskGraph
from attree.defaults import PROTOCOLS, SEED
from attree.errors import ArgumentError, expect, expect_int
from attree.evaluation.config import default_methods
from attree.explain_run.on_disk import ExplainedDiskNodes
from attree.explain_run.parts import PartFolder
from attree.explain_run.rows import strongest_rows
from attree.explain_run.targets import ExplainedTargets, ExplainRequest, find_targets
from attree.faithfulness import Reducer, ReductionProtocol, resolve_protocols
from attree.runs.classes import search_working_folder
from attree.runs.load_run import FinishedRun, load_run
from attree.source import disk_source_of

GRAPH_FIELDS = ("x", "edge_index")
"""Fields of a graph that attree's networks read."""

UNREAD_FIELDS = ("y", "batch", "ptr", "train_mask", "val_mask", "test_mask")
"""Fields that no network reads for its predictions. Users' networks may read any other field."""


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
    """Return hashes of everything that the written score rows of an `attree explain` call depend on, by name.

    Args:
        module: The network with its weights.
        graphs: The graphs that the network runs on.
        targets: Ids of the targets, in order.
        methods: The attribution methods; their settings include the seed.
        protocols: The reduction protocols.
        bounds: First target of each part, and the one after its last.
        by_neighbourhood: Whether the network runs on neighbourhoods instead of the whole graph.
        top: Number of edges to keep per target; None keeps all.
    """
    state = module.state_dict()
    way = "neighbourhoods" if by_neighbourhood else "whole"
    return {
        "version": __version__,
        "network": _hash(repr(module)),
        "weights": _hash(*(part for name in sorted(state) for part in (name, state[name]))),
        "data": _hash(*(part for graph in graphs for part in _fields_read(graph))),
        "targets": _hash(targets),
        "methods": _hash(json.dumps({name: method.settings() for name, method in methods.items()}, default=str)),
        "protocols": _hash(*map(repr, protocols)),
        "parts": _hash(json.dumps([way, bounds])),
    } | ({} if top is None else {"top": _hash(top)})


def _fields_read(graph: Data | HeteroData) -> Iterator[Any]:
    """Yield the tensors of a graph that a network may read. A heterogeneous graph is read type by type."""
    if isinstance(graph, HeteroData):
        for kind, store in (*graph.node_items(), *graph.edge_items()):
            yield kind
            yield from (store[field] for field in _fields(store))
        return
    yield from (graph[field] for field in _fields(graph))


def _fields(store: Data | BaseStorage) -> list[str]:
    graph_fields = [field for field in GRAPH_FIELDS if field in store]
    others = [field for field in sorted(store.keys()) if field not in (*GRAPH_FIELDS, *UNREAD_FIELDS)]
    return graph_fields + [field for field in others if isinstance(store[field], Tensor)]


def _hash(*contents: Any) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 hash of tensors and other values."""
    digest = hashlib.sha256()
    for content in contents:
        if isinstance(content, Tensor):
            values = content.detach().cpu().contiguous()
            digest.update(f"{values.dtype} {tuple(values.shape)}\0".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(str(content).encode() + b"\0")
    return digest.hexdigest()[:16]


PART_ROWS = 4_000_000
REDUCED_PART_ROWS = 1_000_000
"""Approximate number of rows per file, without and with protocols."""

RowsOf = Callable[[int, int], pa.Table]
"""Returns the rows of the targets from a first position to a last one (exclusive)."""


@dataclass(frozen=True)
class ExplainCall:
    """A call of `attree explain`, as plain data: whoever has it can write any of its parts.

    Relative paths are taken from the current folder when the call is made.

    Attributes:
        run: The run directory, or a checkpoint in it.
        targets: The targets, as in `--targets`: `random:20`, `all`, `2,44,100-110`, ...
        methods: Names of attribution methods; None takes the default methods.
        protocols: Names of reduction protocols; empty to write scores only.
        allow: Import paths of your own classes that the run's config may use.
        out: Folder to write to; None for `explain` in the run directory.
        by_neighbourhood: Never run the network on the whole graph.
        part_rows: Approximate number of rows per part; None for 4 million, or 1 million with protocols.
        top: Number of edges to write per target; None for all.
        seed: Seed of random targets and scores.
        graph: The folder of a graph on disk, whose nodes are explained instead of those of the run's data.
        device: The device to run on. Scores of another kind of device differ by rounding.
    """

    run: str | Path
    targets: str = "random:20"
    methods: Sequence[str] | None = None
    protocols: Sequence[str] = PROTOCOLS
    allow: Sequence[str] = ()
    out: str | Path | None = None
    by_neighbourhood: bool = False
    part_rows: int | None = None
    top: int | None = None
    seed: int = SEED
    graph: str | Path | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Make paths absolute, and lists tuples, so that a call has a hash and means the same everywhere."""
        for name in ("run", "out", "graph"):
            path = getattr(self, name)
            expect(path is None or isinstance(path, str | Path), name, "a path", path)
            object.__setattr__(self, name, None if path is None else os.path.abspath(path))
        for name in ("methods", "protocols", "allow"):
            value = getattr(self, name)
            expect(value is None or not isinstance(value, str), name, "a list of names", value)
            object.__setattr__(self, name, None if value is None else tuple(value))


class WrittenPart(NamedTuple):
    """What is told about a part that was written.

    Attributes:
        part: Number of the part.
        rows: Its number of rows.
        targets: Its number of targets.
        seconds: Seconds that it took; 0 if it was there already.
        host: Name of the machine that wrote it.
    """

    part: int
    rows: int
    targets: int
    seconds: float
    host: str


def missing_parts(call: ExplainCall, overwrite: bool = False) -> list[int]:
    """Begin the folder of a call, or continue it, and return the numbers of the parts that are missing.

    Args:
        call: The call.
        overwrite: Remove the parts of another call from the folder instead of raising.
    """
    _opened.cache_clear()  # the run may have been trained again
    opened = _opened(call)
    opened.open(overwrite)
    return opened.parts.missing()


def write_part(call: ExplainCall, number: int) -> WrittenPart:
    """Write one part of a call into its folder, unless it is there.

    The part is written atomically under a name that depends only on its number, with the same bytes in any process. So
    parts may be written in any order, by any number of processes and machines, and again if one is killed. A process
    loads the run once for all its parts. `missing_parts` must have begun the folder, which this process must see.

    Args:
        call: The call.
        number: Number of the part, one of `missing_parts(call)`.

    .. code-block:: python

        call = ExplainCall("logs/infection/version_0", targets="all", protocols=[], methods=["gatt"])
        with ProcessPoolExecutor() as pool:
            for written in pool.map(write_part, repeat(call), missing_parts(call)):
                print(written)
    """
    try:
        _opened(call).parts.check()
    except ArgumentError:  # the run may have changed since this process loaded it
        _opened.cache_clear()
    return _opened(call).write(number)


@lru_cache(maxsize=1)
def _opened(call: ExplainCall) -> OpenCall:
    return OpenCall(call)


def open_targets(
    path: str | Path,
    targets: str,
    methods: Sequence[str] | None,
    protocols: Sequence[str],
    allow: Sequence[str],
    seed: int,
    by_neighbourhood: bool = False,
    graph: str | Path | None = None,
    device: str = "cpu",
) -> tuple[FinishedRun, ExplainedTargets]:
    """Open a run, and return it with its targets and the methods and protocols to explain them by.

    The arguments are those of `ExplainCall`. The default methods are those of a fit: `occlusion` is among them if edges
    are reduced by exact updates under `removal`.
    """
    named_methods = make_methods(DEFAULT_METHODS if methods is None else methods, seed=seed)
    run = load_run(path, allow=allow)
    resolved = resolve_protocols(protocols, run.net)
    request = ExplainRequest(targets, seed, named_methods, resolved, by_neighbourhood)
    on_disk = disk_source_of(run if graph is None else OnDiskGraph(graph))
    if on_disk is not None:
        expect(device == "cpu", "device", "cpu for a graph on disk", device)
        return run, ExplainedDiskNodes(run, on_disk.graph, request, methods is not None)
    explained = find_targets(run, request, torch.device(device))
    if methods is None and resolved and not by_neighbourhood:
        explained.methods = make_methods(default_methods(Reducer(explained.sample()), resolved), seed=seed)
    return run, explained


class OpenCall:
    """A call whose run is loaded, with its targets found and divided into parts.

    Args:
        call: The call.

    Attributes:
        run: The run.
        explained: The targets.
        out: Folder to write to.
        bounds: First target of each part, and the one after its last.
        parts: The parts in the folder.
    """

    def __init__(self, call: ExplainCall) -> None:
        if call.allow:
            search_working_folder()
        self.call = call
        self.run, self.explained = open_targets(
            call.run,
            call.targets,
            call.methods,
            call.protocols,
            call.allow,
            call.seed,
            call.by_neighbourhood,
            call.graph,
            call.device,
        )
        self.out = self.run.folder / "explain" if call.out is None else Path(call.out)
        self.bounds = self.explained.bounds(call.part_rows or (REDUCED_PART_ROWS if call.protocols else PART_ROWS))
        fingerprint = call_fingerprint(
            self.run.module,
            self.explained.graphs,
            self.explained.ids,
            self.explained.methods,
            self.explained.protocols,
            self.bounds,
            call.by_neighbourhood,
            call.top,
        )
        self.parts = PartFolder(self.out / "scores", fingerprint, len(self.bounds))

    def open(self, overwrite: bool = False) -> bool:
        """Begin the folder, or continue it. Return whether parts of another call were removed."""
        about = {
            "run": str(self.run.folder),
            "targets": self.explained.ids.numel(),
            "methods": list(self.explained.methods),
            "protocols": [str(protocol) for protocol in self.explained.protocols],
        }
        return self.parts.open(about, overwrite)

    def write(self, number: int, rows: RowsOf | None = None) -> WrittenPart:
        """Write a part, unless it is there.

        Args:
            number: Number of the part.
            rows: Returns the same rows as the targets' `table`; None takes that.
        """
        expect_int(number, "number", at_most=len(self.bounds) - 1)
        self.parts.check()
        began, (begin, end) = perf_counter(), self.bounds[number]
        count = self.parts.rows(number)
        if count is not None:
            return WrittenPart(number, count, end - begin, 0.0, socket.gethostname())
        table = (rows or self.explained.table)(begin, end)
        if self.call.top is not None:
            table = strongest_rows(table, next(iter(self.explained.methods)), self.call.top)
        self.parts.write(number, table)
        return WrittenPart(number, table.num_rows, end - begin, perf_counter() - began, socket.gethostname())

    def write_all(
        self, numbers: Iterable[int], advance: Callable[[int], None], rows: RowsOf | None = None
    ) -> list[WrittenPart]:
        """Write parts one after the other, with one in memory at a time.

        Args:
            numbers: Numbers of the parts.
            advance: Called with the number of targets of each written part.
            rows: As in `write`.
        """
        written = []
        for number in numbers:
            written.append(self.write(number, rows))
            advance(written[-1].targets)
        return written
