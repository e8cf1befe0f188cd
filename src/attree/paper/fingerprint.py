"""What results depend on beyond their own settings: the code, the data and the libraries, as short hashes."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import attree

PACKAGE = Path(attree.__file__).parent

TRAINING_CODE = (
    "errors.py",
    "data",
    "models",
    "paper/net.py",
    "paper/recipes.py",
    "paper/supergat.py",
    "paper/training.py",
)
"""Files and folders of the package that decide what weights a network gets."""

EVALUATION_CODE = (
    *TRAINING_CODE,
    *("edges.py", "ragged.py", "memory.py", "attention", "subject", "attribution", "faithfulness", "metrics"),
    *("evaluation", "paper/cells"),
)
"""Files and folders of the package that decide what is measured of it."""

LIBRARIES = ("torch", "torch-geometric", "numpy", "scipy")


@cache
def code_hash(parts: tuple[str, ...]) -> str:
    """Hash of what the Python files of some parts of the package say, however they are laid out or commented."""
    digest = hashlib.sha256()
    for part in parts:
        path = PACKAGE / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if file.is_file():
                said = ast.dump(ast.parse(file.read_text(encoding="utf-8")))
                digest.update(f"{file.relative_to(PACKAGE)}\0{said}\0".encode())
    return digest.hexdigest()[:16]


@cache
def libraries() -> dict[str, str]:
    """Versions of the libraries that numbers come from."""
    return {name: version(name) for name in LIBRARIES}


_SOURCES = {
    **{name: (f"planetoid/{name}/raw",) for name in ("Cora", "CiteSeer", "PubMed")},
    **{name: (f"webkb/{name.lower()}/raw",) for name in ("Cornell", "Texas", "Wisconsin")},
    "Arxiv": ("ogb/ogbn_arxiv/raw", "ogb/ogbn_arxiv/split"),
    "BA-Shapes": ("gatt_paper",),
    "Infection": ("gatt_paper",),
    "MUTAG": ("tu/MUTAG/raw",),
    "HIN": ("hin",),
}


@cache
def data_hash(dataset: str, root: str) -> str:
    """Hash of the stored files of a dataset."""
    return _files_hash(root, _SOURCES[dataset])


def _files_hash(root: str, sources: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        for file in sorted(path for path in Path(root, source).rglob("*") if path.is_file()):
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
