"""One look a method: told apart by colour-blind readers, and in grey print."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.markers import MarkerStyle
from numpy.typing import NDArray

from attree.attribution import METHODS
from attree.report.style import LOOKS, OWN_COLORS, OWN_MARKERS, method_looks

# Machado, Oliveira and Fernandes (2009): what linear RGB looks like to readers without one kind of cone.
SIGHT = {
    "all": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def lab(color: str, sight: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIELAB of a colour as it is seen: equal distances look equally different, and about 2 is just seen."""
    stored = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(sight @ linear, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    curved = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * curved[1] - 16, 500 * (curved[0] - curved[1]), 200 * (curved[1] - curved[2])])


def test_every_method_has_a_marker_of_its_own() -> None:
    assert set(LOOKS) <= set(METHODS)  # others get a look in each figure, see below
    markers = [look.marker for look in LOOKS.values()]
    assert len(set(markers)) == len(markers)
    assert all(MarkerStyle(marker).is_filled() for marker in (*markers, *OWN_MARKERS))


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_differ_for_every_reader(sight: str) -> None:
    seen = {name: lab(look.color, SIGHT[sight]) for name, look in LOOKS.items()}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 12, (one, other)
    white = lab("#FFFFFF", SIGHT[sight])
    assert all(np.linalg.norm(color - white) > 20 for color in seen.values())


def test_a_look_depends_on_the_name_alone() -> None:
    alone = method_looks(["mine"])["mine"]
    assert not alone.is_filled
    for others in (["gatt", "mine"], ["mine", "random", "avgatt"], ["saliency", "mine", "gatt"]):
        assert method_looks(others)["mine"] == alone
        assert method_looks(others)[others[0]] == method_looks([others[0]])[others[0]]


def test_no_two_of_many_own_methods_look_alike() -> None:
    names = [f"method {number}" for number in range(len(OWN_MARKERS) * len(OWN_COLORS))]
    looks = method_looks([*LOOKS, *names])
    assert len(set(looks.values())) == len(looks)
    few = method_looks(names[: len(OWN_MARKERS)])
    assert len({look.marker for look in few.values()}) == len(few)
    assert method_looks(reversed(names)) == {name: looks[name] for name in names}
    assert len(method_looks([f"{name}!" for name in [*names, "", "\udcff", "_", "$"]])) == len(names) + 4
