"""Colours of units and of the course stay apart as protan, deutan and tritan readers see them.

Simulation: Machado, Oliveira and Fernandes, *A physiologically-based model for simulation of color vision deficiency*, IEEE TVCG 15,
2009, the matrices of severity 1.0 on linear RGB. Distance: CIELAB (CIE 1976), of the sRGB standard with white D65; 2.3 is the
smallest difference that people just notice (Mahy, Van Eycken and Oosterlinck 1994).
"""

from itertools import combinations

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb

from probtx_pyro import course, plots

VISION = {
    "trichromat": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
APART = (
    6 * 2.3
)  # several differences that are just noticed side by side: in a figure colours stand apart, on thin lines. The least is 16.1


def lab(color, seen_by):
    """CIELAB coordinates of a colour as these readers see it."""
    srgb = np.array(to_rgb(color))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    x, y, z = XYZ @ np.clip(VISION[seen_by] @ linear, 0, 1) / XYZ.sum(1)
    f = [t ** (1 / 3) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one, other, seen_by):
    return float(np.linalg.norm(lab(one, seen_by) - lab(other, seen_by)))


@pytest.mark.parametrize("seen_by", VISION)
@pytest.mark.parametrize("palette", [plots.UNIT_COLORS, course.COLORS], ids=["units", "course"])
def test_any_two_colours_are_told_apart(palette, seen_by):
    near = {pair: distance(*pair, seen_by) for pair in combinations(palette, 2)}
    assert min(near.values()) > APART, min(near, key=near.get)


@pytest.mark.parametrize("seen_by", VISION)
def test_brightness_of_the_sequential_scale_rises(seen_by):
    """A colour bar can be read from dark to bright by everybody, as it can in print."""
    brightness = [lab(color, seen_by)[0] for color in colormaps["cividis"](np.linspace(0, 1, 65))[:, :3]]
    assert np.diff(brightness).min() > 0


def test_the_simulation_keeps_greys_and_merges_red_with_green():
    for matrix in VISION.values():
        np.testing.assert_allclose(np.sum(matrix, 1), 1, atol=2e-6)  # printed to six decimals
    red, green = "#d62728", "#2ca02c"  # matplotlib's own
    assert distance(red, green, "deutan") < APART < distance(red, green, "trichromat")  # a palette with both would fail
    np.testing.assert_allclose(lab("white", "trichromat"), [100, 0, 0], atol=1e-2)
    np.testing.assert_allclose(lab("#ff0000", "trichromat"), [53.24, 80.09, 67.20], atol=2e-2)
