"""What some reduced edges do, call by call: the parts of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attree.faithfulness.exact.records import Changes, Records
from attree.faithfulness.exact.row_groups import RowGroup


@dataclass(frozen=True)
class LaterPlan:
    """How a call changes that other calls feed.

    Attributes:
        senders: Where the rows of its input that changed stand among all; None if they are all.
        changes: The changed entries of its rows; senders are positions among those rows.
        light: Those of rows whose own features are as they were.
        own: Rows whose own features changed.
        own_sender: For each of these, the position of its node among the senders.
        groups: These rows in groups, to be computed anew; None if they are to be found when they are needed.
    """

    senders: Tensor | None
    changes: Changes
    light: Changes
    own: Tensor
    own_sender: Tensor
    groups: list[RowGroup] | None


@dataclass(frozen=True)
class CallPlan:
    """How one call changes.

    Attributes:
        records: The changed rows.
        place: Where they stand among the rows of what the call returns; None if they are all.
        later: More, if other calls feed it.
    """

    records: Records
    place: Tensor | None
    later: LaterPlan | None


@dataclass(frozen=True)
class ChunkPlan:
    """What some reduced edges do, and which pairs they belong to.

    Attributes:
        edges: The reduced edges.
        calls: What each call does.
        rows: The rows that each family of stages has.
        pairs: Pairs whose target is reached.
        targets: The targets of these.
        found: For each of them, its row in the output.
        done: Pairs that are done with when this chunk is.
    """

    edges: Tensor
    calls: list[CallPlan]
    rows: list[Records]
    pairs: Tensor
    targets: Tensor
    found: Tensor
    done: int
