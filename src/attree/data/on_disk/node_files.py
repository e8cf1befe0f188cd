"""Files with one row per node, read piece by piece: `.npy`, Parquet, CSV, and OGB's raw files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from attree.data.on_disk.array_files import ArrayFile
from attree.errors import MissingDataError, expect

ROWS = 2**16
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
            yield from ArrayFile(self.path).pieces(ROWS)
        elif self.kind == "ids":
            mask = np.zeros(self.stated or 0, dtype=bool)
            for frame in self._frames():
                mask[frame.to_numpy().reshape(-1)] = True
            yield mask
        else:
            for frame in self._frames():
                values = frame.to_numpy()
                if self.kind == "labels":
                    yield np.where(np.isnan(values), -1, values).reshape(-1).astype(np.int64)
                else:
                    yield values.astype(np.float32) if values.shape[1] > 1 or values.dtype.kind == "f" else values[:, 0]

    def _frames(self) -> Iterator[pd.DataFrame]:
        try:
            if self.path.suffix == ".parquet":
                import pyarrow.parquet as pq

                for batch in pq.ParquetFile(self.path).iter_batches(ROWS):
                    yield batch.to_pandas()
            else:
                # As OGB reads it: other parsers of decimal numbers differ in the last digit.
                yield from pd.read_csv(self.path, header=None, chunksize=ROWS)
        except (OSError, ValueError, EOFError) as error:
            raise MissingDataError(
                f"Expected {self.path} to hold numbers of nodes, but it does not ({error})."
            ) from error


def ogb_nodes(source: Path) -> dict[str, NodeFile]:
    """Return the attributes of nodes in a folder of OGB's raw files, and the masks of its split."""
    counts = [int(number) for frame in NodeFile(source / OGB_FILES[1])._frames() for number in frame[0]]
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
