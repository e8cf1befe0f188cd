"""The paper authors' own trained weights, read from plain arrays."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from attree.data.datasets.arrays import load_arrays
from attree.errors import MissingDataError, expect
from attree.models.attention_net import GAT


def load_authors_gat(path: str | Path) -> GAT:
    """Build the single-head GAT whose weights `path` holds (`gatt_paper/gat_*.npz`), in eval mode.

    Layer k has the arrays `layer{k}.weight` [out, in], `layer{k}.att_src` and `layer{k}.att_dst` [1, 1, out], and
    `layer{k}.bias` [out] if it has a bias.
    """
    remedy = "Set `path` to one of the files `gatt_paper/gat_*.npz`, which hold the paper authors' weights."
    stored = load_arrays(Path(path), remedy)
    num_layers = sum(name.endswith(".weight") for name in stored)
    expect(num_layers >= 1, "path", "a file with arrays named layer0.weight, ...", sorted(stored))
    try:
        return _build({name: torch.from_numpy(array) for name, array in stored.items()}, num_layers).eval()
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise MissingDataError(f"The file {path} does not hold the weights of a GAT. {remedy}") from error


def _build(arrays: dict[str, Tensor], num_layers: int) -> GAT:
    first, last = arrays["layer0.weight"], arrays[f"layer{num_layers - 1}.weight"]
    net = GAT(
        in_channels=first.shape[1],
        out_channels=last.shape[0],
        hidden_channels=first.shape[0],
        num_layers=num_layers,
        bias="layer0.bias" in arrays,
    )
    net.load_state_dict(
        {
            f"convs.{name.removeprefix('layer').replace('.weight', '.lin.weight')}": array
            for name, array in arrays.items()
        }
    )
    return net
