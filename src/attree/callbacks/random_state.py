"""The state of all random generators that training draws from, as plain values that a checkpoint can hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def collect_random_state() -> dict[str, Any]:
    """The present state of torch's, CUDA's, NumPy's and Python's generators."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
        "numpy": [str(kind), np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(internal), gauss_next],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Continue all generators from a collected state."""
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
