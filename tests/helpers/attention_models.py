"""A small graph and models on it, for tests of what is captured from attention and what is refused."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
CLEAN = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
MESSY = torch.tensor([[0, 1, 1, 2, 3, 0, 4, 1], [1, 1, 2, 3, 4, 1, 0, 1]])  # loops, duplicates, node 5 isolated


class Stack(nn.Module):
    """Convolutions one after the other, with dropout in between."""

    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, edge_index: Tensor, **kwargs: Any) -> Tensor:
        for conv in self.convs:
            x = F.elu(self.dropout(conv(x, edge_index, **kwargs)))
        return x


class OwnConv(MessagePassing):
    """A user's own attention convolution."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * softmax((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)


def snapshot(model: nn.Module) -> list[Any]:
    """Everything a capture could leave behind."""
    state: list[Any] = []
    for module in model.modules():
        hooks = {name: len(value) for name, value in vars(module).items() if name.endswith("_hooks")}
        state.append((module.training, sorted(vars(module)), hooks, vars(type(module)).get("message")))
    for parameter in model.parameters():
        state.append((parameter.requires_grad, parameter.grad, parameter.detach().clone().tolist()))
    return state
