"""Save and restore the state of all random generators, for checkpoints and for reading data without side effects."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

T = TypeVar("T")

RandomState = dict[str, Any]


def collect_random_states(world_size: int) -> list[RandomState]:
    """Return the states of torch's, CUDA's, NumPy's and Python's generators in every process, by rank.

    All processes must call this together, because each has its own state.
    """
    state = _collect()
    if world_size == 1 or not (dist.is_available() and dist.is_initialized()):
        return [state]
    states: list[RandomState] = [{}] * world_size
    dist.all_gather_object(states, state)
    return states


def restore_random_states(states: Sequence[RandomState], rank: int, world_size: int) -> None:
    """Restore all generators of this process from collected states.

    With the same number of processes, each restores its own state. With another number, no exact continuation exists:
    the first process restores the first state, and each other seeds itself from that state and its rank.
    """
    if len(states) == world_size:
        _restore(states[rank])
        return
    _restore(states[0])
    if rank > 0:
        seed = int(torch.randint(2**31, ())) + rank
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)


def _collect() -> RandomState:
    """Return the states of the random generators of PyTorch, of this process's GPU, of NumPy and of Python."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        # Only this process's device: to read the state of others would allocate memory on each.
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        "numpy": [str(kind), np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(internal), gauss_next],
    }


def _restore(state: RandomState) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))


@contextmanager
def unchanged_random_states(loaders: Any = None) -> Iterator[None]:
    """Leave all random generators as they were before the block.

    Args:
        loaders: Loaders that the block reads, in lists or by name: their own generators are left unchanged too.
    """
    before = _collect()
    of_loaders = {id(generator): (generator, generator.get_state()) for generator in _generators(loaders)}
    try:
        yield
    finally:
        _restore(before)
        for generator, state in of_loaders.values():
            generator.set_state(state)


def _generators(loaders: Any) -> Iterator[torch.Generator]:
    """Yield the generators of loaders and of their samplers."""
    if isinstance(loaders, Mapping | list | tuple):
        for loader in loaders.values() if isinstance(loaders, Mapping) else loaders:
            yield from _generators(loader)
        return
    for holder in (loaders, getattr(loaders, "sampler", None), getattr(loaders, "batch_sampler", None)):
        if isinstance(generator := getattr(holder, "generator", None), torch.Generator):
            yield generator


def seeded_apart(seed: int, read: Callable[[], T]) -> T:
    """Call a function with its own random seed, and leave all random generators as they were before."""
    with unchanged_random_states():
        torch.default_generator.manual_seed(seed)  # only the CPU's: this must not initialise devices
        np.random.seed(seed % 2**32)
        random.seed(seed)
        return read()
