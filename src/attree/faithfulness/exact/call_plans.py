"""What the exact engine does for a chunk of reduced edges: the plan of each call of a layer, and of the outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from attree.faithfulness.exact.changed_rows import Changes, RowGroup, RowKeys, Variants


@dataclass(frozen=True)
class LaterPlan:
    """Update plan for a convolution whose input comes from earlier convolutions.

    *Senders* are the changed rows of its inputs, one input after another. For a heterogeneous graph, the senders that
    are sources are ordered by block, and the senders that are destinations by type (see `LayerGraph`).

    Attributes:
        senders: Positions of each input's changed rows among its rows; None if all of them changed.
        changes: The changed entries of the call's rows; their senders are positions among the senders that are sources.
        light: The changed entries of the rows that are updated.
        recomputed: Rows that are recomputed: their own features changed, or the reduced edge enters them.
        recomputed_sender: Position of the node of each such row among the senders that are destinations.
        unchanged: Mask of the recomputed rows whose own features did not change; their `recomputed_sender` is not
            read. None if all changed.
        groups: The recomputed rows in groups; None if the groups are formed when they are needed.
    """

    senders: tuple[Tensor | None, ...]
    changes: Changes
    light: Changes
    recomputed: Tensor
    recomputed_sender: Tensor
    unchanged: Tensor | None
    groups: list[RowGroup] | None


@dataclass(frozen=True)
class MessagePlan:
    """Update plan for a layer without attention that changed rows send messages to.

    Attributes:
        senders: Positions of the changed rows of the sources among their rows; None if all of them changed.
        has_new_features: Whether the features of senders changed; if not, only the weights of their messages did.
        sender_is_reached: Mask of the senders that the reduced edge enters.
        changes: The changed entries of the call's rows.
        moved: Rows whose own features changed.
        moved_sender: Position of the node of each such row among the changed rows of the destinations.
        targets: Like `senders`, for the destinations.
        first_copy: The first of the call's rows whose variant has a base.
        first_copied_entry: The first changed entry of such a row.
        reference: For each of these entries, the sender of the same node in the base; -1 if there is none. None if no
            variant has a base.
        reduced_reference: The same for the source of the reduced edge of each such row.
    """

    senders: Tensor | None
    has_new_features: bool
    sender_is_reached: Tensor
    changes: Changes
    moved: Tensor
    moved_sender: Tensor
    targets: Tensor | None
    first_copy: int
    first_copied_entry: int
    reference: Tensor | None = None
    reduced_reference: Tensor | None = None


class CopiedRows(NamedTuple):
    """Rows of a tensor that start from those of their base.

    Attributes:
        row: The rows.
        source: The row of the base for each of them.
    """

    row: Tensor
    source: Tensor


@dataclass(frozen=True)
class OutputRows:
    """Rows of one tensor that a call returns.

    Attributes:
        node: The destination of each row, in the call's numbering.
        among_records: Positions of the tensor's changed rows in the call's `records`; None if these are all records.
        place: Positions of these changed rows among all rows of the tensor; None if all rows change.
        copies: The rows of variants with a base; None if there are none.
    """

    node: Tensor
    among_records: Tensor | None
    place: Tensor | None
    copies: CopiedRows | None = None


@dataclass(frozen=True)
class RootRows:
    """Where the rows of a call's output find their nodes' own features among the rows of its input.

    Attributes:
        place: The rows that do; all others have recorded features.
        sender: The row of the input for each of these; None if no earlier call feeds it.
    """

    place: Tensor
    sender: Tensor | None


@dataclass(frozen=True)
class CallPlan:
    """Update plan for one call of a convolution.

    Attributes:
        records: The rows that change, with nodes in the call's numbering.
        outputs: The rows of each tensor that the call returns.
        later: The rest of the plan if the input comes from earlier convolutions; None if it is the model's input.
        messages: The same for a layer without attention.
        root: For a layer that reads its nodes' own features after its messages; else None.
    """

    records: RowKeys
    outputs: tuple[OutputRows, ...]
    later: LaterPlan | None
    messages: MessagePlan | None = None
    root: RootRows | None = None


@dataclass(frozen=True)
class ChunkPlan:
    """Update plan for a chunk of reduced edges.

    Attributes:
        variants: The variants of the network.
        calls: The plan of each call.
        rows: The rows of each family of stages.
        pairs: The pairs (target, edge) whose target changes.
        output_rows: The output row of each of these pairs.
        queries: For link outputs: the two ends of each pair's target as rows of the family that outputs read,
            [2, pairs], numbered within their types if there are several; else None.
        done: Number of finished pairs after this chunk.
    """

    variants: Variants
    calls: list[CallPlan]
    rows: list[RowKeys]
    pairs: Tensor
    output_rows: Tensor
    queries: Tensor | None
    done: int
