"""Mixtures from points: EM against scikit-learn and loops, the number of units, weights, batches, and clear errors."""

import math
import warnings

import numpy as np
import pytest
import torch
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import models

from_points = models.from_points
KINDS = pytest.mark.parametrize("metric", [None, "scalar", "diagonal", "full"])
SLOWER = [pytest.param(kind, marks=pytest.mark.slow) for kind in (None, "scalar", "diagonal")]
STEPS, FAINT = 12, 1e-11  # steps of EM, and a prior that counts next to nothing
FEW = {"num_steps": 10, "tol": None, "seed": 0}


def clusters(g, *, batch=(), points=60, features=2, units=3, distance=4.0):
    """Points about a few centers, stretched and turned."""
    centers = distance * torch.randn(*batch, units, features, generator=g)
    x = centers[..., torch.arange(points) % units, :] + torch.randn(*batch, points, features, generator=g)
    return x @ (torch.eye(features) + 0.4 * torch.randn(features, features, generator=g))


def precision_matrices(mixture):
    """``α_j Λ`` as matrices (U, D, D)."""
    eye = torch.eye(mixture.keys.shape[-1])
    metric = (
        eye if mixture.metric is None else torch.diag(mixture.metric) if mixture.diagonal_metric else mixture.metric
    )
    return mixture.key_precision.expand(mixture.num_units)[:, None, None] * metric


def by_loops(x, mixture, metric):
    """EM as in a textbook, numpy: responsibilities, then means, covariances and weights; returns log densities of the points."""
    x, means, inverse = x.numpy(), mixture.keys.numpy(), precision_matrices(mixture).numpy()
    weights = np.full(len(means), 1 / len(means))

    def density():
        rows = []
        for mean, matrix, weight in zip(means, inverse, weights, strict=True):
            around = x - mean
            square = np.einsum("nd,de,ne->n", around, matrix, around)
            rows.append(np.log(weight) + 0.5 * np.linalg.slogdet(matrix / (2 * np.pi))[1] - 0.5 * square)
        return np.stack(rows, -1)

    for _ in range(STEPS):
        joint = density()
        share = np.exp(joint - np.logaddexp.reduce(joint, -1, keepdims=True))
        counts = share.sum(0)
        means, weights = share.T @ x / counts[:, None], counts / len(x)
        scatter = np.stack([(w[:, None] * (x - mean)).T @ (x - mean) for w, mean in zip(share.T, means, strict=True)])
        eye = np.eye(x.shape[-1])
        if metric is None:
            inverse = np.stack([eye * n * len(eye) / np.trace(s) for n, s in zip(counts, scatter, strict=True)])
        elif metric == "scalar":
            inverse = np.stack([eye * len(x) * len(eye) / np.trace(scatter.sum(0))] * len(means))
        elif metric == "diagonal":
            inverse = np.stack([np.diag(len(x) / np.diag(scatter.sum(0)))] * len(means))
        else:
            inverse = np.stack([np.linalg.inv(scatter.sum(0) / len(x))] * len(means))
    return torch.as_tensor(np.logaddexp.reduce(density(), -1))


def by_scikit_learn(x, mixture, metric):
    """The same by scikit-learn, which knows two of the four."""
    mixtures = pytest.importorskip("sklearn.mixture")
    inverse = precision_matrices(mixture).numpy()
    spherical = metric is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few steps do not converge
        fitted = mixtures.GaussianMixture(
            mixture.num_units, covariance_type="spherical" if spherical else "tied", tol=0.0, reg_covar=0.0,
            max_iter=STEPS, means_init=mixture.keys.numpy(), weights_init=np.full(mixture.num_units, 1 / mixture.num_units),
            precisions_init=inverse[:, 0, 0] if spherical else inverse[0],
        ).fit(x.numpy())  # fmt: skip
    return torch.as_tensor(fitted.score_samples(x.numpy()))


ORACLES = [(kind, by_loops) for kind in (None, "scalar", "diagonal", "full")]
ORACLES += [(kind, by_scikit_learn) for kind in (None, "full")]


@pytest.mark.parametrize(("metric", "oracle"), ORACLES)
@pytest.mark.parametrize("features", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_em_takes_the_steps_of_others(metric, oracle, features):
    x = clusters(generator(1), features=features, distance=2.0)
    how = {"metric": metric, "prior_weight": FAINT, "tol": None, "seed": 0}
    begin = from_points(x, 3, num_steps=0, **how)
    found = from_points(x, 3, num_steps=STEPS, **how)
    # the prior moves a precision by at most a factor 1 ± ν s²/σ² / n, below 100 ν / n here, in every step, and log densities by D
    # times the squared distance of a point (below 100) as much; 1e-11 · 100 · 12 · 100 / 10 = 1.2e-7. EM forgets: much is left over
    expected = oracle(x, begin, metric)
    assert float((found.log_evidence(x) - expected).abs().max()) < 1.2e-7
    assert float((begin.log_evidence(x) - expected).mean().abs()) > 0.05  # there was a way to go


@KINDS
def test_the_end_is_a_mode_under_the_prior_that_counts_as_points(metric):
    """The gradient of evidence and prior, in logarithms of precisions, is 0; the prior as pseudo-points, by its formula."""
    x, nu = clusters(generator(2)), 2.5
    found = from_points(x, 3, metric=metric, prior_weight=nu, tol=1e-11, num_steps=5000, seed=1)
    spread = torch.cov(x.T, correction=0) / 3 ** (2 / 2)
    keys = found.keys.clone().requires_grad_()
    logits = found.log_weights().clone().requires_grad_()
    which = "key_precision" if found.metric is None else "metric"
    own = getattr(found, which)
    root = torch.linalg.cholesky(own) if metric == "full" else own.sqrt()
    root = root.clone().requires_grad_()
    value = root @ root.mT if metric == "full" else root.square()
    mixture = found.with_parameters({"keys": keys, "log_prior": logits.log_softmax(-1), which: value})
    each = {
        None: lambda: (
            value.log() - value * spread.trace() / 2
        ).sum(),  # ν points of two coordinates each: log α - α s²
        "scalar": lambda: (value.log() - value * spread.trace() / 2).sum(),
        "diagonal": lambda: (0.5 * value.log() - 0.5 * value * spread.diagonal()).sum(),
        "full": lambda: 0.5 * value.logdet() - 0.5 * (value * spread).sum(),
    }[metric]()
    objective = mixture.log_evidence(x).sum() + nu * each
    gradients = torch.autograd.grad(objective, [keys, logits, root])
    # EM has stopped moving by 1e-11 of a parameter; curvatures are some N · precision · distance² < 1e5, contraction above 0.01
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-4


@pytest.mark.parametrize("metric", ["full", *SLOWER])
def test_a_batch_is_the_stack_of_its_singles(metric):
    x, weights = clusters(generator(3), batch=(2, 1)), torch.rand(3, 60, generator=generator(4))
    together = from_points(x, 3, point_weights=weights, metric=metric, **FEW)
    assert together.batch_shape == (2, 3)
    evidence = together.log_evidence(x)
    for i in range(2):
        for j in range(3):
            one = from_points(x[i, 0], 3, point_weights=weights[j], metric=metric, **FEW)
            assert_equal(evidence[i, j], one.log_evidence(x[i, 0]), operations=64 * 10)  # ten steps of rounding


def test_weights_are_multiplicities():
    x = clusters(generator(5), points=30)
    counts = torch.randint(0, 3, (30,), generator=generator(6))
    weighted = from_points(x, 3, point_weights=counts.double(), metric="full", **FEW)
    repeated = from_points(x.repeat_interleave(counts, 0), 3, metric="full", **FEW)
    assert_equal(weighted.log_evidence(x), repeated.log_evidence(x), operations=64 * 10)


@pytest.mark.parametrize(("metric", "power"), [("diagonal", 1), ("full", 2)])
def test_a_metric_does_not_mind_units_of_measurement(metric, power):
    x = clusters(generator(7))
    turn = torch.tensor([[100.0, 0.0], [0.0, 0.1]])
    turn = turn if power == 1 else turn @ torch.tensor([[1.0, 2.0], [-1.0, 1.0]])
    found, moved = (from_points(y, 3, metric=metric, tol=None, num_steps=20, seed=0) for y in (x, x @ turn + 50.0))
    # a covariance of condition κ = 1e7 loses κ eps of its smallest directions, in each of 20 steps
    assert_equal(moved.attention(x @ turn + 50.0), found.attention(x), operations=20 * 1e7)


@pytest.mark.parametrize(
    "metric", ["scalar", *(pytest.param(kind, marks=pytest.mark.slow) for kind in (None, "diagonal", "full"))]
)
def test_the_number_of_units_is_found(metric):
    centers = torch.tensor([[-6.0, 0.0], [6.0, 0.0], [0.0, 9.0]])
    x = centers.repeat(30, 1) + torch.randn(90, 2, generator=generator(8))
    assert from_points(x, [1, 2, 3, 4], metric=metric, seed=0).num_units == 3
    assert from_points(x[::3], [1, 2], metric=metric, seed=0).num_units == 1


def test_held_out_evidence_is_that_of_mixtures_fitted_without_the_fold():
    x, folds = clusters(generator(9), points=20), 4
    table = models.held_out_evidence(x, [1, 2], num_folds=folds, metric="scalar", **FEW)
    order = torch.randperm(20, generator=generator(0)) % folds
    assert list(table) == [1, 2]
    for number, evidence in table.items():
        for fold in range(folds):
            training = (order != fold).double()
            one = from_points(x, number, point_weights=training, metric="scalar", **FEW)
            assert_equal(evidence[order == fold], one.log_evidence(x)[order == fold], operations=64 * 10)


def test_values_become_answers():
    g = generator(10)
    x = torch.cat([torch.randn(40, 2, generator=g) - 5.0, torch.randn(40, 2, generator=g) + 5.0])
    values = x[:, :1].sign() * 2.0 + 0.1 * torch.randn(80, 1, generator=g)
    found = from_points(x, [1, 2, 3], values=values, metric="full", seed=0)
    assert found.num_units == 2
    # clusters are ten standard deviations apart: each unit has its 40 points for its own, to e^-30
    means = torch.stack([values[:40].mean(), values[40:].mean()])
    assert_equal(found.values.flatten().sort().values, means, operations=1000)
    left = torch.cat([values[:40] - means[0], values[40:] - means[1]]).square().sum()
    expected = (80 + 1) / (left + values.var(correction=0))  # 80 points, and one of the prior
    assert_equal(found.value_precision.squeeze(), expected, operations=1000)


def test_a_unit_on_one_point_has_a_finite_precision():
    x = torch.cat([torch.randn(30, 2, generator=generator(11)), torch.full((1, 2), 1000.0)])
    found = from_points(x, 2, seed=0)
    assert float(found.key_precision.max() / found.key_precision.min()) < 1e8
    assert math.isfinite(float(found.log_evidence(x).sum()))


def test_single_precision_stays_single():
    assert from_points(clusters(generator(12)).float(), 2, metric="full", seed=0).metric.dtype == torch.float32


POINTS = torch.randn(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
FLAT_POINTS = torch.cat([POINTS[:, :1], 2 * POINTS[:, :1]], -1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"points": POINTS.half()}, "points must be of single or double precision, not torch.float16"),
        ({"points": POINTS.tolist()}, "points must be a torch.Tensor, not list; wrap it in torch.as_tensor"),
        ({"points": POINTS[0]}, r"points must have shape \(..., N, D\)"),
        ({"points": POINTS * torch.nan}, "points contains NaN"),
        ({"points": torch.ones(12, 2)}, "points do not vary"),
        ({"points": torch.ones(12, 2) * 1e6 + 0.0, "metric": "scalar"}, "points do not vary"),
        (
            {"points": POINTS * torch.tensor([1.0, 0.0]).double(), "metric": "diagonal"},
            "points, in some feature, do not vary",
        ),
        ({"points": FLAT_POINTS, "metric": "full"}, "points lie in a subspace of their 2 features.*metric='diagonal'"),
        ({"metric": "tied"}, "metric must be None, 'scalar', 'diagonal' or 'full', not 'tied'"),
        ({"prior_weight": 0.0}, "prior_weight must be a positive number of points, not 0.0"),
        ({"num_units": 0}, "num_units must be a whole number from 1"),
        ({"num_units": []}, r"num_units must be a whole number from 1, or several, .* not \[\]"),
        ({"num_units": 2.0}, "num_units must be a whole number from 1, or several, .* not 2.0"),
        ({"num_units": [1, True]}, "num_units must be a whole number from 1"),
        ({"num_units": 13}, "number of points, 12, not 13"),
        ({"num_units": [1, 10]}, "num_units goes to 10, more than the points that 5 folds leave"),
        ({"num_units": [1, 2], "num_folds": 1}, "num_folds must be between 2 and the number of points, 12, not 1"),
        ({"num_steps": -1}, "num_steps must be 0 or more"),
        (
            {"values": torch.zeros(12, dtype=torch.long)},
            "values must be .* for labels take models.GaussianMixture.categorical",
        ),
        ({"values": torch.zeros(11, 1).double()}, "values have 11 rows but points have 12"),
        ({"values": torch.zeros(12, 1)}, "tensors differ in dtype"),
        ({"values": torch.zeros(12, 1).double()}, "values do not vary"),
        ({"point_weights": torch.ones(11).double()}, "point_weights must be torch.float64 of shape"),
    ],
)
def test_bad_input_gets_one_clear_error(given, message):
    with pytest.raises(ValueError, match=message):
        from_points(**({"points": POINTS, "num_units": 2, "seed": 0} | given))


def test_em_that_stops_early_warns():
    with pytest.warns(UserWarning, match="EM of 2 units has not met tol=1e-09 after num_steps=2"):
        from_points(POINTS, 2, tol=1e-9, num_steps=2, seed=0)
