"""Compares the algebra of a convolution with the convolution itself, on the edges that enter a few nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attree.attention.locality import same
from attree.faithfulness.exact.conv_arguments import ConvArguments
from attree.faithfulness.exact.lazy_rows import LazyRows
from attree.faithfulness.exact.sample import NODES
from attree.faithfulness.exact.trace import LayerTrace
from attree.subject.part_check import NotRowwiseError

ENTERING = 2048
"""Edges that a convolution itself runs on, about."""


def check_conv(trace: LayerTrace, given: ConvArguments, out: Tensor) -> None:
    """Compare a convolution's algebra with the convolution itself, on the edges that enter a few nodes.

    Args:
        trace: What the algebra computed.
        given: What the convolution was called with.
        out: The output that the algebra computed.
    """
    conv, layer = trace.algebra.conv, trace.graph
    count = min(NODES, layer.num_nodes)
    nodes = torch.linspace(0, layer.num_nodes - 1, count, device=layer.device).round().long()
    total = layer.entering.sizes[nodes].cumsum(0)
    nodes = nodes[total <= max(int(total[0]), ENTERING)]
    expected, known = (_run_on_types if layer.blocks is not None else _run_on_part)(trace, given, nodes)
    dtype = given.x.compact.dtype if isinstance(given.x, LazyRows) else given.x.dtype
    if not isinstance(expected, Tensor) or not same(out[known], expected, dtype):
        raise NotRowwiseError(f"its layer {type(conv).__name__} computes something else than its known arithmetic")


def _run_on_part(trace: LayerTrace, given: ConvArguments, nodes: Tensor) -> tuple[Any, Tensor]:
    """Run a convolution on the edges that enter some nodes; return its output for these nodes, and the nodes."""
    conv, enters = trace.algebra.conv, torch.isin(given.edge_index[1], nodes).nonzero().view(-1)
    edges = given.edge_index[:, enters]
    known = torch.cat([edges[0], nodes]).unique()
    features = {}
    if given.features is not None and trace.algebra.edge_argument is not None:
        features[trace.algebra.edge_argument] = rows_of(given.features, enters)
    out = type(conv).forward(conv, rows_of(given.x, known), torch.searchsorted(known, edges), **features)
    return (out[torch.searchsorted(known, nodes)] if isinstance(out, Tensor) else out), nodes


def _run_on_types(trace: LayerTrace, given: ConvArguments, nodes: Tensor) -> tuple[Any, Tensor]:
    """As `_run_on_part`, for a convolution of one relation or of several; nodes are its destinations."""
    conv, layer = trace.algebra.conv, trace.graph
    graph, blocks, types = layer.graph, layer.blocks, layer.graph.types
    assert blocks is not None
    assert types is not None
    first = 0 if len(blocks.targets) > 1 else types.nodes(blocks.inputs[blocks.targets[0]]).start
    asked = nodes + first
    edges, chosen = {}, {}
    for kind in blocks.relations:
        own, ends = graph.typed_edges[kind], [types.nodes(kind[0]).start, types.nodes(kind[2]).start]
        chosen[kind] = torch.isin(own[1] + ends[1], asked).nonzero().view(-1)
        edges[kind] = own[:, chosen[kind]] + torch.tensor(ends, device=own.device).view(2, 1)
    known = torch.cat([*(pair.view(-1) for pair in edges.values()), asked]).unique()
    of_type = {kind: known[types.type_of_nodes(known) == place] for place, kind in enumerate(types.node_types)}
    local = {
        kind: torch.stack([torch.searchsorted(of_type[side], pair[end]) for end, side in ((0, kind[0]), (1, kind[2]))])
        for kind, pair in edges.items()
    }
    x = [
        rows_of(rows, of_type[kind] - types.nodes(kind).start)
        for kind, rows in zip(blocks.inputs, given.inputs, strict=True)
    ]
    if given.types:
        found = type(conv).forward(conv, dict(zip(given.types, x, strict=True)), local)
        returned = [kind for kind in given.types if kind in found]
        out = torch.cat([found[kind] for kind in returned])
        of_rows = torch.cat([of_type[kind] for kind in returned])
    else:
        kind, features = blocks.relations[0], {}
        if given.features is not None and trace.algebra.edge_argument is not None:
            features[trace.algebra.edge_argument] = rows_of(given.features, chosen[kind])
        out = type(conv).forward(conv, x[0] if len(x) == 1 else tuple(x), local[kind], **features)
        of_rows = of_type[kind[2]]
    # Only at the nodes that were asked for are all edges there.
    kept = torch.isin(of_rows, asked).nonzero().view(-1)
    return out[kept], of_rows[kept] - first


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """Some rows, as an ordinary tensor."""
    return x.at(index).read() if isinstance(x, LazyRows) else x[index]
