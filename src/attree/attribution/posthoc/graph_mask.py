"""GraphMask: learned gates that show which messages of each layer can be replaced by a constant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attree.attention.graph import Graph
from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attribution.pairs import Pairs
from attree.attribution.posthoc.frozen_model import Predictions, TrainedMethod, differentiable
from attree.errors import UnsupportedModelError, expect_int, expect_number
from attree.io.terminal import progress_bar
from attree.subject import ModelCall, Subject

LAMBDA_BOUNDS = (-2.0, 30.0)
# Parameters of the hard concrete distribution, as in GraphMask.
BETA, GAMMA, ZETA, LOCATION = 1 / 3, -0.2, 1.2, 2.0
MIN_WIDTH = 16


class GraphMask(TrainedMethod[Tensor]):
    r"""GraphMask (Schlichtkrull et al., 2021): gates that keep predictions with as few messages as possible.

    .. math:: \max_\lambda \min_{g, b} \; \alpha \sum_l \overline{P(z^{(l)} \neq 0)} + \mathrm{softplus}(\lambda)
        \, \overline{\max(0, -\log p_c(v) - \beta)}, \quad m_e^{(l)} \to z_e^{(l)} m_e^{(l)} + (1 - z_e^{(l)}) b^{(l)}

    The gate :math:`z_e^{(l)}` of edge :math:`e` in layer :math:`l` is drawn from a hard concrete distribution. A small
    network :math:`g^{(l)}` computes its location from the edge's message and the states of its two ends.
    :math:`b^{(l)}` is a learned constant, and :math:`c` is the class predicted for node :math:`v`. Layers are gated one
    after the other, the last one first. The gates are trained once, on all nodes (or graphs) together. An edge scores
    the mean over layers of the probability that its gate is open, the same for every target.

    PyG's `GraphMaskExplainer` has the same settings, but never trains its gates on attention layers: their states do
    not have the width that it expects, so its first step creates new gates that its optimiser does not know. It also
    passes every message through a norm and a ReLU, resets :math:`\lambda` in every step, and uses one head.

    Args:
        epochs: Steps for each layer.
        lr: Learning rate of Adam.
        penalty_scaling: :math:`\alpha`.
        allowance: :math:`\beta`.
        init_lambda: Initial value of :math:`\lambda`.
        lambda_lr: Learning rate of :math:`\lambda`.
        seed: Seed of the gates' networks and of the drawn gates.
    """

    name = "graph_mask"
    label = "GraphMask"

    def __init__(
        self,
        epochs: int = 100,
        lr: float = 0.01,
        penalty_scaling: float = 5.0,
        allowance: float = 0.03,
        init_lambda: float = 0.55,
        lambda_lr: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        expect_int(epochs, "epochs", 1)
        expect_number(lr, "lr", above=0)
        expect_number(penalty_scaling, "penalty_scaling", at_least=0)
        self.epochs = epochs
        self.lr = lr
        self.penalty_scaling = penalty_scaling
        self.allowance = expect_number(allowance, "allowance", at_least=0)
        self.init_lambda = expect_number(init_lambda, "init_lambda", at_least=0)
        self.lambda_lr = expect_number(lambda_lr, "lambda_lr", above=0)

    def fit(self, subject: Subject) -> Tensor:
        """Train a gate for each layer, and return the mean probability over layers that an edge's gate is open."""
        call = subject.call.changed(lambda _, value: differentiable(value))
        predictions = Predictions(subject)
        with gated_model(subject.model) as model:
            layers = model.record(call)
            gates = nn.ModuleList([MessageGate(layer).to(layer.messages) for layer in layers])
            self._train(model, call, layers, gates, predictions)
        with torch.no_grad():
            shares = [
                on_graph(subject.graph, layer.edges, open_probability(gate(layer)))
                for gate, layer in zip(gates, layers, strict=True)
            ]
        return torch.stack(shares).mean(dim=0)

    def _train(
        self,
        model: GatedModel,
        call: ModelCall,
        layers: list[LayerMessages],
        gates: nn.ModuleList,
        predictions: Predictions,
    ) -> None:
        """Train GraphMask's gates from the last layer to the first, with ascent on the Lagrange multiplier."""
        factor = torch.tensor(self.init_lambda, device=predictions.logits.device, requires_grad=True)
        ascent = torch.optim.RMSprop([factor], lr=self.lambda_lr, centered=True, maximize=True)
        with progress_bar(f"{self.label}, training", self.epochs * len(layers)) as advance:
            for first in reversed(range(len(layers))):
                optimizer = torch.optim.Adam(gates[first:].parameters(), lr=self.lr)
                for _ in range(self.epochs):
                    loss = self._loss(model, call, layers, gates, first, predictions, factor)
                    optimizer.zero_grad()
                    ascent.zero_grad()
                    loss.backward()
                    optimizer.step()
                    ascent.step()
                    with torch.no_grad():
                        factor.clamp_(*LAMBDA_BOUNDS)
                    advance(1)

    def _loss(
        self,
        model: GatedModel,
        call: ModelCall,
        layers: list[LayerMessages],
        gates: nn.ModuleList,
        first: int,
        predictions: Predictions,
        factor: Tensor,
    ) -> Tensor:
        """Return the loss with gates drawn in the layers from `first` on."""
        penalty = factor.new_zeros(())
        drawn_gates: list[tuple[MessageGate, Tensor] | None] = []
        for number, (gate, layer) in enumerate(zip(gates, layers, strict=True)):
            assert isinstance(gate, MessageGate)
            if number < first or layer.messages.numel() == 0:
                drawn_gates.append(None)
                continue
            logits = gate(layer)
            penalty = penalty + open_probability(logits).mean()
            drawn_gates.append((gate, draw_gates(logits)))
        all_rows = predictions.every
        loss = predictions.loss(predictions.read(model.run(call, drawn_gates), all_rows), all_rows)
        excess = F.relu(loss - self.allowance).mean()
        return self.penalty_scaling * penalty + F.softplus(factor) * excess

    def score(self, subject: Subject, fitted: Tensor, pairs: Pairs) -> Tensor:
        return fitted[pairs.edges]


def on_graph(graph: Graph, edges: Tensor, values: Tensor) -> Tensor:
    """Return values of a layer's edges as values of the graph's edges; self-loops that the layer lacks get 0."""
    if torch.equal(edges, graph.edge_index):
        return values
    proper = edges[0] != edges[1]
    place = torch.empty_like(edges[0])
    place[proper] = torch.arange(graph.num_proper_edges, device=edges.device)
    place[~proper] = graph.num_proper_edges + edges[0, ~proper]
    return values.new_zeros(graph.num_edges).scatter_reduce_(0, place, values, "amax")


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
        self._num_nodes = 0

    @torch.no_grad()
    def record(self, call: ModelCall) -> list[LayerMessages]:
        """Return the inputs and messages of every convolution, in the order of calls."""
        self._recorded, self._gates, self._call = [], [], 0
        self._num_nodes = call.num_nodes
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
        """Record messages, or gate them; those of a readout pass on."""
        if call.pools(self._num_nodes):
            return None
        number, self._call = self._call, self._call + 1
        if self._recorded is not None:
            x = call.features
            layer = LayerMessages(call.edges, x[0] if isinstance(x, tuple) else x, messages)
            has_states = (
                isinstance(layer.states, Tensor) and layer.states.dim() == 2 and layer.states.is_floating_point()
            )
            if not has_states or messages.shape[0] != layer.edges.shape[1]:
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
