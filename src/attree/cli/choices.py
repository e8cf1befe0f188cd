"""The classes that can be chosen by name, and their short names in arguments and configs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

import attree.data
import attree.models
from attree.config_files import find_config


def subclasses(module: ModuleType, base: type) -> dict[str, str]:
    """Import paths, by name, of the classes that a module offers: subclasses of `base` that have none of their own."""
    classes = [getattr(module, name) for name in sorted(module.__all__)]
    found = [one for one in classes if inspect.isclass(one) and issubclass(one, base) and one is not base]
    leaves = [one for one in found if not any(issubclass(other, one) and other is not one for other in found)]
    return {one.__name__: f"{module.__name__}.{one.__name__}" for one in leaves}


CHOICES: dict[str, tuple[str, dict[str, str]]] = {
    "data": ("a dataset", subclasses(attree.data, LightningDataModule)),
    "model": ("a LightningModule", subclasses(attree.models, LightningModule)),
    "net": ("a network", subclasses(attree.models, attree.models.AttentionNet)),
}
"""For the keys that take a class: what it is, and attree's own by name."""


def names(key: str) -> str:
    """The names to choose from under a key, as they are listed in a sentence."""
    return ", ".join(CHOICES[key][1])


def full_name(key: str, name: Any) -> Any:
    """The import path of attree's class of this name; anything else as it is.

    >>> full_name("net", "GAT"), full_name("net", "torch_geometric.nn.GAT")
    ('attree.models.GAT', 'torch_geometric.nn.GAT')
    """
    return CHOICES[key][1].get(name, name) if key in CHOICES and isinstance(name, str) else name


def expand_arguments(arguments: list[str]) -> list[str]:
    """Write out attree's own class names and configs in arguments: other packages, PyG among them, have a GAT too.

    >>> expand_arguments(["--model.net", "GAT", "--data=Infection", "--model.net.heads=2"])
    ['--model.net', 'attree.models.GAT', '--data=attree.data.Infection', '--model.net.heads=2']
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
    return find_config(value) if option in ("--config", "-c") else str(full_name(_key(option), value))


def _key(option: str) -> str:
    return option.removeprefix("--").removesuffix(".class_path").rpartition(".")[2] if option.startswith("--") else ""


def expand_config(content: Any, key: str = "") -> Any:
    """Write out attree's own class names in what was read from a config.

    >>> expand_config({"model": {"init_args": {"net": {"class_path": "GAT"}}}, "data": "Infection"})
    {'model': {'init_args': {'net': {'class_path': 'attree.models.GAT'}}}, 'data': 'attree.data.Infection'}
    """
    if isinstance(content, dict):
        return {name: expand_config(value, key if name == "class_path" else name) for name, value in content.items()}
    if isinstance(content, list):
        return [expand_config(value) for value in content]
    return full_name(key, content)


def known_arguments(*keys: str) -> Iterator[str]:
    """Names of the arguments of attree's own classes: those under these keys, or all."""
    for key in keys or CHOICES:
        for path in CHOICES[key][1].values():
            module, _, name = path.rpartition(".")
            one = getattr({"attree.data": attree.data, "attree.models": attree.models}[module], name)
            for base in inspect.getmro(one):
                if base.__module__.startswith("attree.") and "__init__" in vars(base):
                    yield from list(inspect.signature(base).parameters)
