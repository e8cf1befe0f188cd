"""The penalties that a config can name, and how to make them from the config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from inspect import signature
from typing import Any

from attree.errors import ArgumentError, did_you_mean, expect, expect_name
from attree.penalties.penalty import AttentionPenalty
from attree.penalties.rows import GSAT, Entropy, HeadAgreement, Sparsity, UniformDistance
from attree.penalties.targets import EffectConsistency, TrueEdges

PENALTIES: dict[str, type[AttentionPenalty]] = {
    penalty.name: penalty
    for penalty in (Entropy, UniformDistance, Sparsity, HeadAgreement, TrueEdges, EffectConsistency, GSAT)
}
"""attree's own penalties by name."""

PenaltiesArgument = Mapping[str, Any] | Iterable[AttentionPenalty]
"""Type of the argument `penalties`: penalties, or a mapping of names to settings, see `make_penalties`."""


def make_penalties(penalties: PenaltiesArgument | None) -> dict[str, AttentionPenalty]:
    """Make penalties, and return them by the name under which each is logged.

    Args:
        penalties: Penalties, or a mapping. In a mapping, the name of one of attree's penalties has its strength as
            value, or its arguments (`true_edges: {share: 0.1}`, on the command line also `true_edges.share: 0.1`). Your
            own penalty has `class_path` and `init_args` as value, under any name.

    >>> made = make_penalties({"entropy": 0.1, "true_edges": {"strength": 2.0, "share": 0.1}})
    >>> made["entropy"].strength, made["true_edges"].share
    (0.1, 0.1)
    """
    if penalties is None:
        return {}
    if isinstance(penalties, Mapping):
        return {expect_name(name, "penalties"): _make(name, value) for name, value in _nested(penalties).items()}
    is_list = isinstance(penalties, Iterable) and not isinstance(penalties, str)
    penalty_list = list(penalties) if is_list else []
    fits = is_list and all(isinstance(penalty, AttentionPenalty) for penalty in penalty_list)
    expect(fits, "penalties", "penalties, or a mapping of their names to strengths", penalties)
    for penalty in penalty_list:
        _check_class(penalty)
        if not hasattr(penalty, "name"):
            raise ArgumentError(f"Expected {type(penalty).__name__} to have a `name`, which is used for logging.")
    names = [penalty.name for penalty in penalty_list]
    expect(len(set(names)) == len(names), "penalties", "penalties of different names (a mapping gives names)", names)
    return dict(zip(names, penalty_list, strict=True))


def plain_settings(penalties: Mapping[str, AttentionPenalty]) -> dict[str, Any]:
    """Return the arguments of attree's own penalties, from which `make_penalties` can make them again.

    >>> plain_settings({"entropy": Entropy(0.1)})
    {'entropy': {'strength': 0.1, 'flatter': False}}
    """
    own_penalties = {name: penalty for name, penalty in penalties.items() if PENALTIES.get(name) is type(penalty)}
    settings = {name: penalty.settings() for name, penalty in own_penalties.items()}
    return {name: value for name, value in settings.items() if value is not None}


def only_own(settings: Any) -> dict[str, Any]:
    """Return only the settings of attree's own penalties.

    The settings come from files that may not be trusted, and creating other penalties would run their code.
    """
    if not isinstance(settings, Mapping):
        return {}
    return {
        name: value
        for name, value in settings.items()
        if name in PENALTIES and not (isinstance(value, Mapping) and "class_path" in value)
    }


def _nested(penalties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with each `name.argument: value` replaced by `name: {argument: value}`."""
    nested: dict[str, Any] = {}
    for key, value in penalties.items():
        name, dot, argument = expect_name(key, "penalties").partition(".")
        if dot:
            added: Any = {argument: value}
        elif name in nested and not isinstance(value, Mapping):
            added = {"strength": value}
        else:
            added = value
        before = nested.get(name)
        if before is not None and isinstance(added, Mapping):
            added = {**(before if isinstance(before, Mapping) else {"strength": before}), **added}
        nested[name] = added
    return nested


def _value(text: str) -> Any:
    """Convert a text from the command line to a number or bool if it is one."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return text


def _make(name: str, value: Any) -> AttentionPenalty:
    """Create one penalty from its entry in the config."""
    if isinstance(value, AttentionPenalty):
        return _check_class(value)
    where = f"penalties.{name}"
    if isinstance(value, Mapping) and "class_path" in value:
        extra = sorted(set(value) - {"class_path", "init_args"})
        expect(not extra, where, "only `class_path` and `init_args`", extra)
        arguments = value.get("init_args") or {}
        expect(isinstance(arguments, Mapping), f"{where}.init_args", "a mapping of arguments", arguments)
        return _check_class(_call(_imported(str(value["class_path"]), where), arguments, where))
    if name not in PENALTIES:
        raise ArgumentError(
            f"Expected argument `penalties` to name some of {', '.join(PENALTIES)}, or to give a `class_path`, but got "
            f"{name!r}.{did_you_mean(name, PENALTIES)}"
        )
    arguments = value if isinstance(value, Mapping) else {"strength": value}
    # The command line passes nested arguments as text.
    arguments = {
        key: _value(argument) if isinstance(argument, str) else argument for key, argument in arguments.items()
    }
    return _call(PENALTIES[name], arguments, where)


def _check_class(penalty: AttentionPenalty) -> AttentionPenalty:
    """Return a penalty if it can be called in a training step; raise an `ArgumentError` if it cannot."""
    kind = type(penalty)
    methods = {"measure": "the attention", "measure_step": "the step"}
    defined = [name for name in methods if getattr(kind, name) is not getattr(AttentionPenalty, name)]
    if not defined:
        raise ArgumentError(f"Expected {kind.__name__} to define `measure` or `measure_step`, but it defines neither.")
    for name in defined:
        parameters = signature(getattr(kind, name))
        try:
            parameters.bind(penalty, None)
        except TypeError:
            raise ArgumentError(
                f"Expected `{name}` of {kind.__name__} to take one argument, {methods[name]}, but got "
                f"{name}{parameters}."
            ) from None
    if not hasattr(penalty, "strength"):
        raise ArgumentError(f"Expected the `__init__` of {kind.__name__} to call `super().__init__(strength)`.")
    return penalty


def _imported(path: str, where: str) -> type[AttentionPenalty]:
    """Return the penalty class of an import path."""
    home, _, name = path.rpartition(".")
    try:
        penalty_class = getattr(import_module(home), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(f"Expected `{where}.class_path` to be importable, but {path!r}: {error}") from error
    is_penalty = isinstance(penalty_class, type) and issubclass(penalty_class, AttentionPenalty)
    expect(is_penalty, f"{where}.class_path", "a subclass of attree.penalties.AttentionPenalty", path)
    return penalty_class


def _call(penalty: type[AttentionPenalty], arguments: Mapping[str, Any], where: str) -> AttentionPenalty:
    try:
        return penalty(**arguments)
    except TypeError as error:
        raise ArgumentError(
            f"Expected argument `{where}` to be arguments of {penalty.__name__}, but got {dict(arguments)}: {error}"
        ) from error
