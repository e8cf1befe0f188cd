"""The model inside wrappers (compiled, DataParallel, averaged weights), and the parameters of its forward."""

from __future__ import annotations

from inspect import Parameter, signature

from torch import nn


def parameters(model: nn.Module) -> list[Parameter]:
    """The named parameters of a model's forward, also behind wrappers that pass on whatever they are given."""
    own = list(signature(unwrapped(model).forward).parameters.values())
    return [one for one in own if one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside compiled models, DataParallel, averaged models and others that pass their arguments on.

    >>> layer = nn.Linear(1, 1)
    >>> unwrapped(nn.DataParallel(layer)) is layer, unwrapped(layer) is layer
    (True, True)
    """
    while True:
        kinds = {one.kind for one in signature(model.forward).parameters.values()}
        if kinds - {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
            return model
        inner = next((getattr(model, name, None) for name in WRAPPED if _holds(model, name)), None)
        if inner is None:
            return model
        model = inner


WRAPPED = ("_orig_mod", "module", "encoder", "model", "net")
"""Where wrappers keep the module that they pass their arguments on to."""


def _holds(model: nn.Module, name: str) -> bool:
    return isinstance(getattr(model, name, None), nn.Module)
