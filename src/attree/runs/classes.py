"""Build the objects that a run's config names, using only trusted classes.

A run may come from an untrusted source, and a class that is called with untrusted arguments can do anything: PyG's
`Sequential` evaluates its argument annotations as Python code. LightningCLI's parser imports any class that a config
names, so it is not used here. Only three kinds of classes are imported and called: attree's own, PyTorch's optimisers
and schedulers, and classes that the caller allows by name. All other values are plain: numbers, strings, lists and
mappings.
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
"""Modules of PyTorch's optimisers and schedulers, which are safe to call with plain values."""

OWN_MODULES = ("attree.data.", "attree.models.", "attree.penalties.")
"""Packages of attree's data modules, models and penalties."""

LINKS = {
    "net": {"in_channels": "num_features", "out_channels": "num_classes"},
    "encoder": {"in_channels": "num_features"},
}
"""Arguments of a model's network that come from the data, each with the name of the data module's attribute."""


def build_run(config: Mapping[str, Any], file: Path, allow: Collection[str] = ()) -> tuple[Any, Any]:
    """Build the data module and the model of a run's config.

    Args:
        config: The config, with `data` and `model`.
        file: The config's file, for messages.
        allow: Import paths of other classes and functions that may be used.

    Returns:
        The data module and the model.

    Raises:
        ArgumentError: The config names a class that is not allowed, or arguments that a class does not accept.
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
    """Return the import paths in a run's config that are not attree's own, and must be allowed by name."""
    named = {path for part in ("data", "model") for path in class_paths(config[part])}
    return sorted(path for path in named if not _is_own(path))


def search_working_folder() -> None:
    """Add the working directory to the import path, as `python -m` does, so that users' classes are found."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that no file there hides a package


def class_paths(content: Any) -> Iterator[str]:
    """Yield every `class_path` in a config, at any depth."""
    if isinstance(content, Mapping):
        if "class_path" in content:
            yield str(content["class_path"])
        for value in content.values():
            yield from class_paths(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from class_paths(value)


def _with_sizes(model: Any, data: Any) -> Any:
    """Return the model's config, with missing input and output widths of its network taken from the data."""
    arguments = model.get("init_args") if isinstance(model, Mapping) else None
    if not isinstance(arguments, Mapping):
        return model
    sized = {part: _with_own_sizes(arguments[part], links, data) for part, links in LINKS.items() if part in arguments}
    return {**model, "init_args": {**arguments, **sized}}


def _with_own_sizes(net: Any, links: Mapping[str, str], data: Any) -> Any:
    """Return the config of one network, with missing input and output widths taken from the data."""
    net_class = _import(str(net.get("class_path"))) if isinstance(net, Mapping) else None
    if not (callable(net_class) and isinstance(net, Mapping)):
        return net
    parameters = inspect.signature(net_class).parameters
    sizes = {
        name: getattr(data, source) for name, source in links.items() if name in parameters and hasattr(data, source)
    }
    arguments = dict(net.get("init_args") or {})
    arguments = {name: value for name, value in arguments.items() if name not in sizes or value is not None}
    return {**net, "init_args": {**sizes, **arguments}}


def _is_own(path: str) -> bool:
    """Whether an import path is a module or data module of attree, or an optimiser or scheduler of PyTorch."""
    home, _, name = path.rpartition(".")
    base = TORCH_MODULES.get(home)
    if base is not None:
        member = vars(import_module(home)).get(name)
        return inspect.isclass(member) and issubclass(member, base)
    if not f"{home}.".startswith(OWN_MODULES):
        return False
    member = _import(path)
    return (
        inspect.isclass(member)
        and not getattr(member, "runs_other_loaders", False)
        and issubclass(member, nn.Module | LightningDataModule | AttentionPenalty)
        and member.__module__.partition(".")[0] == "attree"
    )


def _import(path: str) -> Any:
    """Return the class or function of an import path; None if it does not exist."""
    home, _, name = path.rpartition(".")
    try:
        return getattr(import_module(home), name)
    except (ImportError, AttributeError, ValueError):
        return None


class _Builder:
    """Builds objects from mappings with a `class_path`, whose classes have been checked before."""

    def __init__(self, file: Path, allow: frozenset[str]) -> None:
        self.file = file
        self.allow = allow

    def build(self, content: Any, where: str) -> Any:
        """Build the object of a mapping with a `class_path`; in other mappings and lists, build the objects inside."""
        if isinstance(content, dict):  # not any Mapping: the data's widths are one, and no config
            if "class_path" in content:
                return self._make(content, where)()
            return {key: self.build(value, f"{where}.{key}") for key, value in content.items()}
        if isinstance(content, list):
            return [self.build(value, where) for value in content]
        return content

    def _make(self, content: Mapping[str, Any], where: str) -> Callable[..., Any]:
        """Return a function that makes the object. It accepts further arguments, as an optimiser factory does."""
        path = content["class_path"]
        factory = _import(path)
        if not callable(factory):
            raise ArgumentError(f"Expected `{where}` in {self.file} to name a class, but there is no {path!r} here.")
        init_args = {**(content.get("init_args") or {}), **(content.get("dict_kwargs") or {})}
        hints = _hints(factory)
        arguments = {
            name: self._argument(value, hints.get(name), f"{where}.{name}") for name, value in init_args.items()
        }

        def make(*more: Any) -> Any:
            try:
                return factory(*more, **arguments)
            except TypeError as error:
                raise ArgumentError(f"{path} of {self.file} cannot be made of its arguments: {error}") from error

        return make

    def _argument(self, value: Any, hint: Any, where: str) -> Any:
        """Convert a value of the config to the declared type, because YAML has neither tuples nor functions."""
        options = _options(hint)
        if any(typing.get_origin(option) is collections.abc.Callable or option is Callable for option in options):
            if isinstance(value, Mapping) and "class_path" in value:
                return self._make(value, where)
            if isinstance(value, str):
                return self._named(value, where)
        if isinstance(value, str):
            if any(option is type or typing.get_origin(option) is type for option in options):
                return self._named(value, where)
            if str in options:
                return value
            for option in options:
                if isinstance(option, type) and issubclass(option, Enum) and value in option.__members__:
                    return option[value]
                if isinstance(option, type) and issubclass(option, Path):
                    return option(value)
            if float in options:  # YAML 1.1 reads 1e-3 as a text
                try:
                    return float(value)
                except ValueError:
                    return value
        built = self.build(value, where)
        if isinstance(built, list):
            kinds = {typing.get_origin(option) or option for option in options}
            if list not in kinds and kinds & {tuple, set, frozenset}:
                return next(kind for kind in (tuple, set, frozenset) if kind in kinds)(built)
        return built

    def _named(self, path: str, where: str) -> Any:
        """Return a class or function that is itself an argument."""
        if path not in self.allow and not _is_own(path):
            raise ArgumentError(
                f"Expected `{where}` in {self.file} to be allowed by name, but {path!r} is not: if you trust it and "
                f'this run, pass allow=["{path}"] to `load_run`, or --allow {path} to `attree explain`.'
            )
        return _import(path)


def _hints(factory: Any) -> dict[str, Any]:
    """Return the declared types of the arguments of a class or function; empty if they cannot be read."""
    try:
        return typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except Exception:  # annotations may name types that only a type checker imports
        return {}


def _options(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the single type."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
