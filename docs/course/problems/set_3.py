"""Problem set 3, guides, several keys, log normalisers. Fill in the functions, then run ``python -m pytest test_set_3.py``.

Shapes: queries (Q, D), keys (U, R, D) with log component weights and precisions (U, R), means (N, D) with covariances (N, D, D) and
log weights (N,), one query ``eta`` (D,), patterns (N, D), features (Q, F), rows of a guide (U,). Units are equally likely beforehand.
"""

from torch import Tensor


def joint_responsibilities(queries: Tensor, keys: Tensor, log_component_weights: Tensor, precisions: Tensor) -> Tensor:
    """Problem 3.1: p(unit, component | query), (Q, U, R)."""
    raise NotImplementedError("problem 3.1: joint_responsibilities is still to be written")


def log_normalizer(eta: Tensor, means: Tensor, covariances: Tensor, log_weights: Tensor) -> Tensor:
    """Problem 3.2: log Z(eta) of a mixture of Gaussians, a number."""
    raise NotImplementedError("problem 3.2: log_normalizer is still to be written")


def tilted_mean(eta: Tensor, means: Tensor, covariances: Tensor, log_weights: Tensor) -> Tensor:
    """Problem 3.2: the mean of the tilted distribution, (D,), in closed form."""
    raise NotImplementedError("problem 3.2: tilted_mean is still to be written")


def tilted_covariance(eta: Tensor, means: Tensor, covariances: Tensor, log_weights: Tensor) -> Tensor:
    """Problem 3.3: the covariance of the tilted distribution, (D, D), in closed form."""
    raise NotImplementedError("problem 3.3: tilted_covariance is still to be written")


def settle(state: Tensor, patterns: Tensor, beta: float, num_steps: int) -> tuple[Tensor, Tensor]:
    """Problem 3.4: the states of a Hopfield memory, (num_steps + 1, D), and the energy of each, (num_steps + 1,).

    The energy is |s|^2 / 2 - log sum exp(beta * patterns @ s) / beta.
    """
    raise NotImplementedError("problem 3.4: settle is still to be written")


def train_guide(features: Tensor, log_joint: Tensor, num_steps: int) -> Tensor:
    """Problem 3.5: coefficients (F, U) of the guide softmax(features @ coefficients), by gradient ascent on its ELBO."""
    raise NotImplementedError("problem 3.5: train_guide is still to be written")


def importance_bound(log_row: Tensor, log_joint: Tensor, units: Tensor) -> Tensor:
    """Problem 3.5: the bound of part 2 for one query, a number, as the mean over S trials.

    ``log_row`` (U,) is the logarithm of the row that a guide proposes, ``log_joint`` (U,) is log p(query, unit), and ``units`` (S, K)
    has K units drawn from the row in each trial.
    """
    raise NotImplementedError("problem 3.5: importance_bound is still to be written")
