"""Attribution methods by the names that users type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attree.attribution.baselines import AvgAtt, Random
from attree.attribution.gatt import GAtt, GAttAvg, GAttSim
from attree.attribution.method import AttributionMethod
from attree.errors import expect

METHODS: dict[str, type[AttributionMethod]] = {
    method.name: method for method in (GAtt, GAttSim, GAttAvg, AvgAtt, Random)
}


def make_methods(
    names: Iterable[str], heads: Sequence[int] | None = None, seed: int = 0
) -> dict[str, AttributionMethod]:
    """Build methods by name.

    Args:
        names: Any of `gatt`, `gatt_sim`, `gatt_avg`, `avgatt`, `random`.
        heads: The head to read in each layer; None averages all heads.
        seed: Seed of `random`.
    """
    methods: dict[str, AttributionMethod] = {}
    for name in names:
        expect(name in METHODS, "methods", f"names among {', '.join(METHODS)}", name)
        methods[name] = Random(seed, heads) if name == "random" else METHODS[name](heads)
    return methods
