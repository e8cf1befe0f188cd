"""What a network's output does when an edge's attention is reduced."""

from attree.faithfulness.choose import make_reducer, reduce_attention
from attree.faithfulness.copies.reducer import CopiesReducer
from attree.faithfulness.deletion import delete_edges
from attree.faithfulness.exact.reducer import ExactReducer
from attree.faithfulness.protocol import (
    DEFAULT_PROTOCOLS,
    PROTOCOLS,
    Protocol,
    Protocols,
    check_protocols,
    protocol_names,
    resolve_protocol,
    resolve_protocols,
)
from attree.faithfulness.reduction import Reduction

__all__ = [
    "DEFAULT_PROTOCOLS",
    "PROTOCOLS",
    "CopiesReducer",
    "ExactReducer",
    "Protocol",
    "Protocols",
    "Reduction",
    "check_protocols",
    "delete_edges",
    "make_reducer",
    "protocol_names",
    "reduce_attention",
    "resolve_protocol",
    "resolve_protocols",
]
