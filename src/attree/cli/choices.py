"""Short names of attree's classes, in arguments and configs."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn

import attree.data
import attree.models
from attree.io.config_files import find_config


def subclasses(module: ModuleType, base: type, without: type | tuple[()] = ()) -> dict[str, str]:
    """Return the import path of each class of a module that derives from `base` and has no subclass, by class name.

    Args:
        module: The module; its `__all__` lists the classes.
        base: The base class.
        without: Leave out subclasses of this class.
    """
    exported = [getattr(module, name) for name in sorted(module.__all__)]
    classes = [
        kind
        for kind in exported
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base and not issubclass(kind, without)
    ]
    leaves = [kind for kind in classes if not any(issubclass(other, kind) and other is not kind for other in classes)]
    return {kind.__name__: f"{module.__name__}.{kind.__name__}" for kind in leaves}


CHOICES: dict[str, tuple[str, dict[str, str]]] = {
    "data": ("a dataset", subclasses(attree.data, LightningDataModule)),
    "model": ("a LightningModule", subclasses(attree.models, LightningModule)),
    "net": ("a network", subclasses(attree.models, nn.Module, LightningModule)),
    "encoder": ("a network", subclasses(attree.models, attree.models.AttentionNet)),
}
"""For each key that takes a class: the kind of class, and the import paths of attree's classes by name."""

PREFIXES = {"data": "data", "model": "model", "net": "model.net", "encoder": "model.encoder"}
"""For each of these keys, the prefix of the options that set the class's arguments."""

LISTS = ("--explain.methods", "--explain.protocols", "--data.num_neighbors")
"""Options that take a list. Users may write it as `a,b` or `[a,b]`."""


def names(key: str) -> str:
    """Return the class names that a key accepts, separated by commas."""
    return ", ".join(CHOICES[key][1])


def full_name(key: str, name: Any) -> Any:
    """Return the import path of attree's class with this name. Other values are returned unchanged.

    >>> full_name("net", "GAT"), full_name("net", "torch_geometric.nn.GAT")
    ('attree.models.GAT', 'torch_geometric.nn.GAT')
    """
    return CHOICES[key][1].get(name, name) if key in CHOICES and isinstance(name, str) else name


def expand_arguments(arguments: list[str]) -> list[str]:
    """Replace the names of attree's classes and configs in arguments by full paths, and put lists into brackets.

    Class names need full paths because PyG has classes of the same names, such as `GAT`.

    >>> expand_arguments(["--model.net", "GAT", "--data=Infection", "--model.net.heads=2"])
    ['--model.net', 'attree.models.GAT', '--data=attree.data.Infection', '--model.net.heads=2']
    >>> expand_arguments(["--explain.methods=gatt,random", "--explain.protocols", "[weight]"])
    ['--explain.methods=[gatt,random]', '--explain.protocols', '[weight]']
    """
    expanded: list[str] = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if equals:
            argument = f"{option}={_expand_value(option, value)}"
        elif expanded:
            argument = _expand_value(expanded[-1], argument)
        expanded.append(argument)
    return expanded


def _expand_value(option: str, value: str) -> str:
    if option in ("--config", "-c"):
        return find_config(value)
    if option.removesuffix("+") in LISTS and not value.startswith(("[", "-")):
        return f"[{value}]"
    key = option.removeprefix("--").removesuffix(".class_path").rpartition(".")[2] if option.startswith("--") else ""
    return str(full_name(key, value))


def expand_config(content: Any, key: str = "") -> Any:
    """Replace the names of attree's classes in a config by import paths.

    >>> expand_config({"model": {"init_args": {"net": {"class_path": "GAT"}}}, "data": "Infection"})
    {'model': {'init_args': {'net': {'class_path': 'attree.models.GAT'}}}, 'data': 'attree.data.Infection'}
    """
    if isinstance(content, dict):
        return {name: expand_config(value, key if name == "class_path" else name) for name, value in content.items()}
    if isinstance(content, list):
        return [expand_config(value) for value in content]
    return full_name(key, content)


def class_options(*keys: str) -> dict[str, tuple[str, ...]]:
    """Return the options that set arguments of attree's classes, each with the names of the classes that have it.

    Args:
        keys: Keys of `CHOICES`; all if none is given.

    >>> class_options()["model.net.heads"], class_options()["model.readout"]
    (('GAT', 'GATv2', 'GPS', 'HGT', 'HeteroGAT', 'SGFormer', 'SuperGAT'), ('GraphClassifier',))
    """
    owners: dict[str, list[str]] = {}
    for key in keys or CHOICES:
        for class_name, path in CHOICES[key][1].items():
            for argument in _arguments(import_object(path)):
                owners.setdefault(f"{PREFIXES[key]}.{argument}", []).append(class_name)
    return {option: tuple(class_names) for option, class_names in owners.items()}


def import_object(path: str) -> Any:
    """Import a class or function by its path.

    >>> import_object("attree.models.GAT").__name__
    'GAT'
    """
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _arguments(kind: type) -> list[str]:
    """Return the names of the arguments of a class and its bases in attree, without arguments that take a class."""
    arguments = [
        argument
        for base in inspect.getmro(kind)
        if base.__module__.startswith("attree.") and "__init__" in vars(base)
        for argument in inspect.signature(base).parameters
    ]
    return [name for name in dict.fromkeys(arguments) if name not in CHOICES]
