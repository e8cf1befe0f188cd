"""Attribution methods by the names that users type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module

from attree.attribution.method import AttributionMethod
from attree.defaults import ALL_METHODS
from attree.errors import expect, expect_ints, expect_list, expect_name, expect_seed


class MethodTable(Mapping[str, type[AttributionMethod]]):
    """Methods by name; the class of each is imported when it is asked for.

    Args:
        methods: Import paths of the classes, by name.
    """

    def __init__(self, methods: Mapping[str, str]) -> None:
        self._methods: dict[str, type[AttributionMethod] | str] = dict(methods)

    def __getitem__(self, name: str) -> type[AttributionMethod]:
        method = self._methods[name]
        if isinstance(method, str):
            module, _, attribute = method.rpartition(".")
            method = self._methods[name] = getattr(import_module(module), attribute)
        return method

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    def __contains__(self, name: object) -> bool:
        return name in self._methods


METHODS = MethodTable({name: path for name, (_, path) in ALL_METHODS.items()})
"""The methods by name, in the order of tables; one's own can be passed as an instance wherever a name is taken."""

Methods = str | AttributionMethod | Iterable[str | AttributionMethod]
"""What users may give as `methods`: names or methods, one or several."""


def make_methods(methods: Methods, heads: Sequence[int] | None = None, seed: int = 0) -> dict[str, AttributionMethod]:
    """Build methods by name; instances are taken as they are.

    Args:
        methods: Names among `METHODS`, or methods; one or several.
        heads: The head to read in each layer; None averages all heads.
        seed: Seed of methods that draw.
    """
    expect_seed(seed)
    if heads is not None:
        heads = expect_ints(heads, "heads", "head numbers, one a layer, or None")
    known = f"names among {', '.join(METHODS)}, or methods"
    made: dict[str, AttributionMethod] = {}
    for given in expect_list(methods, "methods", (str, AttributionMethod), known):
        if isinstance(given, str):
            expect(given in METHODS, "methods", known, given)
        method = METHODS[given].make(heads, seed) if isinstance(given, str) else given
        name = expect_name(getattr(method, "name", None), "methods[...].name")
        expect(name not in made, "methods", "methods of different names", name)
        made[name] = method
    expect(len(made) > 0, "methods", "at least one method", "none")
    return made


def method_label(name: str) -> str:
    """What tables and figures call a method: its label, or its name if it is not among `METHODS`."""
    return METHODS[name].label if name in METHODS else name
