"""Attention as nonparametric regression against loops, least squares, scikit-learn and refits."""

import math

import numpy as np
import pytest
import torch

from probtx_pyro.models import RegressionMemory, layers

# Bounds are rounding: sums of twelve products of order one to 1e-15, solves of matrices with conditions below 1e3 to 1e-12,
# and two orders more where an error is divided by one less a leverage.
Q, T, D, M = 4, 12, 2, 3


def drawn(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


QUERIES, KEYS, VALUES = drawn(0, Q, D), drawn(1, T, D), drawn(2, T, M)
WIDTH = 0.8


def kernel(q, k, width=WIDTH):
    return math.exp(-sum((float(a) - float(b)) ** 2 for a, b in zip(q, k, strict=True)) / (2 * width**2))


def close(found, expected, bound):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=bound)


def scores(queries=QUERIES, keys=KEYS, width=WIDTH):
    return layers.gaussian_scores(queries, keys, width)


def test_softmax_attention_is_the_average_of_nadaraya_and_watson():
    rows = [[kernel(q, k) for k in KEYS] for q in QUERIES]
    close(layers.nadaraya_watson(scores()), [[x / sum(row) for x in row] for row in rows], 1e-15)


def test_for_keys_of_one_length_dot_products_are_a_gaussian_kernel_of_width_one_over_root_scale():
    keys = KEYS / KEYS.norm(dim=-1, keepdim=True)
    close(
        layers.nadaraya_watson(9.0 * QUERIES @ keys.mT), layers.nadaraya_watson(scores(keys=keys, width=1 / 3)), 1e-15
    )


@pytest.mark.parametrize("slope_precision", [0.0, 0.3, 50.0])
def test_a_local_line_is_weighted_least_squares_of_numpy_for_every_query(slope_precision):
    found = layers.local_linear(QUERIES, KEYS, scores(), slope_precision) @ VALUES
    for i, q in enumerate(QUERIES.numpy()):
        root = np.sqrt([kernel(q, k) for k in KEYS])
        design = root[:, None] * np.hstack([np.ones((T, 1)), KEYS.numpy() - q])
        prior = np.hstack([np.zeros((D, 1)), math.sqrt(slope_precision) * np.eye(D)])
        right = np.vstack([root[:, None] * VALUES.numpy(), np.zeros((D, M))])
        close(found[i], np.linalg.lstsq(np.vstack([design, prior]), right, rcond=None)[0][0], 1e-12)


def test_a_local_line_reproduces_a_linear_function_and_an_average_does_not():
    linear = KEYS @ drawn(3, D, M) + 0.7
    truth = QUERIES @ drawn(3, D, M) + 0.7
    weights = layers.local_linear(QUERIES, KEYS, scores(), 0.0)
    close(weights @ linear, truth, 2e-14)
    close(weights.sum(-1), np.ones(Q), 1e-14)
    assert float((layers.nadaraya_watson(scores()) @ linear - truth).abs().max()) > 0.3


def test_at_an_edge_an_average_is_biased_to_the_first_order_of_its_width_and_a_line_to_the_second():
    keys = torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None]
    edge, bias = keys[:1], {}
    for width in (0.04, 0.02):
        own = layers.gaussian_scores(edge, keys, width)
        for name, row in (
            ("average", layers.nadaraya_watson(own)),
            ("line", layers.local_linear(edge, keys, own, 0.0)),
        ):
            bias[name, width] = abs(float(row @ keys.exp()) - 1.0)
    assert bias["average", 0.04] == pytest.approx(0.04 * math.sqrt(2 / math.pi), rel=0.05)  # mean of a half normal
    assert bias["average", 0.04] / bias["average", 0.02] == pytest.approx(2, rel=0.05)
    assert bias["line", 0.04] / bias["line", 0.02] == pytest.approx(4, rel=0.1)


def test_a_prior_on_slopes_leads_from_lines_to_averages():
    average = layers.nadaraya_watson(scores())
    far = [layers.local_linear(QUERIES, KEYS, scores(), x) - average for x in (1e-9, 1.0, 1e9)]
    sizes = [float(x.abs().max()) for x in far]
    assert sizes[0] > sizes[1] > sizes[2] and sizes[2] < 1e-8
    away = QUERIES + 1e3  # where no kernel reaches, and its inverse must not overflow
    close(layers.local_linear(away, KEYS, scores(away), 1.0).sum(-1), np.ones(Q), 1e-12)


def test_a_line_that_nothing_determines_is_refused_with_a_repair():
    flat = torch.cat([KEYS[:, :1], torch.zeros(T, 1, dtype=torch.float64)], -1)
    with pytest.raises(ValueError, match="do not determine a line; give slope_precision > 0"):
        layers.local_linear(QUERIES, flat, scores(keys=flat), 0.0)
    with pytest.raises(ValueError, match="bandwidth must be > 0"):
        scores(width=0.0)
    with pytest.raises(ValueError, match="leave out every pair"):
        layers.nadaraya_watson(torch.full((1, 3), -math.inf, dtype=torch.float64))
    with pytest.raises(ValueError, match="not positive definite; raise noise_variance"):
        layers.kernel_ridge(-torch.eye(3), -torch.eye(3), 1.0, 0.5)
    with pytest.raises(ValueError, match="take a wider kernel"):
        layers.leave_one_out(torch.eye(T, dtype=torch.float64), VALUES)


def grams():
    return scores().exp(), scores(KEYS).exp()


def test_kernel_ridge_is_scikit_learns():
    KernelRidge = pytest.importorskip("sklearn.kernel_ridge").KernelRidge
    peer = KernelRidge(alpha=0.1, kernel="rbf", gamma=1 / (2 * WIDTH**2)).fit(KEYS.numpy(), VALUES.numpy())
    close(layers.kernel_ridge(*grams(), 1.0, 0.1).weights @ VALUES, peer.predict(QUERIES.numpy()), 1e-12)


def test_posterior_and_evidence_of_a_gaussian_process_are_scikit_learns():
    peers = pytest.importorskip("sklearn.gaussian_process")
    rbf = peers.kernels.RBF(WIDTH, length_scale_bounds="fixed")
    peer = peers.GaussianProcessRegressor(rbf, alpha=0.1, optimizer=None).fit(KEYS.numpy(), VALUES.numpy())
    mean, deviation = peer.predict(QUERIES.numpy(), return_std=True)
    found = layers.kernel_ridge(*grams(), 1.0, 0.1)
    close(found.weights @ VALUES, mean, 1e-12)
    close(found.variance, deviation[:, 0] ** 2, 1e-12)
    evidence = layers.kernel_log_evidence(grams()[1], VALUES, 0.1)
    assert float(evidence) == pytest.approx(peer.log_marginal_likelihood_value_, rel=1e-12)


def test_with_the_kernel_of_features_it_is_a_regression_memory():
    precision, noise = torch.tensor([2.0, 0.5], dtype=torch.float64), 4.0
    memory = RegressionMemory(precision, noise)
    read = memory.read(QUERIES, KEYS, VALUES, causal=False)
    cross, gram = QUERIES / precision @ KEYS.mT, KEYS / precision @ KEYS.mT
    found = layers.kernel_ridge(cross, gram, (QUERIES.square() / precision).sum(-1), 1 / noise)
    close(found.weights, memory.attention(QUERIES, KEYS, causal=False), 1e-13)
    close(found.weights @ VALUES, read.mean, 1e-13)
    close(found.variance, read.mean_variance, 1e-13)
    evidence = layers.kernel_log_evidence(gram, VALUES, 1 / noise)
    assert float(evidence) == pytest.approx(float(memory.log_evidence(KEYS, VALUES).sum()), rel=1e-12)


def test_the_fourier_integral_kernel_is_its_product_and_has_negative_weights():
    def product(q, k, radius=3.0):
        return math.prod(math.sin(radius * (a - b)) / (a - b) for a, b in zip(q.tolist(), k.tolist(), strict=True))

    rows = [[product(q, k) for k in KEYS] for q in QUERIES]
    found = layers.fourier_attention(QUERIES, KEYS, 3.0)
    close(found, [[x / sum(row) for x in row] for row in rows], 1e-12)
    assert float(found.min()) < -0.01
    assert torch.isfinite(layers.fourier_attention(KEYS, KEYS, 3.0)).all()  # 0/0 is R


def without(i, smoother):
    """The error at pair i of a smoother that has never seen it."""
    rest = [j for j in range(T) if j != i]
    return VALUES[i] - (smoother(KEYS[i : i + 1], KEYS[rest]) @ VALUES[rest]).squeeze(0)


def gaussian_process(q, k):
    return layers.kernel_ridge(scores(q, k).exp(), scores(k, k).exp(), 1.0, 0.1).weights


SMOOTHERS = {
    "average": lambda q, k: layers.nadaraya_watson(scores(q, k)),
    "softmax of dot products": lambda q, k: layers.nadaraya_watson(q @ k.mT),
    "line": lambda q, k: layers.local_linear(q, k, scores(q, k), 0.0),
    "line under a prior": lambda q, k: layers.local_linear(q, k, scores(q, k), 0.5),
    "Gaussian process": gaussian_process,
    "Fourier": lambda q, k: layers.fourier_attention(q, k, 1.5),
}


@pytest.mark.parametrize("name", SMOOTHERS)
def test_leaving_one_out_in_closed_form_is_a_refit(name):
    smoother = SMOOTHERS[name]
    refits = torch.stack([without(i, smoother) for i in range(T)])
    close(layers.leave_one_out(smoother(KEYS, KEYS), VALUES), refits, 1e-10)


@pytest.mark.parametrize("name", SMOOTHERS)
def test_problems_of_a_batch_are_their_own_and_numbers_keep_their_type(name):
    smoother, queries, keys = SMOOTHERS[name], drawn(5, 2, Q, D), drawn(6, 2, T, D)
    both = smoother(queries, keys)
    close(both, torch.stack([smoother(q, k) for q, k in zip(queries, keys, strict=True)]), 1e-13)
    assert smoother(queries.float(), keys.float()).dtype == torch.float32
    order = torch.randperm(T)
    close(smoother(queries, keys[:, order]), both[..., order], 1e-11)


@pytest.mark.parametrize("name", SMOOTHERS)
def test_gradients(name):
    smoother = SMOOTHERS[name]
    assert torch.autograd.gradcheck(
        lambda q, k: smoother(q, k), (QUERIES.clone().requires_grad_(), KEYS.clone().requires_grad_())
    )


def test_gradients_of_the_evidence_by_bandwidth_and_noise():
    numbers = (torch.tensor(0.6).requires_grad_(), torch.tensor(0.2).requires_grad_())
    assert torch.autograd.gradcheck(
        lambda h, s: layers.kernel_log_evidence(scores(KEYS, width=h).exp(), VALUES, s), numbers
    )
