"""A network whose parts a function runs, in whichever shape of wiring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
)

from helpers.attention_models import MESSY


class Net(nn.Module):
    """Three convolutions of equal width, combined as a test says."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second, self.third = (GATConv(4, 4) for _ in range(3))
        self.run = run

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.run(self, x, edge_index)


def weights_of(conv: GATConv, x: Tensor) -> Tensor:
    return conv(x, MESSY, return_attention_weights=True)[1][1]
