"""Cache of results on disk. The key of a result consists of its settings, code, data and library versions."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import attree
from attree.errors import AttreeError
from attree.io.files import read_npz, write_npz, write_text


@dataclass(frozen=True)
class Cache:
    """A folder of finished results.

    Each file holds its whole key and a hash of its result, and both are checked: a file that was renamed, truncated,
    damaged or written by other code is ignored. Files are written atomically, so several processes can share a folder,
    and a killed process leaves no partial file.
    """

    folder: Path

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the result of a key; None if there is none."""
        try:
            stored = json.loads(self.path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(stored, dict) or stored.get("key") != _as_json(key):
            return None
        result = stored.get("result")
        return result if isinstance(result, dict) and stored.get("check") == _check(result) else None

    def put(self, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Store a result of plain values."""
        content = {"key": _as_json(key), "result": dict(result), "check": _check(result)}
        write_text(self.path(key), json.dumps(content, indent=1) + "\n")

    def get_arrays(self, key: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
        """Return the arrays of a key; None if there are none or if they are damaged."""
        if self.get(key) is None:
            return None
        try:
            return read_npz(self.path(key).with_suffix(".npz"))
        except AttreeError:
            return None

    def put_arrays(self, key: Mapping[str, Any], arrays: Mapping[str, np.ndarray], result: Mapping[str, Any]) -> None:
        """Store arrays and a result. The result is written last: if it exists, both are complete."""
        write_npz(self.path(key).with_suffix(".npz"), **arrays)
        self.put(key, result)

    def path(self, key: Mapping[str, Any]) -> Path:
        """Return the file of a key's result, whether or not it exists."""
        text = json.dumps(_as_json(key), sort_keys=True)
        return self.folder / f"{key.get('kind', 'result')}-{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"


def _check(result: Mapping[str, Any]) -> str:
    """Return a hash of a result. It detects damage that leaves valid JSON."""
    return hashlib.sha256(json.dumps(result).encode()).hexdigest()[:16]


def _as_json(key: Mapping[str, Any]) -> Any:
    """Return a key as JSON restores it: tuples become lists."""
    return json.loads(json.dumps(dict(key), sort_keys=True))


PACKAGE = Path(attree.__file__).parent
PACKAGE_NAME = attree.__name__

NUMBERLESS = ("report",)
"""Folders of the package that only display numbers, so that results do not depend on them."""

LIBRARIES = ("torch", "torch-geometric", "numpy", "scipy")


@cache
def code_hash(module: str) -> str:
    """Return a hash of the code of a module and of all modules of the package that it imports, directly or not.

    Comments, docstrings and layout do not change it.

    Args:
        module: Its name, such as `attree.paper.networks`.
    """
    digest = hashlib.sha256()
    for name in sorted(imported_modules(module)):
        digest.update(f"{name}\0{_parse(_text_of(name))[1]}\0".encode())
    return digest.hexdigest()[:16]


def imported_modules(module: str) -> set[str]:
    """Return a module and all modules of the package that it imports, directly, indirectly or inside functions.

    The `__init__.py` of every folder above a module counts too, because Python runs it.
    """
    modules: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        room = f"{name}.".split(".")[1]
        if name and name not in modules and room not in NUMBERLESS and _file_of(name).is_file():
            modules.add(name)
            waiting += [*_parse(_text_of(name), name != PACKAGE_NAME)[0], name.rpartition(".")[0]]
    return modules


def _text_of(module: str) -> str:
    return _file_of(module).read_text(encoding="utf-8")


def _file_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _parse(text: str, is_lazy: bool = False) -> tuple[tuple[str, ...], str]:
    """Return the modules of the package that a file imports, and its code without docstrings.

    Args:
        text: The file's text.
        is_lazy: If the file has a module-level `__getattr__`, also count its imports for type checkers.
    """
    tree = ast.parse(text)
    for_types = is_lazy and any(isinstance(part, ast.FunctionDef) and part.name == "__getattr__" for part in tree.body)
    imports = tuple(_imports(tree, for_types=for_types))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _is_text(part)]
    return imports, ast.dump(tree)


def _imports(tree: ast.Module, for_types: bool) -> Iterator[str]:
    """Yield imported names that may be modules of the package; with `for_types`, also imports for type checkers."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if (
            not for_types
            and isinstance(node, ast.If)
            and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        ):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE_NAME)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE_NAME:
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # a module, or a name in one
        waiting += ast.iter_child_nodes(node)


def _is_text(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)


@cache
def libraries() -> dict[str, str]:
    """Return the versions of the libraries that compute results."""
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
    """Return a hash of the stored files of a dataset."""
    digest = hashlib.sha256()
    for source in _SOURCES[dataset]:
        for file in sorted(path for path in Path(root, source).rglob("*") if path.is_file()):
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
