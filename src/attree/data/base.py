"""Base class of datasets: a name, sizes that are known in advance, recorded arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule

from attree.data.counts import Counts, HeteroCounts
from attree.errors import expect_path


def data_folder() -> Path:
    """Return the default data folder: `$ATTREE_DATA`, or `data`."""
    return Path(os.environ.get("ATTREE_DATA") or "data")


class DatasetModule(LightningDataModule):
    """A dataset whose network widths are known before anything is read, generated or downloaded.

    Attributes:
        name: Name of the dataset as the paper prints it.
        counts: Sizes that the data must have.
        class_names: Names of the classes in order; None if they have none.
        node_types: Meanings of the columns of one-hot node features, such as atoms; None for other features.
        unrecorded: Names of arguments that are data, not settings, and are not saved in checkpoints.
    """

    name: str
    counts: Counts | HeteroCounts
    class_names: Sequence[str] | None = None
    node_types: Sequence[str] | None = None
    unrecorded: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        # This collects the arguments of the subclass too. They are not logged, because Lightning refuses two values of
        # the same name, and the model logs its own.
        self.save_hyperparameters(ignore=self.unrecorded, logger=False)
        if self.hparams.get("root") is not None:
            expect_path(self.hparams["root"], "root")

    @property
    def root(self) -> Path:
        """The data folder: the argument `root` if it is given, else `data_folder()`."""
        given = self.hparams.get("root")
        return data_folder() if given is None else Path(given)

    @property
    def num_features(self) -> Any:
        """Input width of a network for this data, known without loading; by type of node where there are types."""
        return self.counts.features

    @property
    def num_classes(self) -> int:
        """Output width of a network for this data, known without loading."""
        return self.counts.classes
