"""How modules with attention over all nodes compute: the weights and values of a call, read by the class of module.

A module that attends over all nodes works on a dense batch, as `to_dense_batch` makes it: place k of graph b holds the
k-th node of that graph. The output of such a module is `finish(weights.mix(values))`. A reader returns these three for
one call. Readers exist for `torch.nn.MultiheadAttention` (also inside `torch.nn.TransformerEncoderLayer` and PyG's
`GPSConv`) and for PyG's linear attentions; `register_global_attention` adds one for a module of your own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, SGFormerAttention

from attree.attention.global_weight_matrices import DenseWeights, GlobalWeights, KernelWeights
from attree.errors import expect


@dataclass(frozen=True)
class Mixing:
    """One call of a module that attends over all nodes.

    Attributes:
        weights: The weights of all pairs.
        values: What the weights mix, [B, n, heads, channels].
        finish: Returns the output of the module, [B, n, channels], for the mixed values.
        mask: Which places hold nodes, [B, n]; None if the call has no mask.
    """

    weights: GlobalWeights
    values: Tensor
    finish: Callable[[Tensor], Tensor]
    mask: Tensor | None = None


Reader = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], "Mixing | None"]
"""Called as `reader(module, args, kwargs, output)` after a call; returns None if it is no attention over all nodes."""


def read_multihead(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Mixing | None:
    """Read self-attention; the weights are those that the module returns with `need_weights`."""
    assert isinstance(module, nn.MultiheadAttention)
    query, key, value = (_argument(args, kwargs, place, name) for place, name in enumerate(("query", "key", "value")))
    weights = output[1]
    is_self = query is key or (query.shape == key.shape and torch.equal(query, key))
    if not is_self or key.shape != value.shape or query.dim() != 3 or weights is None or weights.dim() != 4:
        return None
    if weights.shape[-1] != weights.shape[-2]:  # `bias_k` or `add_zero_attn` add keys that are no nodes
        return None
    values = value if module.batch_first else value.transpose(0, 1)
    heads, channels = module.num_heads, module.embed_dim
    has_one = module.in_proj_weight is not None  # otherwise there is one projection each
    projection = module.in_proj_weight[2 * channels :] if has_one else module.v_proj_weight
    bias = None if module.in_proj_bias is None else module.in_proj_bias[2 * channels :]
    values = F.linear(values, projection, bias).unflatten(-1, (heads, -1))

    def finish(mixed: Tensor) -> Tensor:
        finished: Tensor = module.out_proj(mixed.flatten(2))
        return finished if module.batch_first else finished.transpose(0, 1)

    padding = _argument(args, kwargs, 3, "key_padding_mask")
    mask = None
    if padding is not None:
        mask = ~padding if padding.dtype == torch.bool else padding == 0
    return Mixing(DenseWeights(weights.nan_to_num(0.0)), values, finish, mask)


def read_sgformer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Mixing:
    """Read SGFormer's attention: queries and keys of length 1, signed weights, and each node added n times."""
    assert isinstance(module, SGFormerAttention)
    x, mask = _argument(args, kwargs, 0, "x"), _argument(args, kwargs, 1, "mask")
    shape = (module.heads, module.head_channels)
    queries, keys, values = (lin(x).unflatten(-1, shape) for lin in (module.q, module.k, module.v))
    queries, keys = (F.normalize(part.where(part != 0, 1e-6), dim=-1, eps=0.0) for part in (queries, keys))
    values = _masked(values, mask, (2, 3))
    weights = KernelWeights(queries, keys, to_itself=float(x.shape[1]))
    return Mixing(weights, values, lambda mixed: mixed.mean(dim=2), mask)


def read_performer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Mixing:
    """Read Performer's attention: positive random features of queries and keys."""
    assert isinstance(module, PerformerAttention)
    x, mask = _argument(args, kwargs, 0, "x"), _argument(args, kwargs, 1, "mask")
    shape = (module.heads, module.head_channels)
    queries, keys, values = (lin(x).unflatten(-1, shape) for lin in (module.q, module.k, module.v))
    projection, kernel = module.fast_attn.projection_matrix.t().to(x.dtype), module.fast_attn.kernel
    queries, keys = (kernel(part @ projection) + 0.001 for part in (queries, keys))
    weights = KernelWeights(queries, keys)
    return Mixing(weights, _masked(values, mask, (2, 3)), lambda mixed: module.attn_out(mixed.flatten(2)), mask)


def read_polynormer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Mixing:
    """Read Polynormer's attention: sigmoids of queries and keys; the product with each node's own state follows."""
    assert isinstance(module, PolynormerAttention)
    x, mask = _argument(args, kwargs, 0, "x"), _argument(args, kwargs, 1, "mask")
    shape = (module.head_channels, module.heads)
    keys, values = (lin(x).unflatten(-1, shape).transpose(2, 3) for lin in (module.k, module.v))
    keys = keys.sigmoid()
    queries = keys if module.qk_shared else module.q(x).unflatten(-1, shape).transpose(2, 3).sigmoid()

    def finish(mixed: Tensor) -> Tensor:
        normed = module.lns(mixed.transpose(2, 3).flatten(2))
        finished: Tensor = module.lin_out(normed * (module.h_lins(x) + module.beta)).relu()
        return finished

    return Mixing(KernelWeights(queries, keys, epsilon=1e-6), _masked(values, mask, (2, 3)), finish, mask)


_READERS: dict[type[nn.Module], Reader] = {
    nn.MultiheadAttention: read_multihead,
    SGFormerAttention: read_sgformer,
    PerformerAttention: read_performer,
    PolynormerAttention: read_polynormer,
}
"""The reader of each class; subclasses use that of their nearest base, and are checked like all."""


def register_global_attention(kind: type[nn.Module], reader: Reader) -> None:
    """Teach attree to read a module of your own that attends over all nodes: the one place to do so.

    For a Graphormer-like layer with a bias, or an Exphormer-like one with a softmax of its own:

    .. code-block:: python

        def read(module, args, kwargs, output):
            x, mask = args                                            # a dense batch, [B, n, channels]
            weights = module.weights_of(x, mask)                      # [B, heads, n, n]: query, then key
            values = module.v(x).unflatten(-1, (module.heads, -1))    # [B, n, heads, channels]
            return Mixing(DenseWeights(weights), values, lambda mixed: module.out(mixed.flatten(2)), mask)

        register_global_attention(MyAttention, read)

    `ListedWeights` holds the weights of listed pairs instead of a matrix, `KernelWeights` those of a linear attention.
    In every pass, `finish(weights.mix(values))` is compared with the output; a reader that computes something else is
    refused.

    Args:
        kind: The class of the module.
        reader: Called as `reader(module, args, kwargs, output)` after each call; returns a `Mixing`, or None for a call
            that is no attention over all nodes.
    """
    expect(isinstance(kind, type) and issubclass(kind, nn.Module), "kind", "a class of modules", kind)
    expect(callable(reader), "reader", "a function of a module, its arguments and its output", reader)
    _READERS[kind] = reader


def reader_of(module: nn.Module) -> Reader | None:
    """Return the reader of a module's class; None if it is not known as attention over all nodes."""
    return next((_READERS[kind] for kind in type(module).__mro__ if kind in _READERS), None)


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if place < len(args) else kwargs.get(name)


def _masked(values: Tensor, mask: Tensor | None, added: tuple[int, ...]) -> Tensor:
    if mask is None:
        return values
    for dim in added:
        mask = mask.unsqueeze(dim)
    return values.masked_fill(~mask, 0.0)
