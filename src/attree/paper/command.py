"""The command `attree paper`: list the paper's tables and figures, or make them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attree.errors import ArgumentError
from attree.paper.contents import CONTENTS


def paper(
    name: str,
    profile: str,
    datasets: Sequence[str] | None,
    models: Sequence[str] | None,
    seeds: int | None,
    protocols: Sequence[str],
    jobs: int,
    out: Path,
    root: str | None,
    targets: int,
    epochs: int | None,
) -> int:
    """Make tables and figures of the paper, and return the exit status.

    Args:
        name: Name of the table or figure; `all`, or `list` to print the names.
        profile: `quick` or `full`.
        datasets: Names of datasets; None for all.
        models: Names of networks; None for all.
        seeds: Number of networks to average over; None for the number of the profile.
        protocols: Names of reduction protocols.
        jobs: Number of cells to measure in parallel.
        out: Folder of the tables and figures.
        root: Data folder; None for the default folder.
        targets: Number of nodes to explain for faithfulness.
        epochs: Number of training epochs; None for the recipe's.
    """
    if name == "list":
        _list()
        return 0
    if name != "all" and name not in CONTENTS:
        names = ", ".join(CONTENTS)
        raise ArgumentError(f"Expected argument `NAME` to be list, all or one of {names}, but got {name!r}.")
    # Imported here, so that the list and errors do not wait for PyTorch.
    from attree.data.base import data_folder
    from attree.paper.item import Options, resolve_name
    from attree.paper.net import DATASETS, MODELS
    from attree.paper.run import make_items

    quick = profile == "quick"
    options = Options(
        datasets=None if datasets is None else tuple(resolve_name(dataset, DATASETS) for dataset in datasets),
        models=None if models is None else tuple(resolve_name(model, MODELS) for model in models),
        seeds=seeds if seeds is not None else 1 if quick else 3,
        protocols=tuple(protocols),
        quick=quick,
        epochs=epochs,
        targets=targets,
        root=str(data_folder()) if root is None else root,
        out=out,
        jobs=jobs,
    )
    return make_items(list(CONTENTS) if name == "all" else [name], options)


def _list() -> None:
    for name, entry in CONTENTS.items():
        quick, full = entry.minutes
        print(f"{name}  {entry.title}")
        print(f"    {entry.place}; data: {entry.data}; about {quick:g} min quick, {full:g} min full on two cores")
