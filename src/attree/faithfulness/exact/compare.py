"""Comparisons that a model must pass before it is run on rows."""

from __future__ import annotations

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.faithfulness.exact.layer_edges import ConvArguments
from attree.faithfulness.exact.lazy_rows import LazyRows
from attree.faithfulness.exact.refusal import CannotTakeApartError
from attree.faithfulness.exact.sample import spread_nodes
from attree.faithfulness.exact.trace import LayerTrace

ENTERING = 2048
"""Edges that a convolution itself runs on, about."""


def check_conv(trace: LayerTrace, given: ConvArguments, out: Tensor, graph: Graph) -> None:
    """Compare a convolution's algebra with the convolution itself, on the edges that enter a few nodes.

    Args:
        trace: What the algebra computed.
        given: What the convolution was called with.
        out: What it is said to return.
        graph: The looped graph.
    """
    conv, nodes = trace.algebra.conv, spread_nodes(graph)
    total = graph.entering.sizes[nodes].cumsum(0)
    nodes = nodes[total <= max(int(total[0]), ENTERING)]
    enters = torch.isin(given.edge_index[1], nodes).nonzero().view(-1)
    edges = given.edge_index[:, enters]
    known = torch.cat([edges[0], nodes]).unique()
    features = {}
    if given.features is not None and trace.algebra.edge_argument is not None:
        features[trace.algebra.edge_argument] = rows_of(given.features, enters)
    x = rows_of(given.x, known)
    expected = type(conv).forward(conv, x, torch.searchsorted(known, edges), **features)
    dtype = given.x.compact.dtype if isinstance(given.x, LazyRows) else x.dtype
    place = torch.searchsorted(known, nodes)
    if not isinstance(expected, Tensor) or not same(out[nodes], expected[place], dtype):
        raise CannotTakeApartError(f"its layer {type(conv).__name__} computes something else than that layer does")


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """Some rows, as an ordinary tensor."""
    return x.at(index).read() if isinstance(x, LazyRows) else x[index]


def same(got: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether numbers are equal up to rounding in a type."""
    scale = max(float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max()) if expected.numel() else 0.0, 1.0)
    tolerance = torch.finfo(dtype).eps ** 0.5 * scale
    return got.shape == expected.shape and torch.allclose(got, expected, rtol=0.0, atol=tolerance, equal_nan=True)
