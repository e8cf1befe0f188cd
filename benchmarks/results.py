"""The results behind README and docs: what is stored of each, when it is old, and how it gets into the pages.

docs/_generate/numbers has a file for each block and each picture of benchmarks/measurements.py:

- texts: what stands in the pages; file: the hash of a picture or another file of the repository;
- commit, date, seconds, versions, machine: where they come from. `imported` results were measured before results were
  stored: commit, date and version are those with which their numbers first stood in the docs, and `note` is what the
  docs said of the machine;
- inputs: a hash of the scripts and configs that the commands name, without comments, docstrings and local names.

A result is *old* if attree's version or these inputs are others now. Pages say below a block when and with which
version it was measured, and whether the command has changed since. So a number that is old says so, and pages are right
although not everything can be measured at once.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import attree
from attree.errors import ArgumentError, did_you_mean
from attree.io.files import write_text
from measurements import MEASUREMENTS, Block, Measurement

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"<!-- numbers: (?P<name>[\w.-]+) -->\n(?P<text>.*?)<!-- end -->", flags=re.DOTALL)
DATED = re.compile(r"\n?\*Measured (?:on|by) \d[^*\n]*\*\n\n?$")


class Repository(NamedTuple):
    """The folders that a run reads and writes.

    Attributes:
        root: The repository.
        work: Where commands run.
        measurements: The list.
    """

    root: Path = ROOT
    work: Path = ROOT / "logs" / "numbers"
    measurements: tuple[Measurement, ...] = MEASUREMENTS

    @property
    def results(self) -> Path:
        """The folder of results."""
        return self.root / "docs" / "_generate" / "numbers"

    def page(self, name: str) -> Path:
        """The file of a page."""
        return self.root / "README.md" if name == "README" else self.root / "docs" / f"{name}.md"

    def page_name(self, path: Path) -> str:
        """The name of a page's file, as `page` takes it."""
        docs = self.root / "docs"
        return path.relative_to(docs).with_suffix("").as_posix() if docs in path.parents else path.stem

    def pages(self) -> list[Path]:
        """All pages."""
        generated = self.root / "docs" / "_generate"
        pages = (path for path in sorted((self.root / "docs").rglob("*.md")) if generated not in path.parents)
        return [self.root / "README.md", *pages]

    def measurement_of(self, name: str) -> Measurement:
        """The measurement with this name, or that makes this block or file."""
        for measurement in self.measurements:
            if name == measurement.name or name in names_of(measurement):
                return measurement
        known = [item for one in self.measurements for item in (one.name, *names_of(one))]
        raise ArgumentError(f"Expected a measurement, a block or a file, got {name!r}.{did_you_mean(name, known)}")


def names_of(measurement: Measurement) -> list[str]:
    """Names of its results: of blocks, and of files without their folder."""
    return [*measurement.blocks, *(Path(file).name for file in measurement.files)]


# What results rest on.


def inputs_of(measurement: Measurement) -> list[str]:
    """Scripts and configs of the repository that the commands name, modules beside them, and what the list adds."""
    files = list(measurement.inputs)
    for command in measurement.commands:
        words = shlex.split(command)
        files += [word for word in words if re.fullmatch(r"(benchmarks|docs|examples)/[\w/]+\.(py|ipynb)", word)]
        for before, word in pairwise(words):
            if before in ("--config", "sweep"):
                files.append(f"configs/{'sweeps/' if before == 'sweep' else ''}{word}.yaml")
    for name in files:
        files += [other for other in (*_imports(name), *_base_config(name)) if other not in files]
    return list(dict.fromkeys(files))


def _imports(name: str) -> list[str]:
    """Modules of benchmarks that a script there imports."""
    if not name.startswith("benchmarks/") or not (ROOT / name).is_file():
        return []
    modules = re.findall(r"^(?:from|import) (\w+)", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [f"benchmarks/{module}.py" for module in modules if (ROOT / "benchmarks" / f"{module}.py").is_file()]


def _base_config(name: str) -> list[str]:
    """The config that a sweep starts from."""
    if not name.startswith("configs/sweeps/") or not (ROOT / name).is_file():
        return []
    return [f"configs/{yaml.safe_load((ROOT / name).read_text(encoding='utf-8'))['config']}.yaml"]


def inputs_hash(measurement: Measurement, read: Callable[[str], str]) -> str:
    """A hash of the inputs' content, without what changes nothing: comments, docstrings, type hints, local names.

    Args:
        measurement: The measurement.
        read: Returns the text of a file of the repository; raises FileNotFoundError if there is none.
    """
    digest = hashlib.sha256(repr(measurement.commands).encode())
    for name in inputs_of(measurement):
        try:
            digest.update(f"{name}\n{_content(name, read(name))}\n".encode())
        except FileNotFoundError:
            digest.update(f"{name} is missing\n".encode())
    return digest.hexdigest()[:16]


def _content(name: str, text: str) -> str:
    """What counts of a file."""
    if name.endswith(".py"):
        return ast.dump(_plain(ast.parse(text)))
    if name.endswith(".yaml"):
        return repr(yaml.safe_load(text))
    if name.endswith(".md"):
        return repr(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    if name.endswith(".ipynb"):
        return repr([cell["source"] for cell in json.loads(text)["cells"]])
    return text


def _plain(tree: ast.Module) -> ast.Module:
    """A script without docstrings, type hints and the names of local variables, which change nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            _number_locals(function)
    return tree


def _number_locals(function: ast.FunctionDef) -> None:
    """Replace the names of a function's local variables by numbers, in the order in which they appear."""
    bound = [node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    arguments = [node for node in ast.walk(function) if isinstance(node, ast.arg)]
    names = [argument.arg for argument in arguments] + [name.id for name in bound]
    numbers = {name: f"local{number}" for number, name in enumerate(dict.fromkeys(names))}
    for argument in arguments:
        argument.arg = numbers[argument.arg]
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            node.id = numbers.get(node.id, node.id)


@dataclass(frozen=True)
class Result:
    """The result of a block or a file. Its JSON file has these fields."""

    name: str
    commands: tuple[str, ...]
    date: str
    inputs: str
    versions: Mapping[str, str]
    commit: str = ""
    texts: tuple[str, ...] = ()
    file: str = ""
    seconds: float | None = None
    machine: Mapping[str, Any] | None = None
    imported: bool = False
    note: str = ""

    def as_json(self) -> str:
        """The text of its file. Lines of texts are lines of the file, so that changes can be read."""
        content = {key: value for key, value in vars(self).items() if value not in ((), "", None, False)}
        content["texts"] = [text.split("\n") for text in self.texts]
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read the file of a result."""
        content = json.loads(path.read_text(encoding="utf-8"))
        content["texts"] = tuple("\n".join(lines) for lines in content["texts"])
        content["commands"] = tuple(content["commands"])
        return cls(**content)


def result_of(repository: Repository, name: str) -> Result | None:
    """The stored result of a block or a file, or None."""
    path = repository.results / f"{name}.json"
    return Result.read(path) if path.is_file() else None


def age(repository: Repository, measurement: Measurement, name: str) -> str:
    """Why the result of a block or a file is to be measured again, in words; empty if it is not."""
    result = result_of(repository, name)
    if result is None:
        return "missing"
    if result.versions["attree"] != attree.__version__:
        return f"measured with {result.versions['attree']}"
    if _changed(repository, measurement, result):
        return "the command has changed"
    return ""


def _changed(repository: Repository, measurement: Measurement, result: Result) -> bool:
    return result.inputs != inputs_hash(measurement, reader(repository.root))


def reader(root: Path) -> Callable[[str], str]:
    """Read files of a folder by their names."""
    return lambda name: (root / name).read_text(encoding="utf-8")


# Pages.


def dated_line(repository: Repository, measurement: Measurement, result: Result) -> str:
    """The line below a block."""
    machine = ""
    if measurement.timed and result.machine is not None:
        machine = f" on {result.machine['cores']} cores (load {result.machine['load']})"
    note = f", {result.note}" if result.note else ""
    since = "; the command has changed since" if _changed(repository, measurement, result) else ""
    day = f"{'by' if result.imported else 'on'} {result.date}"
    return f"*Measured {day} with attree {result.versions['attree']}{machine}{note}{since}.*\n\n"


def block_texts(repository: Repository, measurement: Measurement, name: str) -> list[str]:
    """What stands between the marks of a block, each time that its page has it."""
    result = result_of(repository, name)
    assert result is not None
    if not measurement.blocks[name].dated:
        return list(result.texts)
    line = dated_line(repository, measurement, result)
    return [f"{text.rstrip()}\n\n{line}" if text.strip() else text for text in result.texts]


def page_texts(repository: Repository, name: str, block: Block) -> tuple[str, ...]:
    """The texts of a block as its first page has them, without the lines that say when they were measured."""
    page = repository.page(block.pages[0]).read_text(encoding="utf-8")
    return tuple(without_date(match["text"]) for match in MARK.finditer(page) if match["name"] == name)


def without_date(text: str) -> str:
    """The text of a block without the line that says when it was measured."""
    return DATED.sub("\n", text)


def rendered(repository: Repository, text: str, spare: bool = False) -> str:
    """A page's text with its blocks as the results have them.

    Args:
        repository: The repository.
        text: The page's text.
        spare: Leave blocks that are written by hand and were changed since as they stand.
    """
    times: dict[str, int] = {}
    blocks = {name: one for one in repository.measurements for name in one.blocks}

    def with_result(match: re.Match[str]) -> str:
        name = match["name"]
        place = times[name] = times.get(name, -1) + 1
        result = result_of(repository, name) if name in blocks else None
        if result is None or place >= len(result.texts):
            return match[0]
        by_hand = blocks[name].blocks[name].text is None
        if spare and by_hand and without_date(match["text"]).strip() != result.texts[place].strip():
            return match[0]
        return f"<!-- numbers: {name} -->\n{block_texts(repository, blocks[name], name)[place]}<!-- end -->"

    return MARK.sub(with_result, text)


def write_pages(repository: Repository) -> list[Path]:
    """Write the blocks of all pages from the results; returns the pages that changed.

    What a person wrote by hand and did not store yet is left as it stands.
    """
    changed = []
    for path in repository.pages():
        text = path.read_text(encoding="utf-8")
        if (new := rendered(repository, text, spare=True)) != text:
            write_text(path, new)
            changed.append(path)
    return changed


def differences(repository: Repository) -> Iterator[str]:
    """Say where the list, pages, files and results differ, in sentences."""
    listed = {
        (name, page)
        for measurement in repository.measurements
        for name, block in measurement.blocks.items()
        for page in block.pages
    }
    in_pages = set()
    for path in repository.pages():
        page = repository.page_name(path)
        text = path.read_text(encoding="utf-8")
        names = [match["name"] for match in MARK.finditer(text)]
        in_pages |= {(name, page) for name in names}
        if text.count("<!-- numbers:") != len(names):
            yield f"{page}: a block has no end."
        lines = difflib.unified_diff(
            text.splitlines(), rendered(repository, text).splitlines(), "page", "result", lineterm="", n=0
        )
        if difference := list(lines):
            yield "\n".join([f"{page} differs from its results:", *difference])
    for name, page in sorted(in_pages - listed):
        yield f"{page} has a block {name} that benchmarks/measurements.py does not list."
    for name, page in sorted(listed - in_pages):
        yield f"{page} has no block {name}, which benchmarks/measurements.py lists."
    for measurement in repository.measurements:
        yield from _without_results(repository, measurement)
    made = {name for measurement in repository.measurements for name in names_of(measurement)}
    for path in sorted(repository.results.glob("*.json")):
        if path.stem not in made:
            yield f"{path.name} is the result of no measurement."


def _without_results(repository: Repository, measurement: Measurement) -> Iterator[str]:
    """Say which results of a measurement are missing, and which files are others."""
    for name in names_of(measurement):
        if result_of(repository, name) is None:
            yield f"{name} has no result: python benchmarks/measure.py --only {measurement.name}"
    for file in measurement.files:
        name = Path(file).name
        result = result_of(repository, name)
        if result is not None and result.file != file_hash(repository.root / file):
            yield f"{file} is not the file of its result: python benchmarks/measure.py --take {name}, if it is right"


def file_hash(path: Path) -> str:
    """SHA-256 of a file, or nothing if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""
