"""Models that are known to be attention layers one after another, with nothing around them.

What others must be asked for by further passes over the whole graph is known of these: their outputs are those of
nodes, and nothing goes around their attention.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch_geometric.nn import GAT, BatchNorm, GATConv, GATv2Conv
from torch_geometric.nn.models.basic_gnn import BasicGNN

ROWWISE = (nn.ReLU, nn.ELU, nn.LeakyReLU, nn.PReLU, nn.SELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid)
"""Activations that treat each number alone."""


def is_plain_stack(model: Any) -> bool:
    """Whether each layer works on the output of the one before it and on nothing else, whatever the weights.

    A model of attree, or of a user, says so by its attribute `is_plain_stack`. PyG's `GAT` is one without jumping
    knowledge, residuals and norms over all nodes.

    >>> is_plain_stack(GAT(4, 8, 2, 3)), is_plain_stack(GAT(4, 8, 2, 3, jk="cat")), is_plain_stack(nn.Linear(4, 3))
    (True, False, False)
    """
    if getattr(model, "is_plain_stack", False):
        return True
    if type(model) is not GAT or type(model).forward is not BasicGNN.forward or "forward" in vars(model):
        return False
    has_skips = model.jk_mode is not None or any(getattr(conv, "residual", False) for conv in model.convs)
    is_known = all(type(conv) in (GATConv, GATv2Conv) for conv in model.convs)
    is_rowwise = model.act is None or type(model.act) in ROWWISE
    return is_known and is_rowwise and not has_skips and all(_is_rowwise_norm(norm) for norm in model.norms)


def _is_rowwise_norm(norm: Any) -> bool:
    """Whether a norm in eval mode treats each node alone."""
    return type(norm) is nn.Identity or (type(norm) is BatchNorm and norm.module.running_mean is not None)
