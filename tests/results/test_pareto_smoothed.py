"""Importance weights smoothed by whichever ArviZ is installed."""

import numpy as np
import pytest

from probtx_pyro.results._arviz import pareto_smoothed


def test_weights_are_normalised_and_keep_their_order():
    log_weights = np.random.default_rng(0).standard_t(3, size=2000)
    smoothed, k = pareto_smoothed(log_weights, 1.0)
    assert np.exp(smoothed).sum() == pytest.approx(1.0)
    order = np.argsort(log_weights)
    assert (np.diff(smoothed[order]) >= 0).all() and smoothed.argmax() == order[-1]
    body = order[:1000]  # below the tail weights are only normalised
    assert np.ptp(smoothed[body] - log_weights[body]) < 1e-9
    assert 0.2 < k < np.inf


def test_the_shape_of_a_known_tail_is_found():
    """Weights of a Pareto distribution with shape k."""
    for truth in (0.2, 0.5, 0.8):
        uniform = (np.arange(20000) + 0.5) / 20000
        log_weights = -truth * np.log(uniform)
        _, k = pareto_smoothed(np.random.default_rng(1).permutation(log_weights), 1.0)
        assert abs(k - truth) < 0.05


@pytest.mark.parametrize("log_weights", [np.zeros(100), np.arange(10.0)])
def test_a_tail_without_a_shape_leaves_the_weights_as_they_are(log_weights):
    smoothed, k = pareto_smoothed(log_weights, 1.0)
    assert k == np.inf
    np.testing.assert_allclose(np.exp(smoothed), np.exp(log_weights) / np.exp(log_weights).sum())
