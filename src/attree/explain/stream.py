"""Write the parts of a dataset that are this process's and not there yet, one by one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pyarrow as pa

from attree.attribution.posthoc.progress_bar import progress_bar
from attree.explain.parts import PartFolder


def write_parts(parts: PartFolder, bounds: list[tuple[int, int]], table: Callable[[int, int], pa.Table]) -> int:
    """Write what is missing, while a bar in the first process counts targets and tells the time left.

    Memory is that of one part: it is dropped before the next is made.

    Args:
        parts: The folder.
        bounds: Which targets make each part.
        table: Gives the rows of targets `begin` to `end`.

    Returns:
        How many parts were written.
    """
    missing = parts.missing()
    total = sum(end - begin for begin, end in (bounds[number] for number in missing))
    bar = progress_bar("Explaining", total) if parts.share.rank == 0 else nullcontext(lambda done: None)
    with bar as advance:
        for number in missing:
            begin, end = bounds[number]
            parts.write(number, table(begin, end))
            advance(end - begin)
    return len(missing)
