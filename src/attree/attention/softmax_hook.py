"""Replace the softmax of any PyG attention convolution without copying its code.

Every attention convolution of PyG calls `torch_geometric.utils.softmax` to turn scores into weights. `SoftmaxPatch`
makes methods for one convolution instance: the same code, with another softmax. Classes, modules and other models are
not changed. A patched convolution can be patched again: the last patch is active.

Code can reach `torch_geometric.utils.softmax` in many ways: as a global of any name, as an attribute of a module
(`utils.softmax`), in a helper function, in a method of a base class (by `super()` or by the name of the base), in a
closure, or by an import inside a function. A patched function finds the other softmax in all these places.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping
from dis import get_instructions
from functools import lru_cache, partial
from itertools import pairwise
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch_geometric.nn import (
    DenseGATConv,
    DenseGCNConv,
    DenseGINConv,
    DenseGraphConv,
    DenseSAGEConv,
    MessagePassing,
)
from torch_geometric.utils import softmax as pyg_softmax

from attree.attention.global_attention_readers import reader_of
from attree.errors import UnsupportedModelError

DENSE = (DenseGATConv, DenseGCNConv, DenseGINConv, DenseGraphConv, DenseSAGEConv)
"""Layers that run on a dense adjacency matrix."""


def attention_convs(model: nn.Module) -> list[MessagePassing]:
    """Return the attention convolutions of a model, in registration order.

    Raises:
        UnsupportedModelError: If there are none, or if a convolution passes messages without attention, so that its
            layer of the computation tree has no weights.
    """
    patched = {conv: SoftmaxPatch(conv, lambda scores: scores).attributes() for conv in message_passing(model)}
    check_attention(patched)
    return list(patched)


def check_attention(patched: Mapping[MessagePassing, Mapping[str, Any]]) -> None:
    """Raise if some message-passing layers have nothing to patch, because they never call the softmax."""
    without_softmax = sorted({type(conv).__name__ for conv, attributes in patched.items() if not attributes})
    if without_softmax:
        raise UnsupportedModelError(
            f"Expected every message-passing layer to compute attention weights, but got {', '.join(without_softmax)}, "
            "whose methods do not call torch_geometric.utils.softmax."
        )


def no_python_code(model: nn.Module) -> UnsupportedModelError:
    """Return the refusal of a model that is no Python code any more."""
    return UnsupportedModelError(
        f"Expected a model in Python, but {type(model).__name__} is traced, scripted or exported: such code has no "
        "convolutions to hook. Explain the model that it was made from."
    )


def check_registered(model: nn.Module) -> None:
    """Raise if a message-passing layer is in a plain list, tuple or dict: PyTorch does not know it either."""
    registered = set(model.modules())
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in ("_modules", "_parameters", "_buffers") or not isinstance(value, list | tuple | dict):
                continue
            items = value.values() if isinstance(value, dict) else value
            hidden = [item for item in items if isinstance(item, nn.Module) and item not in registered]
            layers = [layer for item in hidden for layer in item.modules() if isinstance(layer, MessagePassing)]
            if layers:
                place = f"{name}.{attribute}" if name else attribute
                raise UnsupportedModelError(
                    f"Expected argument `model` to register its layers, but `{place}` is a Python "
                    f"{type(value).__name__} with {type(layers[0]).__name__}: use nn.ModuleList or nn.ModuleDict. "
                    "PyTorch does not find such layers either: an optimizer does not train them."
                )


def message_passing(model: nn.Module) -> list[MessagePassing]:
    """Return all message-passing layers of a model, in registration order.

    Raises:
        UnsupportedModelError: If there are none, and no attention over all nodes in their place.
    """
    convs = [module for module in model.modules() if isinstance(module, MessagePassing)]
    if convs or any(reader_of(module) is not None for module in model.modules()):
        return convs
    if any(isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule) for module in model.modules()):
        raise no_python_code(model)
    raise UnsupportedModelError(
        f"Expected a model with PyG attention convolutions, but got {type(model).__name__}, which has none."
    )


def check_dense(model: nn.Module) -> None:
    """Raise if a layer runs on a dense adjacency matrix: it has no list of edges to align weights with."""
    for name, module in model.named_modules():
        if isinstance(module, DENSE):
            raise UnsupportedModelError(
                f"Expected layers along lists of edges, but `{name}` ({type(module).__name__}) runs on a dense "
                "adjacency matrix, which no walk along edges can follow. The same layer with `edge_index` can be "
                "walked (GATConv for DenseGATConv)."
            )


_ORIGINAL = "__attree_original__"
"""Attribute of a patched function that holds the original function."""

Names = frozenset[str]


class SoftmaxPatch:
    """Replaces PyG's softmax in the methods of one convolution.

    Args:
        conv: The convolution.
        softmax: The function to use instead of PyG's softmax.
    """

    def __init__(self, conv: MessagePassing, softmax: Callable[..., Tensor]) -> None:
        self._conv = conv
        self._softmax = softmax
        self._softmax.__dict__[_ORIGINAL] = pyg_softmax
        self._patched_functions: dict[FunctionType, FunctionType | None] = {}
        ancestors = type(conv).__mro__
        self._classes = ancestors[: ancestors.index(MessagePassing)]

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the convolution that call PyG's softmax, patched to call the other softmax."""
        defined = dict(vars(self._conv))
        for base in self._classes:
            for name, value in vars(base).items():
                # Functions of a class become methods of the instance.
                defined.setdefault(name, MethodType(value, self._conv) if isinstance(value, FunctionType) else value)
        changed = {}
        for name, value in defined.items():
            if callable(value) and not name.startswith("__"):
                replacement = self.replacement(_original(value))
                if replacement is not None:
                    changed[name] = replacement
        return changed

    def replacement(self, value: Any, names: Names = frozenset()) -> Any:
        """Return a replacement of `value` that calls the other softmax; None if `value` does not lead to PyG's softmax.

        Args:
            value: A function, method, module or class.
            names: Attribute names that the calling code reads from modules and classes.
        """
        if value is pyg_softmax:
            return self._softmax
        if isinstance(value, FunctionType):
            return self._patched(value)
        if isinstance(value, staticmethod):
            return self.replacement(value.__func__, names)
        if isinstance(value, MethodType) and value.__self__ is self._conv:
            patched = self._patched(value.__func__) if isinstance(value.__func__, FunctionType) else None
            return None if patched is None else MethodType(patched, self._conv)
        if isinstance(value, partial):
            function = self.replacement(value.func, names)
            return None if function is None else partial(function, *value.args, **value.keywords)
        if isinstance(value, ModuleType) or (isinstance(value, type) and value in self._classes):
            return self._view(value, names)
        return None

    def _view(self, owner: Any, names: Names) -> _View | None:
        """Return a view of a module, class or `super()`, if one of the names leads from it to PyG's softmax."""
        if isinstance(owner, ModuleType) and owner.__name__.partition(".")[0] == "torch":
            return None
        leads = any(self.replacement(getattr(owner, name, None), names - {name}) is not None for name in names)
        return _View(owner, self, names) if leads else None

    def _patched(self, function: FunctionType) -> FunctionType | None:
        """Return the same code with the other softmax; None if it does not reach PyG's softmax."""
        if function not in self._patched_functions:
            self._patched_functions[function] = None  # ends the recursion if functions call each other
            if not _is_library(function):
                self._patched_functions[function] = self._make_patched(function)
        return self._patched_functions[function]

    def _make_patched(self, function: FunctionType) -> FunctionType | None:
        """Return a copy of a function with the other softmax; None if the function never reaches PyG's softmax."""
        reads, imports, names = _names_in_bytecode(function.__code__)
        replacements = {}
        for name, attributes in reads.items():
            value = function.__globals__.get(name)
            # A module may be stored in a local name first, so all names count. For a class they would be too many.
            replacements[name] = self.replacement(value, attributes if isinstance(value, type) else names)
        if any(self.replacement(sys.modules.get(name), names) is not None for name in imports):
            replacements["__builtins__"] = {**vars(builtins), "__import__": self._importer(names)}

        closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        owner = closure["__class__"].cell_contents if "super" in reads and "__class__" in closure else None
        cells = {name: self._cell(cell, names) for name, cell in closure.items() if name != "__class__"}
        leads = any(value is not None for value in (*replacements.values(), *cells.values()))
        if owner in self._classes and (leads or self._view(super(owner, self._conv), names) is not None):
            replacements["super"] = self._super(owner, names)
        elif not leads:
            return None
        patched = FunctionType(
            function.__code__,
            function.__globals__ | {name: value for name, value in replacements.items() if value is not None},
            function.__name__,
            function.__defaults__,
            tuple(cells.get(name) or cell for name, cell in closure.items()),
        )
        patched.__kwdefaults__ = function.__kwdefaults__
        patched.__dict__[_ORIGINAL] = function
        return patched

    def _cell(self, cell: CellType, names: Names) -> CellType | None:
        """Return a closure cell with the replacement of its content; None if it needs no replacement."""
        try:
            replacement = self.replacement(cell.cell_contents, names)
        except ValueError:  # not filled yet
            return None
        return None if replacement is None else CellType(replacement)

    def _super(self, owner: type, names: Names) -> Callable[..., Any]:
        """Return the replacement of `super` for methods that class `owner` defines."""

        def super_(cls: Any = owner, instance: Any = self._conv) -> Any:
            return _View(super(getattr(cls, "_owner", cls), instance), self, names)

        return super_

    def _importer(self, names: Names) -> Callable[..., Any]:
        def import_(*args: Any, **kwargs: Any) -> Any:
            module = builtins.__import__(*args, **kwargs)
            return self.replacement(module, names) or module

        return import_


class _View:
    """A module, class or `super()` whose attributes are replaced by `SoftmaxPatch.replacement`."""

    def __init__(self, owner: Any, patch: SoftmaxPatch, names: Names) -> None:
        self._owner, self._patch, self._names = owner, patch, names

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._owner, name)
        replacement = self._patch.replacement(value, self._names - {name})
        return value if replacement is None else replacement

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._owner(*args, **kwargs)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._owner)


def _original(value: Any) -> Any:
    """Return the original of a patched function; any other value is returned unchanged."""
    if isinstance(value, MethodType):
        return MethodType(_original(value.__func__), value.__self__)
    return getattr(value, _ORIGINAL, value) if isinstance(value, FunctionType) else value


@lru_cache(maxsize=4096)
def _names_in_bytecode(code: CodeType) -> tuple[dict[str, Names], Names, Names]:
    """Return the names in the bytecode of a function, among which its softmax is looked for.

    These are the globals that it reads with their attributes, the modules it imports, and all names it uses. Nested
    functions are included.
    """

    steps = list(get_instructions(code))
    reads: dict[str, Names] = {}
    imports = frozenset(str(step.argval) for step in steps if step.opname == "IMPORT_NAME")
    names = frozenset(code.co_names)
    for step, following in pairwise(steps):
        if step.opname == "LOAD_GLOBAL":
            is_read = following.opname in ("LOAD_ATTR", "LOAD_METHOD")
            reads[step.argval] = reads.get(step.argval, frozenset()) | ({following.argval} if is_read else set())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner_reads, inner_imports, inner_names = _names_in_bytecode(constant)
            imports, names = imports | inner_imports, names | inner_names
            for name, asked_for in inner_reads.items():
                reads[name] = reads.get(name, frozenset()) | asked_for
    return reads, imports, names


def _is_library(function: FunctionType) -> bool:
    """Whether a function never calls PyG's softmax: functions of torch, and those of PyG that are not methods."""
    package = (function.__module__ or "").partition(".")[0]
    return package == "torch" or (package == "torch_geometric" and "." not in function.__qualname__)
