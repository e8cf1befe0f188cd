"""Sort edge lists that are larger than memory by destination, piece by piece, with DuckDB.

The edges are counted first. Then they are sorted in pieces of consecutive destinations, of bounded size. Each piece is
written to a file of its own, so that a conversion that was stopped goes on with the next one. DuckDB spills to disk
what does not fit into its memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attree.errors import ArgumentError, MissingDataError, MissingPackageError, expect
from attree.io.files import replacing, write_text

PIECE_EDGES = 2**26
"""Number of edges that are sorted at once, approximately."""

CELLS = 2**16
"""Number of groups of consecutive destinations whose edges are counted, to find pieces of equal size."""

VECTORS = 512
"""Number of DuckDB's vectors (of 2,048 rows) in a chunk of a result."""


@dataclass(frozen=True)
class EdgeTables:
    """Edge lists in Parquet or CSV files, read as one table.

    Attributes:
        files: The files, in their order.
        kind: `parquet` or `csv`.
        columns: Names of the columns: source, destination, then features of edges. For CSV files without a header,
            `column0`, `column1`, ...
        undirected: Add the reverse of every edge, and keep each pair of nodes once.
        memory: Bytes that DuckDB may take.
    """

    files: tuple[Path, ...]
    kind: str
    columns: tuple[str, ...]
    undirected: bool = False
    memory: float = 2**31

    def connect(self, temporary: Path) -> Any:
        """Open DuckDB, with a view `edges` of the tables: columns `s`, `d`, `e0`, `e1`, ..., and the row as `row`."""
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                "To sort lists of edges, attree needs the package duckdb: pip install 'attree[disk]'"
            ) from error
        temporary.mkdir(parents=True, exist_ok=True)
        limit = f"{int(self.memory / 2**20)}MiB"
        connection = duckdb.connect(config={"memory_limit": limit, "temp_directory": str(temporary)})
        names = ", ".join("'" + str(path).replace("'", "''") + "'" for path in self.files)
        scan = f"read_parquet([{names}])" if self.kind == "parquet" else f"read_csv([{names}], header={self._header})"
        try:
            there = [row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()]
            for column in self.columns:
                expect(column in there, "columns", f"among those of {self.files[0].name}: {', '.join(there)}", column)
            ends = [f'"{column}" AS {name}' for column, name in zip(self.columns, "sd", strict=False)]
            more = [f'"{column}" AS e{number}' for number, column in enumerate(self.columns[2:])]
            rows = "" if self.undirected else ", row_number() OVER () AS row"
            connection.execute(f"CREATE VIEW given AS SELECT {', '.join([*ends, *more])}{rows} FROM {scan}")
            both = "SELECT s, d FROM given UNION ALL SELECT d AS s, s AS d FROM given"
            connection.execute(f"CREATE VIEW edges AS {both if self.undirected else 'SELECT * FROM given'}")
        except duckdb.Error as error:
            raise MissingDataError(
                f"Expected {self.files[0]} to hold a list of edges as {self.kind}, but it does not "
                f"({' '.join(str(error).split())[:200]})."
            ) from error
        return connection

    @property
    def _header(self) -> bool:
        return not self.columns[0].startswith("column")

    def count(self, connection: Any, num_nodes: int | None) -> EdgeCounts:
        """Count the edges, and find the pieces; raise if ends are missing, no integers, or no nodes."""
        types = dict(row[:2] for row in connection.execute("DESCRIBE SELECT s, d FROM given").fetchall())
        for end, column in zip("sd", self.columns, strict=False):
            is_integer = "INT" in str(types[end]).upper()
            expect(is_integer, "columns", "columns of integers", f"`{column}` of {types[end]}")
        query = "SELECT count(*), count(s), count(d), min(least(s, d)), max(greatest(s, d)), sum(s::HUGEINT), "
        rows, sources, ends, low, high, *sums = connection.execute(query + "sum(d::HUGEINT) FROM given").fetchone()
        where = f"the edges of {self.files[0].name}"
        expect(sources == rows == ends, "source", f"{where} with two ends each", "missing values")
        nodes = (int(high) + 1 if rows else 0) if num_nodes is None else num_nodes
        fits = not rows or (int(low) >= 0 and int(high) < nodes)
        expect(fits, "source", f"{where} with nodes in [0, {nodes:,})", f"nodes from {low} to {high}")
        width = max(-(-nodes // CELLS), 1)
        cells = np.zeros(-(-nodes // width), dtype=np.int64)
        for cell, number in connection.execute(f"SELECT d // {width}, count(*) FROM edges GROUP BY 1").fetchall():
            cells[int(cell)] = number
        piece = np.maximum(cells.cumsum() - 1, 0) // PIECE_EDGES
        first = np.flatnonzero(np.diff(piece)) + 1
        bounds = [0, *(first * width).tolist(), nodes]
        return EdgeCounts(int(rows), nodes, bounds, [int(total or 0) for total in sums])

    def piece(self, connection: Any, begin: int, end: int) -> Iterator[Any]:
        """Yield the edges that enter nodes `begin` to `end`, node by node, as data frames.

        Edges that enter a node are in the order of the tables; those of an undirected graph ascend by source.
        """
        columns = ", ".join(["s", "d", *(f"e{number}" for number in range(len(self.columns) - 2))])
        selected, order = ("DISTINCT s, d", "d, s") if self.undirected else (columns, "d, row")
        query = f"SELECT {selected} FROM edges WHERE d >= {begin} AND d < {end} ORDER BY {order}"
        result = connection.execute(query)
        while len(frame := result.fetch_df_chunk(VECTORS)):
            yield frame


@dataclass(frozen=True)
class EdgeCounts:
    """What is known of edge tables before they are sorted.

    Attributes:
        rows: Number of rows.
        num_nodes: Number of nodes.
        bounds: First destination of each piece, and the number of nodes.
        sums: Sum of the sources, and of the destinations.
    """

    rows: int
    num_nodes: int
    bounds: Sequence[int]
    sums: Sequence[int]


def edge_counts(tables: EdgeTables, connection: Any, folder: Path, num_nodes: int | None) -> EdgeCounts:
    """Return the counts of edge tables, which are written to a file when they are first made."""
    path = folder / "counts.json"
    with suppress(FileNotFoundError, ValueError, TypeError):
        return EdgeCounts(**json.loads(path.read_bytes()))
    counts = tables.count(connection, num_nodes)
    write_text(path, json.dumps(vars(counts)))
    return counts


def write_piece(tables: EdgeTables, connection: Any, folder: Path, number: int, counts: EdgeCounts) -> None:
    """Sort one piece and write it: sources, number of edges of each node, and features of edges."""
    begin, end = counts.bounds[number : number + 2]
    degrees = np.zeros(end - begin, dtype=np.int64)
    sources, more = [], []
    for frame in tables.piece(connection, begin, end):
        sources.append(frame["s"].to_numpy().astype(id_type(counts.num_nodes)))
        degrees += np.bincount(frame["d"].to_numpy() - begin, minlength=degrees.size)
        if len(tables.columns) > 2:
            values = frame[[f"e{column}" for column in range(len(tables.columns) - 2)]].to_numpy(np.float32)
            if not np.isfinite(values).all():
                raise ArgumentError("Expected the features of edges to be finite numbers, but got missing ones.")
            more.append(values)
    arrays = {"degrees": degrees, "sources": np.concatenate([*sources, np.zeros(0, id_type(counts.num_nodes))])}
    if len(tables.columns) > 2:
        arrays["features"] = np.concatenate([*more, np.zeros((0, len(tables.columns) - 2), np.float32)])
    path = piece_path(folder, number)
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def piece_path(folder: Path, number: int) -> Path:
    """Return the file of a piece."""
    return folder / f"piece-{number:05d}.npz"


def id_type(num_nodes: int) -> type:
    """Return the type of node ids on disk: half as wide where it is enough."""
    return np.int32 if num_nodes < 2**31 else np.int64
