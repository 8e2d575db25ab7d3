"""Formulas in several hundred digits, of the same floats: loops over scalars, nothing of the package."""

import math

import mpmath
from hypothesis import strategies as st
from mpmath import mpf

EPS = {"float64": 2.0**-52, "float32": 2.0**-23}
DIGITS = {"float64": 640, "float32": 110}  # squares of 1e-150 are 600 digits from those of 1e150
LEAST = {"float64": 2.0**-1074, "float32": 2.0**-149}  # above zero
TINY = {"float64": 1e-300, "float32": 1e-37}  # above what underflows
LARGEST = {"float64": 150, "float32": 18}  # powers of ten that are drawn


@st.composite
def magnitudes(draw, kind):
    """A power of ten: often 1, otherwise from the smallest to the largest."""
    top = LARGEST[kind]
    return draw(st.one_of(st.just(0), st.integers(-top, top), st.sampled_from([-top, -8, 8, top])))


@st.composite
def rows(draw, kind, number, width):
    """(number, width) floats of one magnitude or several: offsets with neighbours a few ulps apart, duplicates, zeros, ties."""
    of = [10.0 ** draw(magnitudes(kind)) for _ in range(2)]
    digit = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, 1 + 4 * EPS[kind], 1 - 64 * EPS[kind], 0.3, -1.7])
    found = [[draw(digit) * draw(st.sampled_from(of)) for _ in range(width)] for _ in range(number)]
    if draw(st.booleans()):  # a far group
        far = [draw(digit) * of[0] for _ in range(width)]
        found = [
            [
                a + b * draw(st.sampled_from([1.0, of[1] / of[0] if of[1] < of[0] else 1e-8]))
                for a, b in zip(far, row, strict=True)
            ]
            for row in found
        ]
    if number > 1 and draw(st.booleans()):
        found[-1] = list(found[0])
    return found


def dot(x, y):
    return mpmath.fsum(mpf(a) * mpf(b) for a, b in zip(x, y, strict=True))


def softmax(z):
    """Of scores, None a masked one."""
    top = max(x for x in z if x is not None)
    behind = [None if x is None else x - top for x in z]
    with mpmath.workdps(200):  # what is left after the subtraction
        weights = [mpf(0) if x is None or x < -5000 else mpmath.exp(x) for x in behind]
        total = mpmath.fsum(weights)
        return [w / total for w in weights]


def entmax(z, alpha):
    """``p = [(α-1) z - τ]_+^(1/(α-1))``: the threshold of every size of the support, until one fits."""
    top = max(x for x in z if x is not None)
    scaled = [None if x is None else (alpha - 1) * (x - top) for x in z]
    ordered = sorted((x for x in scaled if x is not None), reverse=True)
    for k in range(len(ordered), 0, -1):
        held = ordered[:k]
        if held[-1] <= -1:
            continue
        mean = mpmath.fsum(held) / k
        if alpha == 2:
            tau = mean - mpf(1) / k
        else:
            inside = (1 - mpmath.fsum((x - mean) ** 2 for x in held)) / k
            if inside < 0:
                continue
            tau = mean - mpmath.sqrt(inside)
        if held[-1] > tau and (k == len(ordered) or ordered[k] <= tau):
            break
    return [mpf(0) if x is None or x <= tau else (x - tau) ** (1 if alpha == 2 else 2) for x in scaled]


MAPS = {
    "softmax": softmax,
    "entmax15": lambda z: entmax(z, mpf(3) / 2),
    "sparsemax": lambda z: entmax(z, 2),
}


def conjugate(name, z):
    """``max_p p'z + H(p)``."""
    top = max(x for x in z if x is not None)
    z = [None if x is None else x - top for x in z]
    if name == "softmax":
        with mpmath.workdps(200):
            above = mpmath.log(mpmath.fsum(mpmath.exp(x) for x in z if x is not None and x > -5000))
        return top + above
    p = MAPS[name](z)
    entropy = (
        mpf(4) / 3 * mpmath.fsum(x - x ** (mpf(3) / 2) for x in p)
        if name == "entmax15"
        else mpmath.fsum(x - x * x for x in p) / 2
    )
    return top + mpmath.fsum(a * b for a, b in zip(p, z, strict=True) if a > 0) + entropy


def band(name, z, error):
    """The smallest and the largest share of each, where each score errs by up to ``error`` of it: maps are monotone."""
    found = []
    for n in range(len(z)):
        ends = []
        for sign in (-1, 1):
            moved = [None if x is None else x + sign * (1 if m == n else -1) * error(x) for m, x in enumerate(z)]
            ends.append(MAPS[name](moved)[n])
        found.append(tuple(ends))
    return found


def to_float(x):
    """Nearest float, infinite where it overflows."""
    return float(x) if abs(x) < mpf(10) ** 308 else math.copysign(math.inf, x)
