"""The structure of a model and of its call: everything that decides the shape of a computation, without the weights.

Two calls with the same structure have the same wiring and return rows of the same level. What an experiment found for
one of them therefore holds for the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from attree.attention.stand_ins import NORMS
from attree.subject.model_call import ModelCall

LONGEST = 64
"""Collections with more entries than this are compared by identity."""

DEEPEST = 4
"""Collections inside this many others are compared by identity: a list may contain itself."""

RUNS_ON_ROWS = "runs on rows"
"""The fact that a model gives the recorded outputs when it runs on single rows, between rows of noise: its outputs read
nothing but what its layers reach, and they are not random. Engines that run on rows check it and add it.
"""

BYPASSED = "bypassed layers"
"""The fact which layers are bypassed, as far as a measurement with some weights has shown it."""

_REGISTRIES = frozenset({"_parameters", "_buffers", "_modules", "training"})

_PLAIN = frozenset({type(None), bool, int, float, str})
"""Types of most attributes of a module. Looking a type up is faster than `isinstance`."""

_OF_TRAINER = frozenset({"_current_fx_name", "_metric_attributes"})
"""Attributes in which Lightning notes which hook runs and which metrics it has logged."""


def model_structure(model: nn.Module) -> Hashable:
    """Return the modules of a model with their attributes, buffers and hooks, as one hashable value.

    Numbers, strings and small collections count by their values, buffers by their identity and version, and all
    other objects by their identity. What only watches training, metrics and Lightning's notes, decides no path: it
    changes in every epoch, and is left out.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    >>> before = model_structure(net)
    >>> net[1].p = 0.1
    >>> before == model_structure(net)
    False
    """
    computing = (module for module in model.modules() if not _is_metric(module))
    return tuple((id(module), type(module), _attributes(module)) for module in computing)


def call_structure(call: ModelCall) -> Hashable:
    """Return the structure of a call: its model, and the names, kinds and shapes of its arguments."""
    shapes = tuple((name, _shape(value)) for name, value in zip(call.names, call.values, strict=True))
    return model_structure(call.user_model), call.kinds, shapes, call.node_type


_FACTS: WeakKeyDictionary[nn.Module, tuple[Hashable, dict[Hashable, Any]]] = WeakKeyDictionary()
"""By the user's model: the structure of its last call, and what experiments found for calls of this structure."""


def facts_of(call: ModelCall) -> dict[Hashable, Any]:
    """Return what is known of calls of this structure, to read and to add to; empty if the structure is new.

    A function that calls the model (`convention`) is part of the structure, and is held as long as its facts are.
    """
    structure = call_structure(call), id(call.convention)
    entry = _FACTS.get(call.user_model)
    if entry is None or entry[0] != structure:
        entry = structure, {"convention": call.convention}
        _FACTS[call.user_model] = entry
    return entry[1]


def _is_metric(module: nn.Module) -> bool:
    """Whether a module is one of torchmetrics, or its class is made from one."""
    return any(base.__module__.partition(".")[0] == "torchmetrics" for base in type(module).__mro__)


def _attributes(module: nn.Module) -> Hashable:
    ignored = _REGISTRIES | _OF_TRAINER
    attributes = tuple((name, _value(value)) for name, value in vars(module).items() if name not in ignored)
    if isinstance(module, NORMS):
        return attributes
    return attributes, tuple((name, _value(buffer)) for name, buffer in module.named_buffers(recurse=False))


def _value(value: Any, depth: int = 0) -> Hashable:
    """Return a hashable summary of a module's attribute; large values and tensors count by identity."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        return id(value), None if value.is_inference() else value._version
    if isinstance(value, (int, float, str)):
        return value
    if not isinstance(value, (dict, list, tuple, set, frozenset)) or len(value) > LONGEST or depth == DEEPEST:
        return id(value)
    entries = (*value, *value.values()) if isinstance(value, dict) else value
    return id(type(value)), tuple(_value(entry, depth + 1) for entry in entries)


def _shape(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, Mapping):
        return tuple((key, _shape(entry)) for key, entry in value.items())
    return _value(value)
