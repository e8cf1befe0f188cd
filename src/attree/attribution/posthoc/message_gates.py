"""Gates for GraphMask that pass a layer's messages or replace them by a learned constant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attree.attention.instrument import LayerCall, Watcher, instrument
from attree.errors import UnsupportedModelError
from attree.subject import ModelCall

# Parameters of the hard concrete distribution, as in GraphMask.
BETA, GAMMA, ZETA, LOCATION = 1 / 3, -0.2, 1.2, 2.0
MIN_WIDTH = 16


@dataclass
class LayerMessages:
    """Inputs of a gate, from one call of a convolution.

    Attributes:
        edges: The edges that messages were sent along, [2, edges].
        states: Input of the call for each node, [num_nodes, channels].
        messages: The messages, [edges, ...].
    """

    edges: Tensor
    states: Tensor
    messages: Tensor


class MessageGate(nn.Module):
    """Computes the gate of each edge of one layer, from the states of its two nodes and its message.

    Args:
        layer: Inputs of the gate, which set its widths.
    """

    def __init__(self, layer: LayerMessages) -> None:
        super().__init__()
        message = layer.messages.flatten(1).shape[1]
        states, width = layer.states.shape[1], max(message, MIN_WIDTH)
        self.source = nn.Sequential(nn.Linear(states, width, bias=False), nn.LayerNorm(width))
        self.destination = nn.Sequential(nn.Linear(states, width, bias=False), nn.LayerNorm(width))
        self.message = nn.Sequential(nn.Linear(message, width, bias=False), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.out = nn.Linear(width, 1)
        bound = 1 / math.sqrt(message)
        self.constant = nn.Parameter(torch.empty(layer.messages.shape[1:]).uniform_(-bound, bound))

    def forward(self, layer: LayerMessages) -> Tensor:
        """Return the logit of each edge's gate."""
        parts = self.source(layer.states)[layer.edges[0]] + self.destination(layer.states)[layer.edges[1]]
        parts = parts + self.message(layer.messages.flatten(1))
        return self.out(F.relu(parts / 3 + self.bias)).view(-1) + LOCATION

    def apply_to(self, messages: Tensor, gate: Tensor) -> Tensor:
        """Return each edge's message m as g m + (1 - g) c, with gate g and the learned constant c."""
        gate = gate.view(-1, *[1] * (messages.dim() - 1))
        return gate * messages + (1 - gate) * self.constant


def open_probability(logits: Tensor) -> Tensor:
    """Return the probability that a gate is not closed."""
    return torch.sigmoid(logits - BETA * math.log(-GAMMA / ZETA))


def draw_gates(logits: Tensor) -> Tensor:
    """Draw gates from the hard concrete distribution: 0 or 1, with the gradients of the soft gate."""
    noise = torch.empty_like(logits).uniform_(1e-6, 1 - 1e-6)
    soft = torch.sigmoid((noise.log() - (1 - noise).log() + logits) / BETA)
    soft = (soft * (ZETA - GAMMA) + GAMMA).clamp(0, 1)
    return soft + ((soft > 0.5).to(soft.dtype) - soft).detach()


class GatedModel(Watcher):
    """A model whose messages can be recorded and gated, call by call; created by `gated_model`."""

    def __init__(self) -> None:
        self._recorded: list[LayerMessages] | None = None
        self._gates: list[tuple[MessageGate, Tensor] | None] = []
        self._call = 0

    @torch.no_grad()
    def record(self, call: ModelCall) -> list[LayerMessages]:
        """Return the inputs and messages of every convolution, in the order of calls."""
        self._recorded, self._gates, self._call = [], [], 0
        try:
            call.run()
            return self._recorded
        finally:
            self._recorded = None

    def run(self, call: ModelCall, gates: list[tuple[MessageGate, Tensor] | None]) -> Any:
        """Return the model's output with gated messages.

        Args:
            call: The call of the model.
            gates: For each call of a convolution, its gate and the gate's value at each edge; None leaves it ungated.
        """
        self._gates, self._call = gates, 0
        return call.run()

    def messages(self, call: LayerCall, messages: Tensor) -> Tensor | None:
        """Record messages, or gate them."""
        number, self._call = self._call, self._call + 1
        if self._recorded is not None:
            x = call.features
            layer = LayerMessages(call.edges, x[0] if isinstance(x, tuple) else x, messages)
            known = isinstance(layer.states, Tensor) and layer.states.dim() == 2 and layer.states.is_floating_point()
            if not known or messages.shape[0] != layer.edges.shape[1]:
                raise UnsupportedModelError(
                    f"Expected {type(call.conv).__name__} to take states [nodes, channels] and to send one message "
                    "along each edge, because GraphMask's gates read both, but it does not."
                )
            self._recorded.append(layer)
            return None
        gated = self._gates[number]
        return None if gated is None else gated[0].apply_to(messages, gated[1])


@contextmanager
def gated_model(model: nn.Module) -> Iterator[GatedModel]:
    """Context in which the returned model records and gates the messages of `model`."""
    gated = GatedModel()
    with instrument(model, gated):
        yield gated
