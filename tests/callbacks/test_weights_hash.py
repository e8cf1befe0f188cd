"""A hash of weights tells any two states of a network apart, and costs no copy of them."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from attree.callbacks import call_state
from attree.callbacks.call_state import hash_weights

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [3, 2**22])
def test_each_changed_entry_changes_the_hash(dtype: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_state, "CHUNK", chunk)
    weights = (torch.arange(12) % 2).to(dtype).view(3, 4)
    states = [weights]
    for place in range(12):
        changed = weights.clone()
        changed.view(-1)[place] = (changed.view(-1)[place] == 0).to(dtype)
        states.append(changed)
    states += [weights.flip(0, 1), weights.roll(1, 1)[:, :3], weights[:0], weights.view(4, 3)]
    distinct = [weights]
    for state in states[1:]:  # a flip of a pattern may be the pattern
        if not any(state.shape == other.shape and torch.equal(state, other) for other in distinct):
            distinct.append(state)
    hashes = [tuple(hash_weights({"w": state}).items()) for state in distinct]
    assert len(distinct) > 13
    assert len(set(hashes)) == len(hashes)
    assert hash_weights({"w": weights.clone()}) == hash_weights({"w": weights, "extra": "no tensor"})


def test_swaps_and_signs_and_names_are_seen() -> None:
    weights = torch.randn(40, generator=torch.Generator().manual_seed(0))
    seen = {tuple(hash_weights({"w": weights}).values())}
    for first, second in itertools.combinations(range(40), 2):
        swapped = weights.clone()
        swapped[[first, second]] = swapped[[second, first]]
        seen.add(tuple(hash_weights({"w": swapped}).values()))
    assert len(seen) == 1 + 40 * 39 // 2
    assert hash_weights({"w": torch.tensor([0.0])}) != hash_weights({"w": torch.tensor([-0.0])})
    assert hash_weights({"w": weights}) != hash_weights({"v": weights})


def test_a_network_that_has_diverged_equals_itself() -> None:
    diverged: Tensor = torch.tensor([float("nan"), float("inf"), -1.0])
    assert hash_weights({"w": diverged}) == hash_weights({"w": diverged.clone()})
    assert all(isinstance(value, int) for value in hash_weights({"w": diverged}).values())  # no tensor is kept
