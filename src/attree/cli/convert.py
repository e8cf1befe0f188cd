"""The command `attree convert`: write a dataset as a folder that is read from disk."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from attree.data.on_disk import Conversion, convert
from attree.errors import ArgumentError
from attree.io.processes import stop_status, terminate_as_interrupt
from attree.io.terminal import linked, plain_console


def convert_dataset(
    source: Path,
    folder: Path,
    columns: Sequence[str],
    nodes: Sequence[str],
    num_nodes: int | None,
    undirected: bool,
    half: bool,
    name: str | None,
    memory: int,
) -> int:
    """Convert a dataset, and return the exit status.

    Args:
        source: A PyG graph or dataset (`.pt`), a folder of OGB's raw files, or Parquet or CSV files of edges.
        folder: The folder to write.
        columns: Columns of source and destination, and of features of edges.
        nodes: Files with an attribute of all nodes, as NAME=FILE.
        num_nodes: Number of nodes; None for that of the attributes, or the largest id.
        undirected: Whether to add the reverse of every edge.
        half: Whether to write features as float16.
        name: Name of the dataset.
        memory: MiB of memory for sorting.
    """
    files = {}
    for text in nodes:
        attribute, equals, path = text.partition("=")
        if not equals or not attribute.isidentifier():
            raise ArgumentError(f"Expected argument `nodes` to be NAME=FILE, such as x=features.npy, but got {text!r}.")
        files[attribute] = Path(path)
    conversion = Conversion(source, folder, tuple(columns), files, num_nodes, undirected, half, name, memory * 2**20)
    try:
        with terminate_as_interrupt():
            graph = convert(conversion)
    except KeyboardInterrupt as stop:
        print("attree: stopped. Run the same command again to continue.", file=sys.stderr)
        return stop_status(stop)
    console = plain_console(soft_wrap=True)
    counts = f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.bytes / 2**20:,.0f} MiB"
    attributes = ", ".join(graph.attributes) or "no attributes"
    console.print(Text.assemble("Graph: ", linked(folder), f" ({counts}: {attributes})"))
    return 0
