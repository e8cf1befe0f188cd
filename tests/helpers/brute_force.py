"""One full forward pass per reduced edge, written from the formulas with dense matrices in float64.

Nothing of attree computes here: parameters are read from the convolutions, edges are a list that ends with one
self-loop per node, and each score, softmax and sum is spelled out.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit
from torch import Tensor, nn


def numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def leaky(z: np.ndarray) -> np.ndarray:
    return np.where(z > 0, z, 0.2 * z)


def scores_of(conv: nn.Module, h: np.ndarray, source: np.ndarray, destination: np.ndarray) -> tuple[np.ndarray, ...]:
    """Scores [edges, heads] and the values [nodes, heads, channels] that are summed."""
    heads, channels = conv.heads, conv.out_channels

    def linear(layer: nn.Module) -> np.ndarray:
        out = h @ numbers(layer.weight).T
        if layer.bias is not None:
            out = out + numbers(layer.bias)
        return out.reshape(-1, heads, channels)

    kind = type(conv).__name__
    if kind == "GATv2Conv":
        left, right = linear(conv.lin_l), linear(conv.lin_r)
        return (leaky(left[source] + right[destination]) * numbers(conv.att)).sum(-1), left
    value = linear(conv.lin)
    if kind == "GATConv":
        at_source, at_destination = value * numbers(conv.att_src), value * numbers(conv.att_dst)
        return leaky(at_source.sum(-1)[source] + at_destination.sum(-1)[destination]), value
    dot = (value[source] * value[destination]).sum(-1)
    if conv.attention_type == "SD":
        return leaky(dot / math.sqrt(channels)), value
    linear_part = (value[source] * numbers(conv.att_l) + value[destination] * numbers(conv.att_r)).sum(-1)
    return leaky(linear_part * expit(dot)), value


def forward(
    net: nn.Module, x: Tensor, edges: list[tuple[int, int]], reduced: int | None, protocol: object
) -> np.ndarray:
    """Class scores of every node with one edge reduced in every layer and head."""
    h = numbers(x)
    source, destination = np.array(edges).T
    for number, conv in enumerate(net.convs):
        scores, value = scores_of(conv, h, source, destination)
        if reduced is not None and str(protocol) == "coefficient":
            scores[reduced] = 0.0
        if reduced is not None and str(protocol) == "removal":
            scores[reduced] = -np.inf
        out = np.zeros_like(value)
        for node in range(len(h)):
            rows = np.flatnonzero(destination == node)
            for head in range(conv.heads):
                row = scores[rows, head]
                if np.isneginf(row).all():
                    continue
                weights = np.exp(row - row.max())
                weights /= weights.sum()
                if str(protocol) == "weight":
                    weights[rows == reduced] = 0.0
                out[node, head] = weights @ value[source[rows], head]
        h = out.reshape(len(out), -1) if conv.concat else out.mean(1)
        if conv.bias is not None:
            h = h + numbers(conv.bias)
        if number < len(net.convs) - 1:
            h = np.where(h > 0, h, np.expm1(np.minimum(h, 0)))
    return h


def probabilities(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def measures(before: np.ndarray, after: np.ndarray) -> tuple[float, float, bool]:
    """dPC, dNE and dP of two rows of probabilities, as the paper defines them."""
    k = int(before.argmax())
    negative_entropy = [float(sum(p * math.log(p) for p in row if p > 0)) for row in (before, after)]
    return float(before[k] - after[k]), negative_entropy[0] - negative_entropy[1], int(after.argmax()) != k
