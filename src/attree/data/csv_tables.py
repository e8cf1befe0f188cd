"""A graph from two tables: nodes with features and labels, and edges between them, by ids of any kind."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from attree.errors import ArgumentError, expect, expect_bool

PARTS = {"train": "train_mask", "val": "val_mask", "test": "test_mask"}
"""Values of a split column, each with the mask that it sets."""

Table = str | Path | pd.DataFrame
"""A table: the path of a CSV file, or a data frame."""


def from_csv(
    nodes: Table,
    edges: Table,
    *,
    id: str = "id",
    label: str | None = "label",
    source: str = "source",
    target: str = "target",
    split: str | None = None,
    features: Sequence[str] | None = None,
    undirected: bool = False,
) -> Data:
    """Read a graph from two tables, one row per node and one row per edge. Ids and labels may be words or numbers.

    Features are the columns of the nodes' table: numbers as they are (missing ones are refused), words as one column of
    0 and 1 for each value. The graph remembers the ids as `node_names` and the labels as `class_names`, so that
    explanations show them. A node without a label gets -1, which means unknown.

    Args:
        nodes: The nodes' table: a CSV file or a data frame.
        edges: The edges' table.
        id: Column of the nodes' table with the ids.
        label: Column with the labels; None if there is none.
        source: Column of the edges' table with the id of the node that an edge leaves.
        target: Column with the id of the node that it enters.
        split: Column with `train`, `val` or `test` for each node, empty for none; None if there is none.
        features: Columns to use as features; None takes all that have no other use.
        undirected: Add each edge in the other direction, too.

    Returns:
        The graph: `x`, `edge_index`, `y`, `node_names`, `class_names`, and three masks if there is a `split`.

    >>> people = pd.DataFrame({"id": ["ann", "bob"], "age": [30, 40], "label": ["spam", "ham"]})
    >>> graph = from_csv(people, pd.DataFrame({"source": ["ann"], "target": ["bob"]}))
    >>> graph.edge_index.tolist(), graph.x.tolist(), graph.y.tolist(), graph.class_names
    ([[0], [1]], [[30.0], [40.0]], [1, 0], ['ham', 'spam'])
    """
    node_table, edge_table = _read(nodes, "nodes"), _read(edges, "edges")
    optional = {"label": label, "split": split}
    special = {"id": id} | {name: column for name, column in optional.items() if column is not None}
    for argument, column in special.items():
        _expect_columns(node_table, [column], argument, "nodes")
    for argument, column in {"source": source, "target": target}.items():
        _expect_columns(edge_table, [column], argument, "edges")
    expect_bool(undirected, "undirected")

    ids = node_table[id]
    expect(not ids.isna().any(), id, "an id for every node", f"{int(ids.isna().sum())} empty cells")
    doubles = ids[ids.duplicated()].tolist()
    expect(not doubles, id, "each id once", doubles[:1])
    position: dict[Hashable, int] = {name: number for number, name in enumerate(ids)}
    edge_index = torch.stack([_positions(edge_table[column], position, column) for column in (source, target)])
    if undirected:
        edge_index = torch.cat([edge_index, edge_index.flip(0)[:, edge_index[0] != edge_index[1]]], dim=1)

    columns = [name for name in node_table.columns if name not in special.values()] if features is None else [*features]
    _expect_columns(node_table, columns, "features", "nodes")
    graph = Data(x=_features(node_table[columns]), edge_index=edge_index, node_names=[str(name) for name in ids])
    if label is not None:
        classes = sorted(node_table[label].dropna().unique(), key=_order)
        graph.y = torch.tensor([-1 if pd.isna(value) else classes.index(value) for value in node_table[label]])
        graph.class_names = [str(name) for name in classes]
    if split is not None:
        _set_masks(graph, node_table[split], split)
    return graph


def _read(table: Table, argument: str) -> pd.DataFrame:
    expect(isinstance(table, str | Path | pd.DataFrame), argument, "a CSV file or a data frame", table)
    if isinstance(table, pd.DataFrame):
        return table
    path = Path(table)
    expect(path.is_file(), argument, "a CSV file or a data frame", str(path))
    try:
        return pd.read_csv(path, skipinitialspace=True)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"Expected argument `{argument}` to be a CSV file, but reading {path} failed: {error}"
        ) from error


def _expect_columns(table: pd.DataFrame, columns: Sequence[str], argument: str, where: str) -> None:
    """Raise unless a table has some columns."""
    absent = [name for name in columns if name not in table.columns]
    expected = f"columns of `{where}` ({', '.join(map(str, table.columns))})"
    expect(not absent, argument, expected, absent[0] if absent else None)


def _positions(ends: pd.Series[Any], position: dict[Hashable, int], column: str) -> Tensor:
    """Return the number of each end's node."""
    unknown = ends[~ends.isin(list(position))]
    if not unknown.empty:
        row = int(ends.index.get_indexer(unknown.index[:1])[0])
        raise ArgumentError(
            f"Expected column `{column}` of `edges` to have ids of nodes, but got {unknown.iloc[0]!r} in row {row + 1}."
        )
    return torch.tensor([position[name] for name in ends], dtype=torch.long)


def _features(table: pd.DataFrame) -> Tensor:
    """Return features: numbers as they are, words as one column of 0 and 1 for each value."""
    expect(len(table.columns) > 0, "features", "at least one column of `nodes`", "none")
    words = [name for name in table.columns if not pd.api.types.is_numeric_dtype(table[name])]
    for name in table.columns:
        empty = int(table[name].isna().sum())
        expect(empty == 0, "features", "columns without empty cells", f"{empty} empty cells in column {name!r}")
    wide = pd.get_dummies(table, columns=words, dtype=float)
    return torch.tensor(wide.to_numpy(dtype=float), dtype=torch.get_default_dtype())


def _set_masks(graph: Data, values: pd.Series[Any], column: str) -> None:
    """Set the masks that a split column names."""
    unknown = values[~values.isin(list(PARTS)) & values.notna()]
    got = None if unknown.empty else unknown.iloc[0]
    expect(unknown.empty, column, "`train`, `val`, `test` or nothing in each row", got)
    for part, mask in PARTS.items():
        graph[mask] = torch.from_numpy((values == part).to_numpy(dtype=bool, copy=True))


def _order(value: Any) -> tuple[bool, Any]:
    """Sort numbers before words."""
    return (True, value) if isinstance(value, str) else (False, value)
