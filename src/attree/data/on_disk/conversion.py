"""Convert a dataset (arrays, Parquet, CSV, OGB) to a folder that `OnDiskGraph` reads, in steps that can be resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from attree.data.datasets.third_party import guarded_reading
from attree.data.on_disk.array_files import ArrayFile, create
from attree.data.on_disk.edge_sorting import EdgeCounts, EdgeTables, edge_counts, id_type, piece_path, write_piece
from attree.data.on_disk.graph import DESCRIPTION, OnDiskGraph, write_description, write_graph
from attree.errors import ArgumentError, MissingDataError, expect, expect_memory, expect_path
from attree.io.files import FolderLock, replacing, write_text
from attree.io.terminal import progress_bar

READ_ROWS = 2**16
OGB_FILES = (
    "raw/edge.csv.gz",
    "raw/num-node-list.csv.gz",
    "raw/node-feat.csv.gz",
    "raw/node-label.csv.gz",
)
SPLITS = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}


@dataclass(frozen=True)
class NodeFile:
    """A file with one row per node.

    Attributes:
        path: The file: `.npy`, Parquet, or CSV without a header.
        kind: `rows`, `labels` (a column of class numbers, -1 if missing), or `ids` (of the nodes of a mask).
        stated: Number of nodes, for `ids`.
    """

    path: Path
    kind: str = "rows"
    stated: int | None = None

    @cached_property
    def rows(self) -> int | None:
        """Number of nodes, if it is known without reading the file."""
        return len(ArrayFile(self.path)) if self.path.suffix == ".npy" else self.stated

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the rows in order."""
        if self.path.suffix == ".npy":
            yield from ArrayFile(self.path).pieces(READ_ROWS)
        elif self.kind == "ids":
            mask = np.zeros(self.stated or 0, dtype=bool)
            for frame in self.read_tables():
                mask[frame.to_numpy().reshape(-1)] = True
            yield mask
        else:
            for frame in self.read_tables():
                values = frame.to_numpy()
                if self.kind == "labels":
                    yield np.where(np.isnan(values), -1, values).reshape(-1).astype(np.int64)
                else:
                    yield values.astype(np.float32) if values.shape[1] > 1 or values.dtype.kind == "f" else values[:, 0]

    def read_tables(self) -> Iterator[pd.DataFrame]:
        """Yield the rows of a Parquet file, or of a CSV file of OGB, as tables of at most `READ_ROWS` rows."""
        try:
            if self.path.suffix == ".parquet":
                import pyarrow.parquet as pq

                for batch in pq.ParquetFile(self.path).iter_batches(READ_ROWS):
                    yield batch.to_pandas()
            else:
                # As OGB reads it: other parsers of decimal numbers differ in the last digit.
                yield from pd.read_csv(self.path, header=None, chunksize=READ_ROWS)
        except (OSError, ValueError, EOFError) as error:
            raise MissingDataError(
                f"Expected {self.path} to hold numbers of nodes, but it does not ({error})."
            ) from error


def ogb_nodes(source: Path) -> dict[str, NodeFile]:
    """Return the attributes of nodes in a folder of OGB's raw files, and the masks of its split."""
    counts = [int(number) for frame in NodeFile(source / OGB_FILES[1]).read_tables() for number in frame[0]]
    expect(len(counts) == 1, "source", "a dataset of one graph", f"{len(counts)} graphs")
    files = {}
    for name, place, kind in (("x", OGB_FILES[2], "rows"), ("y", OGB_FILES[3], "labels")):
        if (source / place).exists():
            files[name] = NodeFile(source / place, kind, counts[0])
    for split in sorted((source / "split").glob("*"))[:1]:
        for mask, name in SPLITS.items():
            if (split / f"{name}.csv.gz").exists():
                files[mask] = NodeFile(split / f"{name}.csv.gz", "ids", counts[0])
    return files


UNFINISHED = ".unfinished"
ROWS = 2**22
TABLES = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv"}


@dataclass(frozen=True)
class Conversion:
    """What to convert, and how.

    Attributes:
        source: A PyG graph or dataset (`.pt`), a folder of OGB's raw files, or edge lists: a Parquet or CSV file, or a
            folder of them.
        folder: The folder to write.
        columns: Names of the columns of edge lists: source, destination, and features of edges.
        nodes: Files with an attribute of all nodes, by its name.
        num_nodes: Number of nodes; None takes that of the attributes, or the largest id.
        undirected: Add the reverse of every edge, and keep each pair of nodes once.
        half: Write features as float16.
        name: Name of the dataset; None takes that of the source.
        memory: Bytes of memory for sorting.
    """

    source: Path
    folder: Path
    columns: tuple[str, ...] = ()
    nodes: Mapping[str, Path] | None = None
    num_nodes: int | None = None
    undirected: bool = False
    half: bool = False
    name: str | None = None
    memory: float = 2**31

    def fingerprint(self) -> dict[str, Any]:
        """Return all that the result depends on: the options, and sizes and times of the files that are read."""
        files = [*_files_of(self.source), *(self.nodes or {}).values()]
        return {
            "files": [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files],
            "columns": list(self.columns),
            "nodes": sorted(self.nodes or {}),
            "options": [self.num_nodes, self.undirected, self.half, self.name],
        }


def convert(conversion: Conversion) -> OnDiskGraph:
    """Convert a dataset, check the result and return it. A conversion that was stopped goes on where it was.

    Raises:
        ArgumentError: The folder holds something else, or the graph of another call.
        MissingDataError: A source cannot be read.
    """
    expect_memory(conversion.memory)
    folder = expect_path(conversion.folder, "folder")
    if not conversion.source.exists():
        raise MissingDataError(f"Expected {conversion.source} to be a dataset to convert, but it does not exist.")
    for path in (conversion.nodes or {}).values():
        if not path.exists():
            raise MissingDataError(f"Expected {path} to hold an attribute of nodes, but it does not exist.")
    unfinished = folder / UNFINISHED
    with FolderLock(folder):
        _check_folder(folder, unfinished, conversion.fingerprint())
        if not (folder / DESCRIPTION).exists():
            if conversion.source.suffix == ".pt":
                _convert_pyg(conversion, unfinished)
            else:
                _convert_tables(conversion, unfinished)
        graph = OnDiskGraph(folder)
        graph.check()
        shutil.rmtree(unfinished, ignore_errors=True)
    return graph


def _check_folder(folder: Path, unfinished: Path, fingerprint: dict[str, Any]) -> None:
    """Begin a folder, or raise unless it is of the same call."""
    plan = unfinished / "plan.json"
    others = [path.name for path in folder.glob("*") if path != unfinished and not path.name.startswith(".")]
    if plan.exists():
        stored = json.loads(plan.read_bytes())
        changed = [key for key, value in fingerprint.items() if stored.get(key) != value]
        if (
            changed and not others and not list(unfinished.glob("piece-*"))
        ):  # a call that was refused, and was corrected
            shutil.rmtree(unfinished)
            write_text(plan, json.dumps(fingerprint))
        elif changed:
            raise ArgumentError(
                f"Expected {folder} to hold the begun conversion of the same call, but it is of another one (other "
                f"{', '.join(changed)}): remove the folder, or choose another one."
            )
        return
    if others:
        what = "a finished graph" if (folder / DESCRIPTION).exists() else others[0]
        raise ArgumentError(f"Expected {folder} to be a new or an empty folder, but it holds {what}.")
    write_text(plan, json.dumps(fingerprint))


def _convert_pyg(conversion: Conversion, unfinished: Path) -> None:
    """Convert a graph of PyG, which is read whole: it was in memory when it was saved."""
    expect(not conversion.columns and not conversion.nodes, "columns, nodes", "none for a graph of PyG", "some")
    try:
        # No code in the file is run: it may name these classes only.
        with guarded_reading():
            content = torch.load(conversion.source, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise any error
        reason = " ".join(str(error).split())[:200]
        raise MissingDataError(
            f"Expected {conversion.source} to be a saved PyG graph of tensors, but it is not ({reason})"
            ". From Python, attree.data.write_graph(data, folder) writes any graph."
        ) from error
    if isinstance(content, tuple) and len(content) >= 2:  # a processed dataset: data, slices, class
        data, slices = content[0], content[1]
        is_one = slices is None or all(len(ptr) == 2 for ptr in slices.values() if isinstance(ptr, torch.Tensor))
        expect(is_one, "source", "a dataset of one graph", "several graphs")
        content = Data.from_dict(data) if isinstance(data, dict) else data
    expect(isinstance(content, Data), "source", "a file with one homogeneous graph (`Data`)", type(content).__name__)
    if conversion.undirected:
        edges = [name for name in content.keys() if content.is_edge_attr(name) and name != "edge_index"]  # noqa: SIM118
        expect(not edges, "undirected", "False for a graph with features of edges", edges)
        content.edge_index = to_undirected(content.edge_index, num_nodes=content.num_nodes)
    staged = unfinished / "graph"
    shutil.rmtree(staged, ignore_errors=True)
    graph = write_graph(content, staged, conversion.name or conversion.source.stem, conversion.half)
    del graph
    files = sorted(staged.iterdir(), key=lambda path: path.name == DESCRIPTION)  # the description comes last
    for path in files:
        path.replace(conversion.folder / path.name)


def _convert_tables(conversion: Conversion, unfinished: Path) -> None:
    """Convert edge lists: count, sort in pieces, join the pieces, copy the attributes of nodes."""
    conversion, tables, nodes = _read_plan(conversion)
    folder = conversion.folder
    counts_of_nodes = {file.path.name: file.rows for file in nodes.values() if file.rows is not None}
    if len(set(counts_of_nodes.values())) > 1:
        raise ArgumentError(f"Expected one row per node in all files of nodes, but got {counts_of_nodes}.")
    num_nodes = next(iter(counts_of_nodes.values()), conversion.num_nodes)
    fits = conversion.num_nodes in (None, num_nodes)
    expect(fits, "num_nodes", f"the rows of the files of nodes, {num_nodes}", conversion.num_nodes)
    with tables.connect(unfinished / "spill") as connection:
        counts = edge_counts(tables, connection, unfinished, num_nodes)
        pieces = range(len(counts.bounds) - 1)
        with progress_bar("Sorting edges", counts.num_nodes) as advance:
            for number in pieces:
                if not piece_path(unfinished, number).exists():
                    write_piece(tables, connection, unfinished, number, counts)
                advance(counts.bounds[number + 1] - counts.bounds[number])
    of = {"indptr": "pointer", "indices": "edge", "self_loops": "list"}
    if len(tables.columns) > 2:
        of["edge_attr"] = "edge"
    join_pieces(unfinished, folder, counts, len(tables.columns) - 2)
    _check_sums(folder, tables, counts)
    with progress_bar("Copying attributes of nodes", len(nodes)) as advance:
        for name, file in nodes.items():
            of[name] = "node"
            if not (folder / f"{name}.npy").exists():
                _copy(file, folder / f"{name}.npy", counts.num_nodes, conversion.half and name == "x")
            advance(1)
    write_description(folder, counts.num_nodes, of, name=conversion.name or conversion.source.stem)


def _read_plan(conversion: Conversion) -> tuple[Conversion, EdgeTables, dict[str, NodeFile]]:
    """Return the edge tables of a source, and the files of attributes of nodes."""
    source = conversion.source
    nodes = {name: NodeFile(path) for name, path in (conversion.nodes or {}).items()}
    if (source / OGB_FILES[0]).exists():
        expect(not conversion.columns, "columns", "none for OGB's raw files", conversion.columns)
        tables = EdgeTables((source / OGB_FILES[0],), "csv", ("column0", "column1"), conversion.undirected)
        name = conversion.name or source.name
        return replace(conversion, name=name), replace(tables, memory=conversion.memory), ogb_nodes(source) | nodes
    files = _files_of(source)
    kinds = {_kind(path) for path in files}
    expect(
        len(files) > 0 and len(kinds) == 1, "source", "Parquet or CSV files of edges, or OGB's raw files", str(source)
    )
    kind = str(next(iter(kinds)))
    columns = conversion.columns or ("source", "destination")
    expect(len(columns) >= 2, "columns", "a source and a destination at least", columns)
    expect(not (conversion.undirected and len(columns) > 2), "undirected", "False with features of edges", True)
    return conversion, EdgeTables(tuple(files), kind, columns, conversion.undirected, conversion.memory), nodes


def _kind(path: Path) -> str | None:
    suffix = next((ending for ending in reversed(path.suffixes) if ending != ".gz"), "")
    return TABLES.get(suffix)


def _files_of(source: Path) -> list[Path]:
    """Return the files of a source, in the order of their names."""
    if source.is_file():
        return [source]
    if (source / OGB_FILES[0]).exists():
        return [path for name in OGB_FILES if (path := source / name).exists()]
    return sorted(path for path in source.iterdir() if _kind(path) is not None)


def join_pieces(unfinished: Path, folder: Path, counts: EdgeCounts, width: int) -> None:
    """Write pointers, sources, self-loops and features of edges from the sorted pieces."""
    indptr = np.zeros(counts.num_nodes + 1, dtype=np.int64)
    loops, total = [], 0
    for number, piece in _pieces(unfinished, counts):
        begin, end = counts.bounds[number : number + 2]
        indptr[begin + 1 : end + 1] = total + piece["degrees"].cumsum()
        entered = np.repeat(np.arange(begin, end), piece["degrees"])
        loops.append(total + np.flatnonzero(piece["sources"] == entered))
        total += len(piece["sources"])

    def join(name: str, column: str, shape: Sequence[int], dtype: Any) -> None:
        with replacing(folder / f"{name}.npy") as temporary:
            array, place = create(temporary, shape, dtype), 0
            for _, piece in _pieces(unfinished, counts):
                array[place : place + len(piece[column])] = piece[column]
                place += len(piece[column])
            array.flush()

    join("indices", "sources", [total], id_type(counts.num_nodes))
    if width:
        join("edge_attr", "features", [total, width], np.float32)
    for name, values in (("indptr", indptr), ("self_loops", np.concatenate([*loops, np.zeros(0, dtype=np.int64)]))):
        with replacing(folder / f"{name}.npy") as temporary, temporary.open("wb") as stream:
            np.save(stream, values)


def _pieces(unfinished: Path, counts: EdgeCounts) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    for number in range(len(counts.bounds) - 1):
        with np.load(piece_path(unfinished, number), allow_pickle=False) as archive:
            yield number, {name: archive[name] for name in archive.files}


def _check_sums(folder: Path, tables: EdgeTables, counts: EdgeCounts) -> None:
    """Raise unless the sorted edges have as many rows and the same sums of both ends as the tables."""
    indptr, indices = ArrayFile(folder / "indptr.npy"), ArrayFile(folder / "indices.npy")
    sources = sum(int(piece.sum(dtype=np.int64)) for piece in indices.pieces(ROWS))
    nodes = np.arange(counts.num_nodes)
    destinations = sum(
        int((np.diff(indptr.array[begin : begin + ROWS + 1]) * nodes[begin : begin + ROWS]).sum())
        for begin in range(0, counts.num_nodes, ROWS)
    )
    actual, expected = [len(indices), sources, destinations], [counts.rows, *counts.sums]
    if tables.undirected:  # both directions of each edge, so the sums are equal
        actual, expected = [sources], [destinations]
    if actual != expected:
        raise MissingDataError(
            f"Expected the sorted edges to have the rows and sums {expected} of the tables, but they have {actual}: a "
            f"file changed meanwhile, or the disk is damaged. Remove {folder} and convert again."
        )


def _copy(file: NodeFile, path: Path, num_nodes: int, half: bool) -> None:
    """Copy an attribute of nodes, piece by piece."""
    with replacing(path) as temporary:
        array: np.memmap | None = None
        place = 0
        for piece in file.pieces():
            if array is None:
                dtype = np.float16 if half and piece.dtype.kind == "f" else piece.dtype
                array = create(temporary, [num_nodes, *piece.shape[1:]], dtype)
            if place + len(piece) > num_nodes:
                raise ArgumentError(
                    f"Expected {file.path} to have one row for each of {num_nodes:,} nodes, but got more."
                )
            array[place : place + len(piece)] = piece
            place += len(piece)
        if place != num_nodes:
            raise ArgumentError(f"Expected {file.path} to have {num_nodes:,} rows, one per node, but it has {place:,}.")
        if array is not None:
            array.flush()
