"""Keep what `attree predict` predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from attree.errors import UnsupportedModelError
from attree.io.files import write_npz


def save_predictions(batches: Sequence[Any], path: Path) -> Path:
    """Write the class probabilities of all nodes or graphs, in the order of the data, to a plain `.npz` archive.

    It holds `index` [n], the node or graph; `predicted` [n], the most probable class; `probabilities` [n, classes].

    Args:
        batches: What `predict_step` returned for each batch: class probabilities, one row for each node or graph.
        path: The file.
    """
    for batch in batches:
        shape = list(batch.shape) if isinstance(batch, torch.Tensor) else []
        if len(shape) != 2:
            raise UnsupportedModelError(
                "Expected `predict_step` of the model to return class probabilities of shape [n, classes], but got "
                f"{type(batch).__name__}{shape or ''}."
            )
    probabilities = torch.cat(list(batches)).float().cpu()
    index = torch.arange(len(probabilities))
    return write_npz(
        path,
        index=index.numpy(),
        predicted=probabilities.argmax(dim=-1).numpy(),
        probabilities=probabilities.numpy(),
    )
