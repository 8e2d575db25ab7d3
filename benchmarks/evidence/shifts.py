"""Data of `benchmarks.evidence.label_shift`, and batches of it whose classes have other shares."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.evidence.texts import banking, vectors
from probtx_pyro.data import load_digits


class Parts(NamedTuple):
    """Points (N, D) and labels 0..C-1 to learn from, and two pools to draw batches from, for validation and for the test."""

    points: np.ndarray
    labels: np.ndarray
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def banking_parts(shots: int) -> Callable[[int], Parts]:
    def parts(seed: int) -> Parts:
        (items, labels), (new, truth) = banking()
        x, test = vectors(items, new)
        order = np.random.default_rng(seed).permutation(len(labels))
        learned = np.concatenate([order[labels[order] == c][:shots] for c in range(77)])
        rest = np.setdiff1d(order, learned)
        return Parts(x[learned], labels[learned], (x[rest], labels[rest]), (test, truth))

    return parts


def digits_parts(seed: int) -> Parts:
    found = load_digits()
    x, y = found.images.reshape(-1, 64), found.labels
    training, test = np.split(np.random.default_rng(12345).permutation(len(y)), [1000])
    learned, rest = np.split(np.random.default_rng(seed).permutation(training), [500])
    return Parts(x[learned], y[learned], (x[rest], y[rest]), (x[test], y[test]))


class Data(NamedTuple):
    """Where parts come from, points of a batch, and classes present in few classes, at the test and in validation."""

    parts: Callable[[int], Parts]
    size: int
    few: int
    fewer_absent: int


DATA: Mapping[str, Data] = {
    "banking77, 5-shot": Data(banking_parts(5), 300, 10, 25),
    "banking77, 20-shot": Data(banking_parts(20), 300, 10, 25),
    "digits": Data(digits_parts, 200, 3, 6),
}
Shift = Callable[[int, np.random.Generator], np.ndarray]


def dirichlet(concentration: float) -> Shift:
    """Shares from a Dirichlet distribution."""
    return lambda classes, rng: rng.dirichlet(np.full(classes, concentration))


def some_of(number: int) -> Shift:
    """Even shares of so many classes, drawn at random."""
    return lambda classes, rng: rng.permutation(np.repeat([1 / number, 0.0], [number, classes - number]))


def shifts_of_test(data: Data) -> dict[str, Shift]:
    """Shifts of the test, by name."""
    return {"Dirichlet(0.1)": dirichlet(0.1), "Dirichlet(1)": dirichlet(1.0), "few classes": some_of(data.few)}


def shifts_of_validation(data: Data) -> dict[str, Shift]:
    """Other shifts, by name, for choosing settings."""
    return {
        "Dirichlet(0.3)": dirichlet(0.3),
        "Dirichlet(3)": dirichlet(3.0),
        "fewer absent": some_of(data.fewer_absent),
    }


def batches(
    pool: tuple[np.ndarray, np.ndarray], shift: Shift, size: int, number: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Draw batches with replacement: points (size, D), labels (size,) and the shares (C,) that they come from."""
    x, y = pool
    for _ in range(number):
        shares = shift(y.max() + 1, rng)
        rows = np.array([rng.choice(np.flatnonzero(y == c)) for c in rng.choice(len(shares), size, p=shares)])
        yield x[rows], y[rows], shares
