"""Corrections of a classifier for a changed prevalence, as published: by its confusions, the same regularised, and by EM.

A classifier answers with rows on the simplex; what it says of labelled points that it has not learned from (N, C) is its calibration.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

Calibrate = Callable[[np.ndarray], np.ndarray]
_TINY = 1e-12


class Calibration(NamedTuple):
    """Answers (N, C) to labelled points that were not learned from, and their labels 0..C-1, (N,)."""

    probabilities: np.ndarray
    labels: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """Shares of the classes among the labels, (C,)."""
        return np.bincount(self.labels, minlength=self.probabilities.shape[1]) / len(self.labels)

    def after(self, calibrate: Calibrate) -> "Calibration":
        """Return the same of the calibrated classifier."""
        return Calibration(calibrate(self.probabilities), self.labels)


def bias_corrected_temperature(calibration: Calibration) -> Calibrate:
    """Fit ``softmax(log p / T + b)`` by the log loss (Alexandari et al. 2020, section 3), and return the map of answers."""
    logs, labels = np.log(calibration.probabilities.clip(_TINY)), calibration.labels
    rows, size = np.arange(len(labels)), logs.shape[1]
    truth = np.eye(size)[labels]

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        said = log_softmax(parameters[0] * logs + parameters[1:], axis=1)
        away = (np.exp(said) - truth) / len(rows)
        return -float(said[rows, labels].mean()), np.concatenate([[float((away * logs).sum())], away.sum(0)])

    bounds = [(1e-3, 1e3), *[(None, None)] * size]
    found = minimize(loss, np.concatenate([[1.0], np.zeros(size)]), jac=True, method="L-BFGS-B", bounds=bounds).x
    return lambda probabilities: softmax(found[0] * np.log(probabilities.clip(_TINY)) + found[1:], axis=1)


def as_said(probabilities: np.ndarray) -> np.ndarray:
    """Return answers as they are."""
    return probabilities


def confusions(calibration: Calibration, hard: bool) -> np.ndarray:
    """``C_ij``, the mean over labelled points of what is said of class i where the label is j, (C, C); its columns sum to shares."""
    size = calibration.probabilities.shape[1]
    return _said(calibration.probabilities, hard).T @ np.eye(size)[calibration.labels] / len(calibration.labels)


def _said(probabilities: np.ndarray, hard: bool) -> np.ndarray:
    return np.eye(probabilities.shape[1])[probabilities.argmax(1)] if hard else probabilities


def by_confusions(calibration: Calibration, probabilities: np.ndarray, hard: bool = True) -> np.ndarray:
    """Weights ``q(c) / p(c)``, (C,), by ``C w = mean of what is said`` and cut off at 0 (BBSE, Lipton et al. 2018, equation 4)."""
    said = _said(probabilities, hard).mean(0)
    return np.linalg.lstsq(confusions(calibration, hard), said, rcond=None)[0].clip(0)


def by_regularised_confusions(
    calibration: Calibration, probabilities: np.ndarray, hard: bool = True, strength: float = 0.01
) -> np.ndarray:
    """Weights ``1 + θ >= 0`` with θ of the least ``|C θ - (said - C 1)| + Δ |θ|`` (RLLS, Azizzadenesheli et al. 2019, equation 6).

    ``Δ = strength · 3 (2 log(2C/.05) / 3N + sqrt(2 log(2C/.05) / N))``, the bound on the error of C of their theorem, scaled.
    """
    matrix, size = confusions(calibration, hard), probabilities.shape[1]
    away = _said(probabilities, hard).mean(0) - matrix.sum(1)
    spread = 2 * np.log(2 * size / 0.05) / len(calibration.labels)
    delta = 3 * strength * (spread / 3 + spread**0.5)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        residual = matrix @ theta - away
        misfit, length = (np.sqrt(x @ x + 1e-16) for x in (residual, theta))
        return misfit + delta * length, matrix.T @ residual / misfit + delta * theta / length

    start = (by_confusions(calibration, probabilities, hard) - 1).clip(-1)
    options = {"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-9}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[(-1, None)] * size, options=options)
    return 1 + found.x


def by_em(calibration: Calibration, probabilities: np.ndarray, num_steps: int = 2000, tol: float = 1e-8) -> np.ndarray:
    """Weights of the shares that maximise the likelihood of the answers (Saerens et al. 2002), from those of the calibration.

    The shares before the change are the mean answer of the calibration, as Alexandari et al. 2020 take them.
    """
    old = calibration.probabilities.mean(0)
    shares = old
    for _ in range(num_steps):
        joint = probabilities * (shares / old)
        new = (joint / joint.sum(1, keepdims=True)).mean(0)
        moved, shares = np.abs(new - shares).max(), new
        if moved < tol:
            break
    return shares / old


def reweighted(probabilities: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Answers (n, C) where the classes have other weights (C,); those of a row that no weight is left of stay."""
    joint = probabilities * weights
    total = joint.sum(1, keepdims=True)
    return np.where(total > 0, joint / np.where(total > 0, total, 1.0), probabilities)


def bootstrapped_shares(
    calibration: Calibration, probabilities: np.ndarray, hard: bool, number: int, rng: np.random.Generator
) -> np.ndarray:
    """Shares by `by_confusions` of samples, drawn with replacement, of the labelled points and of the others, (number, C)."""
    found = []
    for _ in range(number):
        rows = rng.integers(len(calibration.labels), size=len(calibration.labels))
        own = Calibration(calibration.probabilities[rows], calibration.labels[rows])
        sample = probabilities[rng.integers(len(probabilities), size=len(probabilities))]
        joint = by_confusions(own, sample, hard) * own.shares
        found.append(joint / joint.sum())
    return np.stack(found)
