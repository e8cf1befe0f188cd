"""Folders import only from those before them, and `import attree` stays quick."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attree
from helpers.time_limit import SECONDS

SOURCE = Path(attree.__file__).parent
ORDER = (
    *("defaults", "errors", "tensors", "io"),
    *("data", "planted", "attention", "subject", "attribution", "faithfulness", "penalties", "models"),
    *("metrics", "source", "evaluation"),
    *("report", "explanation", "runs", "callbacks", "sweep", "paper", "cli", "explain_run", "serve", "tensorboard_tab"),
)
"""Files and folders of the package; each imports only from those before it, and from itself."""


def room(module: str) -> str:
    return module.split(".")[1]


def imports(path: Path) -> list[str]:
    """Modules of attree that a file imports when it is imported; those inside functions come later, or never."""
    tree = ast.parse(path.read_text())
    found = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("attree."):
            found.append(node.module)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("attree.")]
    return found


def files() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def test_every_folder_has_its_place() -> None:
    assert {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in files()} == set(ORDER)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    late = [module for module in imports(path) if ORDER.index(room(module)) > ORDER.index(own)]
    assert late == []


def exported(folder: Path) -> set[str]:
    """Names in the `__all__` of a folder of the package."""
    for node in ast.parse((folder / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def test_tests_import_what_a_folder_exports_from_the_folder() -> None:
    """So that modules can move."""
    deep = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attree."):
                module = SOURCE.joinpath(*str(node.module).split(".")[1:]).with_suffix(".py")
                folders = [folder for folder in module.parents if module.is_file() and SOURCE in folder.parents]
                names = {alias.name for alias in node.names} & set().union(*map(exported, folders))
                deep += [f"{path.name}: {name} of {node.module}" for name in sorted(names)]
    assert deep == []


def test_evaluation_knows_neither_lightning_nor_matplotlib() -> None:
    for path in sorted((SOURCE / "evaluation").glob("*.py")):
        text = path.read_text().replace("if TYPE_CHECKING:\n    import pandas as pd\n    from matplotlib", "")
        assert "import lightning" not in text
        assert "from lightning" not in text
        assert "matplotlib import" not in text


def test_importing_attree_alone_imports_nothing_heavy() -> None:
    code = "import attree, sys; print(sorted({'torch', 'lightning', 'pandas', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout.strip() == "[]"


USED_IN_METHODS = {"networkx", "pandas", "matplotlib", "tensorboard", "optuna", "pyarrow", "duckdb", "ogb"}
"""Libraries for tables, drawings and datasets, which evaluating and explaining a model does not need."""


def test_evaluating_and_explaining_import_libraries_for_tables_and_drawings_only_where_they_are_used() -> None:
    """Imports at the top of a file run whenever its folder is imported; those under `TYPE_CHECKING` never run."""
    at_the_top: dict[str, set[str]] = {}
    for folder in (
        "attention",
        "subject",
        "attribution",
        "faithfulness",
        "metrics",
        "source",
        "evaluation",
        "explanation",
    ):
        for path in sorted((SOURCE / folder).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
                if roots := {name.partition(".")[0] for name in names} & USED_IN_METHODS:
                    at_the_top[str(path.relative_to(SOURCE))] = roots
    assert at_the_top == {}


@pytest.mark.parametrize("name", attree.__all__)
def test_what_people_use_first_is_at_the_top(name: str) -> None:
    assert getattr(attree, name).__name__ == name


def test_modules_that_other_code_imports_exist() -> None:
    """In tests, benchmarks and docs, which a type checker does not read: a module that moved is found here, by name."""
    root, gone = Path(__file__).parents[1], []
    for path in sorted(
        path for folder in ("tests", "benchmarks", "docs", "examples") for path in root.glob(f"{folder}/**/*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "attree":
                parts = str(node.module).split(".")[1:]
                module, folder = SOURCE.joinpath(*parts).with_suffix(".py"), SOURCE.joinpath(*parts)
                if parts and not module.is_file() and not (folder / "__init__.py").is_file():
                    gone.append(f"{path.name}: {node.module}")
    assert gone == []
