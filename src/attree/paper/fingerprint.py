"""What results depend on beyond their own settings: the code, the data and the libraries, as short hashes."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import attree

PACKAGE = Path(attree.__file__).parent
PACKAGE_NAME = attree.__name__

NUMBERLESS = ("report",)
"""Rooms of the package that show numbers and compute none: results do not depend on them, though others import them."""

LIBRARIES = ("torch", "torch-geometric", "numpy", "scipy")


@cache
def code_hash(module: str) -> str:
    """Hash of what a module does, and all modules of the package that it imports, directly or not.

    Neither comments nor docstrings nor the layout of the code change it.

    Args:
        module: Its name, such as `attree.paper.training`.
    """
    digest = hashlib.sha256()
    for name in sorted(imported_modules(module)):
        digest.update(f"{name}\0{_parse(_text_of(name))[1]}\0".encode())
    return digest.hexdigest()[:16]


def imported_modules(module: str) -> set[str]:
    """A module and all modules of the package that it imports: also inside functions, and also through others.

    Python runs the `__init__.py` of every folder that a module is in, so these and their imports count, too.
    """
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        room = f"{name}.".split(".")[1]
        if name and name not in found and room not in NUMBERLESS and _file_of(name).is_file():
            found.add(name)
            waiting += [*_parse(_text_of(name), name != PACKAGE_NAME)[0], name.rpartition(".")[0]]
    return found


def _text_of(module: str) -> str:
    return _file_of(module).read_text(encoding="utf-8")


def _file_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _parse(text: str, is_lazy: bool = False) -> tuple[tuple[str, ...], str]:
    """What a file imports of the package, and its code without its docstrings.

    Args:
        text: The file's text.
        is_lazy: Whether a file with a `__getattr__` of its own imports what it names for type checkers, when asked.
    """
    tree = ast.parse(text)
    asked = is_lazy and any(isinstance(part, ast.FunctionDef) and part.name == "__getattr__" for part in tree.body)
    imports = tuple(_imports(tree, for_types=asked))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _is_text(part)]
    return imports, ast.dump(tree)


def _imports(tree: ast.Module, for_types: bool) -> Iterator[str]:
    """Names that are imported and may be modules of the package; imports for type checkers count if asked for."""
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
