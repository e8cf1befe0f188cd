"""A public name means one thing: no two files of the package define a class or a function of the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import attree

SOURCE = Path(attree.__file__).parent


def test_a_public_class_or_function_is_defined_once() -> None:
    places = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                places[node.name].add(str(path.relative_to(SOURCE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
