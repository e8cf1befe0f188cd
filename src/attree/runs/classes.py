"""Build the objects that a run's config names, and call no class that nobody trusts.

A run may come from a stranger, and a class that is called with arguments of a stranger's choice can do anything: PyG's
`Sequential` evaluates its argument annotations as Python code. So a run's config is not handed to LightningCLI's
parser, which imports whatever is named. Only three kinds of classes are imported and called: attree's own modules, the
optimisers and schedulers of PyTorch, and what the caller allows by name. All other values are plain: numbers, texts,
lists and mappings.
"""

from __future__ import annotations

import collections.abc
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import nn

from attree.errors import ArgumentError
from attree.penalties import AttentionPenalty

TORCH_MODULES = {"torch.optim": torch.optim.Optimizer, "torch.optim.lr_scheduler": torch.optim.lr_scheduler.LRScheduler}
"""Where PyTorch's optimisers and schedulers are: called with plain values they compute, and do nothing else."""

OWN_MODULES = ("attree.data.", "attree.models.", "attree.penalties.")
"""Where attree's data modules, models and penalties are."""

LINKS = {
    "net": {"in_channels": "num_features", "out_channels": "num_classes"},
    "encoder": {"in_channels": "num_features"},
}
"""Arguments of a model's network that the data decides, and what the data calls them."""


def build_run(config: Mapping[str, Any], file: Path, allow: Collection[str] = ()) -> tuple[Any, Any]:
    """Build the data module and the model of a run's config.

    Args:
        config: The config, with `data` and `model`.
        file: Where it was read from, for messages.
        allow: Import paths of classes and functions that may be used beside attree's own.

    Returns:
        The data module and the model.

    Raises:
        ArgumentError: The config names a class that is not allowed, or one that cannot be made with its arguments.
    """
    refused = [path for path in foreign_classes(config) if path not in allow]
    if refused:
        names = ", ".join(f'"{path}"' for path in refused)
        raise ArgumentError(
            f"Expected {file} to name attree's own classes, or classes that are allowed by name, but it names "
            f"{', '.join(refused)}. To make an object of a class runs its code: if you trust it and this run, pass "
            f"allow=[{names}] to `load_run`, or --allow {','.join(refused)} to `attree explain`."
        )
    builder = _Builder(file, frozenset(allow))
    data = builder.build(config["data"], "data")
    model = config["model"]
    return data, builder.build(_with_sizes(model, data), "model")


def foreign_classes(config: Mapping[str, Any]) -> list[str]:
    """Import paths in a run's config that are not attree's own, so that they have to be allowed by name."""
    named = {path for part in ("data", "model") for path in class_paths(config[part])}
    return sorted(path for path in named if not _is_own(path))


def search_working_folder() -> None:
    """Let classes be imported from the working folder, as `python -m` does: `attree` alone does not look there."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # last: no file there may stand in for a package's


def class_paths(content: Any) -> Iterator[str]:
    """Every `class_path` in a config, at any depth."""
    if isinstance(content, Mapping):
        if "class_path" in content:
            yield str(content["class_path"])
        for value in content.values():
            yield from class_paths(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from class_paths(value)


def _with_sizes(model: Any, data: Any) -> Any:
    """The model's config, with the input and output sizes of its network taken from the data if they are missing."""
    arguments = model.get("init_args") if isinstance(model, Mapping) else None
    if not isinstance(arguments, Mapping):
        return model
    sized = {part: _with_own_sizes(arguments[part], links, data) for part, links in LINKS.items() if part in arguments}
    return {**model, "init_args": {**arguments, **sized}}


def _with_own_sizes(net: Any, links: Mapping[str, str], data: Any) -> Any:
    made = _import(str(net.get("class_path"))) if isinstance(net, Mapping) else None
    if not (callable(made) and isinstance(net, Mapping)):
        return net
    taken = inspect.signature(made).parameters
    sizes = {name: getattr(data, source) for name, source in links.items() if name in taken and hasattr(data, source)}
    said = dict(net.get("init_args") or {})
    said = {name: value for name, value in said.items() if name not in sizes or value is not None}
    return {**net, "init_args": {**sizes, **said}}


def _is_own(path: str) -> bool:
    """Whether an import path is a module or data module of attree's, or one of PyTorch's optimisers and schedulers."""
    home, _, name = path.rpartition(".")
    base = TORCH_MODULES.get(home)
    if base is not None:
        found = vars(import_module(home)).get(name)
        return inspect.isclass(found) and issubclass(found, base)
    if not f"{home}.".startswith(OWN_MODULES):
        return False
    found = _import(path)
    return (
        inspect.isclass(found)
        and issubclass(found, nn.Module | LightningDataModule | AttentionPenalty)
        and found.__module__.partition(".")[0] == "attree"
    )


def _import(path: str) -> Any:
    """The class or function of an import path; None if there is none."""
    home, _, name = path.rpartition(".")
    try:
        return getattr(import_module(home), name)
    except (ImportError, AttributeError, ValueError):
        return None


class _Builder:
    """Makes objects from mappings with a `class_path`. All classes have been checked before."""

    def __init__(self, file: Path, allow: frozenset[str]) -> None:
        self.file = file
        self.allow = allow

    def build(self, content: Any, where: str) -> Any:
        """The object that a mapping with a `class_path` stands for; mappings and lists with such objects in them."""
        if isinstance(content, dict):  # as YAML has them: sizes that come from the data are mappings of another kind
            if "class_path" in content:
                return self._make(content, where)()
            return {key: self.build(value, f"{where}.{key}") for key, value in content.items()}
        if isinstance(content, list):
            return [self.build(value, where) for value in content]
        return content

    def _make(self, content: Mapping[str, Any], where: str) -> Callable[..., Any]:
        """A function that makes the object. An optimiser factory takes further arguments."""
        path = content["class_path"]
        made = _import(path)
        if not callable(made):
            raise ArgumentError(f"Expected `{where}` in {self.file} to name a class, but there is no {path!r} here.")
        given = {**(content.get("init_args") or {}), **(content.get("dict_kwargs") or {})}
        hints = _hints(made)
        arguments = {name: self._argument(value, hints.get(name), f"{where}.{name}") for name, value in given.items()}

        def make(*more: Any) -> Any:
            try:
                return made(*more, **arguments)
            except TypeError as error:
                raise ArgumentError(f"{path} of {self.file} cannot be made of its arguments: {error}") from error

        return make

    def _argument(self, value: Any, hint: Any, where: str) -> Any:
        """Convert a value of the config to the declared type: YAML has neither tuples nor functions."""
        options = _options(hint)
        if any(typing.get_origin(one) is collections.abc.Callable or one is Callable for one in options):
            if isinstance(value, Mapping) and "class_path" in value:
                return self._make(value, where)
            if isinstance(value, str):
                return self._named(value, where)
        if isinstance(value, str):
            if any(one is type or typing.get_origin(one) is type for one in options):
                return self._named(value, where)
            if str in options:
                return value
            for one in options:
                if isinstance(one, type) and issubclass(one, Enum) and value in one.__members__:
                    return one[value]
                if isinstance(one, type) and issubclass(one, Path):
                    return one(value)
            if float in options:  # YAML 1.1 reads 1e-3 as a text
                try:
                    return float(value)
                except ValueError:
                    return value
        built = self.build(value, where)
        if isinstance(built, list):
            kinds = {typing.get_origin(one) or one for one in options}
            if list not in kinds and kinds & {tuple, set, frozenset}:
                return next(kind for kind in (tuple, set, frozenset) if kind in kinds)(built)
        return built

    def _named(self, path: str, where: str) -> Any:
        """A class or function that is an argument itself."""
        if path not in self.allow and not _is_own(path):
            raise ArgumentError(
                f"Expected `{where}` in {self.file} to be allowed by name, but {path!r} is not: if you trust it and "
                f'this run, pass allow=["{path}"] to `load_run`, or --allow {path} to `attree explain`.'
            )
        return _import(path)


def _hints(made: Any) -> dict[str, Any]:
    """The declared types of a class's or function's arguments; none where they cannot be read."""
    try:
        return typing.get_type_hints(made.__init__ if inspect.isclass(made) else made)
    except Exception:  # annotations of others may name what is only there for a type checker
        return {}


def _options(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
