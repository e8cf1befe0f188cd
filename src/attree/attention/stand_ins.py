"""A private copy of a model for experiments, and how it is run: in eval mode, eagerly, with little memory.

Explaining a model takes passes in eval mode, hooks, replaced methods and replaced weights. All of this happens on a
*stand-in*: a copy of the module tree that shares the tensors of the model. The model itself is never touched, so there
is nothing to restore, and another thread can predict with the model, train it or explain it meanwhile. What a stand-in
writes to its own attributes (a cache, the last attention) is lost with it.

A forward may also write into a tensor, such as the memory of a temporal network. `kept_tensors` notices this before it
happens; stand-ins that are made afterwards have a copy of the tensor.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy as shallow_copy
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import GATConv, GATv2Conv

from attree.attention.marked_tensors import storage_of, tensors_in, written_by
from attree.errors import AttreeError, UnsupportedModelError

Convert = Callable[[Tensor], Tensor]
"""Returns the tensor that a stand-in holds in place of a tensor of the model."""

LONGEST = 256
"""The entries of longer collections are shared with the model: they are data, not modules."""

DEEPEST = 4
"""Closures are not searched for modules in collections inside this many others: a list may contain itself."""

_COLLECTIONS = (dict, OrderedDict, defaultdict, list, tuple, set)

_PLAIN = frozenset({type(None), bool, int, float, str})
"""Types of most attributes of a module, which lead to no module or tensor."""


def stand_in(model: nn.Module, convert: Convert | None = None) -> nn.Module:
    """Return a private copy of a model in eval mode, for experiments.

    Modules are copied wherever the model holds them: as submodules, in lists and dicts, in bound methods, closures and
    helper objects. Compiled modules are replaced by the modules that they were compiled from. Modules in TorchScript
    are shared: they cannot be hooked anyway.

    Args:
        model: The model. It is only read.
        convert: Called once for each floating-point tensor that a module holds; None shares the tensors.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> other = stand_in(net)
    >>> other[0].weight is net[0].weight, other[1].training, net[1].training
    (True, False, True)
    """
    return _Copier(model, convert).module(model)


def frozen(tensor: Tensor) -> Tensor:
    """Convert a tensor to one that shares its memory and needs no gradient; for `stand_in`.

    A tensor that was made in inference mode is copied, because autograd refuses it.
    """
    with torch.inference_mode(False):
        values = tensor.clone() if tensor.is_inference() else tensor.detach()
        return nn.Parameter(values, requires_grad=False) if isinstance(tensor, nn.Parameter) else values


def copied(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Convert a tensor to a copy, which may have another dtype; for `stand_in`."""
    with torch.inference_mode(False):
        values = tensor.detach().to(dtype or tensor.dtype, copy=True)
        return nn.Parameter(values, requires_grad=False) if isinstance(tensor, nn.Parameter) else values


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is what `torch.compile` returns; found by name, because its class would import the compiler."""
    return type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Norms whose buffers are statistics: they change in training only, and decide no path."""

_WRITTEN: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""By the user's modules: the names of tensors that their forward writes to."""


class WritesTensorError(AttreeError):
    """Raised in place of an operation that would write to a tensor of the user's model."""


class _KeptTensors(TorchDispatchMode):
    """Raises `WritesTensorError` before an operation writes to one of some tensors.

    Args:
        owners: The module and name of each tensor, by its memory.
    """

    def __init__(self, owners: dict[StorageWeakRef, tuple[nn.Module, str]]) -> None:
        super().__init__()
        self._owners = owners

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for tensor in tensors_in(written_by(func, args, kwargs)):
                if (owner := self._owners.get(storage_of(tensor))) is not None:
                    module, name = owner
                    _WRITTEN.setdefault(module, set()).add(name)
                    raise WritesTensorError(f"Expected {type(module).__name__} not to write to `{name}` in eval mode.")
        return func(*args, **kwargs)


@contextmanager
def kept_tensors(model: nn.Module) -> Iterator[None]:
    """While open, what would write to a buffer or attribute of `model` raises `WritesTensorError` before it does.

    Stand-ins that are made afterwards hold a copy of that tensor. Parameters are not watched, nor the statistics of
    norms, which no forward writes to in eval mode.
    """
    owners = {
        storage_of(value): (module, name)
        for module in model.modules()
        if not isinstance(module, (*NORMS, torch.jit.ScriptModule))
        for name, value in (*module.named_buffers(recurse=False), *vars(module).items())
        if isinstance(value, Tensor) and value.numel()
    }
    with _KeptTensors(owners) if owners else nullcontext():
        yield


class _Copier:
    """Copies the module tree of one model; the same object is copied once."""

    def __init__(self, model: nn.Module, convert: Convert | None) -> None:
        self._convert = convert
        self._modules: dict[int, nn.Module] = {}
        self._tensors: dict[int, Tensor] = {}
        self._others: dict[int, Any] = {}
        self._in_tree = {id(module) for module in model.modules()}

    def module(self, module: nn.Module) -> nn.Module:
        if isinstance(module, torch.jit.ScriptModule):
            return module
        if is_compiled(module):
            inner = module._modules["_orig_mod"]
            assert inner is not None
            return self.module(inner)
        if id(module) not in self._modules:
            # Neither the class's constructor nor its own way of copying is called.
            copy: nn.Module = object.__new__(type(module))
            self._modules[id(module)] = copy
            vars(copy).update({name: self.value(value) for name, value in vars(module).items()})
            vars(copy).update(training=False, _compiled_call_impl=None)
            for name in _WRITTEN.get(module, ()):
                with torch.inference_mode(False):
                    setattr(copy, name, getattr(copy, name).clone())
            if "use_nested_tensor" in vars(copy):  # a TransformerEncoder; modules with hooks cannot take nested tensors
                vars(copy)["use_nested_tensor"] = False
            if vars(copy).get("cached") is True:  # a PyG layer that keeps the normalised graph of its first call
                vars(copy).update({name: None for name in vars(copy) if name.startswith("_cached")}, cached=False)
        return self._modules[id(module)]

    def value(self, value: Any) -> Any:
        """Return the value of an attribute for the stand-in; the same object if it leads to no module or tensor."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, nn.Module):
            return self.module(value)
        if type(value) in _COLLECTIONS:
            return self._collection(value) if len(value) <= LONGEST else shallow_copy(value)
        if isinstance(value, MethodType):
            owner = self.value(value.__self__)
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        if isinstance(value, partial):
            function, arguments, named = self.value((value.func, value.args, value.keywords))
            return partial(function, *arguments, **named)
        if isinstance(value, FunctionType):
            return self._function(value)
        return self._helper(value)

    def _tensor(self, tensor: Tensor) -> Tensor:
        if self._convert is None or not tensor.is_floating_point():
            return tensor
        if id(tensor) not in self._tensors:  # keep tied weights tied
            self._tensors[id(tensor)] = self._convert(tensor)
        return self._tensors[id(tensor)]

    def _collection(self, value: Any) -> Any:
        """Return a collection of its own, so that hooks and entries that are added to it stay private."""
        if isinstance(value, tuple):
            return tuple(self.value(entry) for entry in value)
        if id(value) in self._others:  # it may contain itself
            return self._others[id(value)]
        copy: Any = defaultdict(value.default_factory) if isinstance(value, defaultdict) else type(value)()
        self._others[id(value)] = copy
        if isinstance(value, dict):
            copy.update({key: self.value(entry) for key, entry in value.items()})
        else:
            (copy.update if isinstance(value, set) else copy.extend)([self.value(entry) for entry in value])
        return copy

    def _function(self, function: FunctionType) -> FunctionType:
        """Return a function whose closure holds copies of the modules."""
        if function.__closure__ is None or id(function) in self._others:
            return self._others.get(id(function), function)
        self._others[id(function)] = function  # a function may call itself
        cells = []
        for cell in function.__closure__:
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                cells.append(cell)
                continue
            replaced = self.value(content) if _may_hold_modules(content) else content
            cells.append(cell if replaced is content else CellType(replaced))
        if all(new is old for new, old in zip(cells, function.__closure__, strict=True)):
            return function
        copy = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells)
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        vars(copy).update(vars(function))
        self._others[id(function)] = copy
        return copy

    def _helper(self, value: Any) -> Any:
        """Return a copy of a plain object that holds modules of the model; any other object unchanged."""
        attributes = getattr(value, "__dict__", None)
        if isinstance(value, type) or not isinstance(attributes, dict):
            return value
        if not any(id(entry) in self._in_tree for entry in attributes.values()):
            return value
        copy = object.__new__(type(value))
        vars(copy).update({name: self.value(entry) for name, entry in attributes.items()})
        return copy


def _may_hold_modules(value: Any, depth: int = 0) -> bool:
    """Whether a closure's content is a module, a function or a short collection of these."""
    if type(value) in _COLLECTIONS and len(value) <= LONGEST and depth < DEEPEST:
        return any(_may_hold_modules(entry, depth + 1) for entry in (value.values() if type(value) is dict else value))
    return isinstance(value, nn.Module | MethodType | partial | FunctionType)


_PRODUCTS = (GATConv.message, GATv2Conv.message)
"""Message functions that return the product of features and weights."""


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode and run compiled modules eagerly; on exit, restore the mode of every submodule.

    Only flags are set: a model's own `eval` or `train` may do more, such as empty a memory. Compiled code neither calls
    hooks of the modules inside it nor sees methods that were replaced afterwards.
    """
    # What `torch.compile` returns has no flag of its own.
    modes = [(module, module.training) for module in model.modules() if "training" in vars(module)]
    try:
        for module, _ in modes:
            vars(module)["training"] = False
        with run_eagerly():
            yield
    finally:
        for module, mode in modes:
            vars(module)["training"] = mode


_EAGER_LOCK = threading.Lock()
_EAGER: list[AbstractContextManager[Any]] = []
"""The stance of the compiler that eager runs have set, once for each open context of any thread."""


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Context in which compiled code runs eagerly, in all threads: torch has one setting for the process."""
    # If something is compiled, the compiler is imported already. Importing it otherwise would take a second.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with _EAGER_LOCK:
        # The first context sets the stance and the last one resets it, whichever threads they belong to.
        _EAGER.append(nullcontext() if _EAGER else torch.compiler.set_stance("force_eager"))
        stance = _EAGER[0]
        if len(_EAGER) == 1:
            stance.__enter__()
    try:
        yield
    finally:
        with _EAGER_LOCK:
            if len(_EAGER) == 1:
                stance.__exit__(None, None, None)
                _EAGER.clear()
            else:
                _EAGER.pop()


def score_tensor(output: Any) -> Tensor:
    """Return a model's output; raise unless it is one tensor with a row per node or graph."""
    if not isinstance(output, Tensor) or output.dim() == 0:
        raise UnsupportedModelError(
            f"Expected the model to return a tensor of scores, but got {type(output).__name__}."
        )
    return output


@contextmanager
def inplace_messages(model: nn.Module) -> Iterator[None]:
    """While open, GATConv and GATv2Conv of a model multiply messages in place; the numbers stay the same.

    A convolution gathers the source features of every edge, and multiplies them by the attention into a second array of
    the same size. Nothing else uses the gathered array, so without gradients the product can overwrite it. On a graph
    with millions of edges, this saves one of the two largest arrays of a forward pass.

    Args:
        model: The model. Subclasses with their own `message`, and passes with gradients, are not changed.
    """
    patched = [
        module for module in model.modules() if getattr(type(module), "message", None) in _PRODUCTS and _is_free(module)
    ]
    for module in patched:
        module.__dict__["message"] = _multiply
    try:
        yield
    finally:
        for module in patched:
            module.__dict__.pop("message", None)


def _is_free(module: nn.Module) -> bool:
    """Whether the instance has no `message` of its own and no hooks on messages."""
    hooks = (getattr(module, name, None) for name in ("_message_forward_pre_hooks", "_message_forward_hooks"))
    return "message" not in module.__dict__ and not any(hooks)


def _multiply(x_j: Tensor, alpha: Tensor) -> Tensor:
    weight = alpha.unsqueeze(-1)
    if torch.is_grad_enabled() or x_j.dtype != alpha.dtype:  # the product may have a wider type than the features
        return weight * x_j
    return x_j.mul_(weight)
