"""Metric and shift of a Gaussian mixture and of Gaussian keys: against `MultivariateNormal`, quadrature and calibration, by ECM, Gibbs, NUTS and causally."""

import math
from functools import partial

import pytest
import torch
from formulations import single
from pyro.distributions import Dirichlet, Gamma, Normal, Wishart
from strategies import generator, keys_problem, problem
from tolerances import assert_equal, assert_never_falls
from torch.distributions import MultivariateNormal, biject_to, constraints

from probtx_pyro import inference, models, results
from probtx_pyro.models._distributions import PlainWishart
from probtx_pyro.models._problem import draw

KINDS = pytest.mark.parametrize("kind", ["full", "diagonal"])
MADE = {"units": problem, "keys": partial(keys_problem, answer="gaussian")}
PROBLEMS = pytest.mark.parametrize("make", MADE.values(), ids=MADE)


def full_metric(mixture):
    """The metric as matrices."""
    return torch.diag_embed(mixture.metric) if mixture.diagonal_metric else mixture.metric


def priors(mixture):
    """Conjugate priors on the four parameters of the keys."""
    features, kind = mixture.keys.shape[-1], mixture.diagonal_metric
    metric = Gamma(4.0, 3.0) if kind else Wishart(torch.tensor(features + 4.0), torch.eye(features) / 4)
    own = dict(
        keys=Normal(mixture.keys, 1.0), shift=Normal(0.0, 1.0), key_precision=Gamma(4.0, 4.0), metric=metric,
        weights=Dirichlet(torch.full((1, mixture.num_units), 1.5)),
    )  # fmt: skip
    several = len(mixture.unit_shape) > 1
    return own | ({"component_weights": Dirichlet(torch.full(mixture.unit_shape, 1.5))} if several else {})


@pytest.mark.pairs
@KINDS
@PROBLEMS
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_density_attention_and_answers_are_those_of_multivariate_normals(make, kind, batch, device):
    mixture, queries, outputs, _ = make(generator(1), batch=batch, metric=kind)
    units, weights, on_unit = mixture.unit_shape, mixture.log_weights(), (None,) * len(mixture.unit_shape)
    metric, shift = (
        full_metric(mixture)[(..., *on_unit, slice(None), slice(None))],
        mixture.shift[(..., *on_unit, slice(None))],
    )
    keys = MultivariateNormal(mixture.keys + shift, torch.linalg.inv(mixture.key_precision[..., None, None] * metric))
    asked = queries.movedim(-2, 0)[(..., *on_unit, slice(None))]
    every = keys.expand((5, *batch, *units)).log_prob(asked).movedim(0, len(batch))
    if len(units) > 1:
        every = every + weights.unsqueeze(-1) + mixture.component_log_weights().unsqueeze(-3)
        joint = every.logsumexp(-1)
    else:
        joint = every = every + weights
    on_device, asked = mixture.to(device), queries.to(device)
    # an inverse of a 3 x 3 matrix of condition κ loses κ eps; κ is below 100 here
    assert_equal(on_device.log_joint(asked).cpu(), every, torch.tensor(100.0))
    assert_equal(on_device.attention(asked).cpu(), joint.softmax(-1), torch.tensor(100.0))
    answers = joint.softmax(-1) @ mixture.values
    assert_equal(on_device.expected_outputs(asked).cpu(), answers, torch.tensor(100.0))
    assert_equal(on_device.explicit_outputs(asked)[0].cpu(), answers, torch.tensor(100.0))
    each = MultivariateNormal(mixture.values, torch.eye(2) / mixture.value_precision[..., None, None])
    both = joint + each.expand((5, *batch, 4)).log_prob(outputs.movedim(-2, 0).unsqueeze(-2)).movedim(0, -2)
    assert_equal(on_device.log_evidence(asked, outputs.to(device)).cpu(), both.logsumexp(-1), torch.tensor(100.0))


@KINDS
def test_answers_under_a_metric_are_those_of_whitened_keys_and_queries(kind):
    """Modes, covariance and MAP of the answers, by the mixture without a metric in coordinates where the metric is plain."""
    mixture, queries, *_ = problem(generator(2), metric=kind)
    root = torch.linalg.cholesky(full_metric(mixture))
    plain = models.GaussianMixture(
        (mixture.keys + mixture.shift) @ root, mixture.values, mixture.key_precision, mixture.value_precision, mixture.log_prior
    )  # fmt: skip
    for method in ("output_covariance", "map_outputs"):
        assert_equal(getattr(mixture, method)(queries), getattr(plain, method)(queries @ root), operations=1024)
    found, expected = mixture.output_modes(queries), plain.output_modes(queries @ root)
    assert_equal(found.locations, expected.locations, operations=2**16)  # 1,000 steps of EM, each of some 64 operations
    assert torch.equal(found.is_mode, expected.is_mode)


@PROBLEMS
def test_the_plain_inner_product_without_a_shift_is_the_mixture_without_either(make):
    plain, queries, outputs, _ = make(generator(3))
    for metric in (torch.eye(3), torch.ones(3)):
        mixture = plain.replace(metric=metric, shift=torch.zeros(3))
        assert_equal(mixture.log_evidence(queries, outputs), plain.log_evidence(queries, outputs))
        assert_equal(mixture.expected_outputs(queries), plain.expected_outputs(queries))
        hard = {"assignment": "hard"} if make is not problem else {}
        assert_equal(mixture.attention(queries, outputs, **hard), plain.attention(queries, outputs, **hard))


def extreme(seed, several=False):
    """A random problem of 1 to 4 features, 1 to 5 units and 1 to 29 queries, scales from 1e-4 to 1e4, condition up to 1e9.

    ``several``: each unit has 1 to 3 keys, and answers of which some are known.
    """
    g = generator(seed)
    features, units, count = (int(torch.randint(1, most, (), generator=g)) for most in (5, 6, 30))
    scale = 10.0 ** float(torch.randint(-4, 5, (), generator=g))
    spectrum = torch.logspace(0, -float(torch.randint(0, 10, (), generator=g)), features) / scale**2
    turn, _ = torch.linalg.qr(torch.randn(features, features, generator=g))
    shape = (units, int(torch.randint(1, 4, (), generator=g))) if several else (units,)
    diagonal, keys = seed % 2 == 1, scale * torch.randn(*shape, features, generator=g)
    matrix = (turn * spectrum) @ turn.mT
    kind = models.GaussianKeys if several else models.GaussianMixture
    mixture = kind(
        keys, None, torch.rand(shape, generator=g) + 0.3, metric=spectrum if diagonal else 0.5 * (matrix + matrix.mT),
        shift=scale * torch.randn(features, generator=g), diagonal_metric=diagonal,
    )  # fmt: skip
    near = Wishart(torch.tensor(features + 2.0), torch.eye(features) / scale**2 / (features + 2))
    found = priors(mixture) | dict(
        keys=Normal(keys, scale), shift=Normal(0.0, 2 * scale), metric=Gamma(2.0, 2 * scale**2) if diagonal else near,
    )  # fmt: skip
    queries = scale * (torch.randn(count, features, generator=g) + 5 * (seed % 3))
    if not several:
        return models.bayesian(mixture, **found), (queries,)
    mixture = mixture.replace(
        values=torch.randn(units, 2, generator=g), value_precision=torch.rand(units, generator=g) + 0.3
    )
    found |= dict(values=Normal(0.0, 2.0), value_precision=Gamma(2.0, 0.5))
    outputs, observed = torch.randn(count, 2, generator=g), torch.rand(count, generator=g) < 0.5
    return models.bayesian(mixture, **found), (queries, outputs, observed)


@pytest.mark.parametrize(
    ("several", "seeds"),
    [(False, range(40)), (True, range(10)),
     *((False, range(n, n + 240)) for n in range(40, 520, 240)), (True, range(10, 110))],
    ids=str,
)  # fmt: skip
@pytest.mark.slow
def test_ecm_never_falls(several, seeds):
    for seed in seeds:
        posterior, data = extreme(seed, several)
        fit = inference.adapt(posterior, *data, num_steps=15, progress=False)
        assert torch.isfinite(fit.objective).all()
        # the objective sums densities of up to 29 queries, whose logarithms are as large as the objective's largest
        assert_never_falls(fit.objective, operations=29 * 64)


@KINDS
@PROBLEMS
@pytest.mark.slow
def test_ecm_ends_where_the_gradient_of_the_log_joint_vanishes(make, kind):
    mixture, queries, *_ = make(generator(5), queries=30, metric=kind)
    fit = inference.adapt(
        models.bayesian(mixture, **priors(mixture)), queries, num_steps=3000, tol=1e-12, progress=False
    )
    assert fit.converged.all()
    found = {name: fit.formulation.held(name) for name in ("keys", "shift", "key_precision", "metric")}
    leaves = {name: x.clone().requires_grad_() for name, x in found.items()}
    own = priors(mixture)
    moved = fit.formulation.with_parameters(leaves)
    joint = moved.log_evidence(queries).sum() + sum(own[name].log_prob(x).sum() for name, x in leaves.items())
    for name, slope in zip(leaves, torch.autograd.grad(joint, leaves.values()), strict=True):
        # of order 10 before; a step of ECM moved nothing by more than 1e-12 of its size, at curvatures below 1e4
        assert slope.abs().max() < 1e-6, name


@pytest.mark.slow
def test_gibbs_is_quadrature_in_one_dimension():
    """One unit with fixed key 0: the posterior of shift and metric given 12 numbers, on a grid."""
    mixture = models.GaussianMixture(
        torch.zeros(1, 1), metric=torch.ones(1, 1), shift=torch.zeros(1), diagonal_metric=False
    )
    posterior = models.bayesian(mixture, shift=Normal(0.5, 1.0), metric=Wishart(torch.tensor(5.0), torch.eye(1) / 3))
    queries = torch.randn(12, 1, generator=generator(6)) * 0.8 + 1.0
    shifts, metrics = torch.linspace(-2, 4, 801), torch.linspace(0.01, 12, 1201)
    grid = torch.distributions.Normal(0.5, 1.0).log_prob(shifts).unsqueeze(-1)
    # Wishart(5, 1/3) in one dimension is Gamma(5/2, 3/2)
    grid = grid + torch.distributions.Gamma(2.5, 1.5).log_prob(metrics)
    away = (queries - shifts).square().sum(0).unsqueeze(-1)
    grid = grid + 6 * metrics.log() - 0.5 * away * metrics
    weights = grid.flatten().softmax(0).reshape(grid.shape)
    draws = inference.gibbs(posterior, queries, num_samples=400, num_chains=100, seed=0, progress=False)
    shift, metric = (draws.samples[name].flatten() for name in ("shift", "metric"))
    for found, mean, square in (
        (shift, (weights.sum(1) * shifts).sum(), (weights.sum(1) * shifts**2).sum()),
        (metric, (weights.sum(0) * metrics).sum(), (weights.sum(0) * metrics**2).sum()),
    ):
        spread = (square - mean**2).sqrt()
        # 40,000 draws, of which successive ones are nearly independent: 5 standard errors of 10,000 independent ones
        assert abs(found.mean() - mean) < 5 * spread / 100
        assert abs(found.std() - spread) < 5 * spread / 100


SEVERAL = {
    "metric": "metric",
    "keys, shift and metric": "keys shift metric",
    "answers": "key_precision metric values value_precision weights component_weights",
    "labels": "shift metric answer_probs",
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [
    ("metric", "full"), ("metric", "diagonal"), ("keys, shift and metric", "full"), ("answers", "diagonal"), ("labels", "full"),
])  # fmt: skip
def test_gibbs_of_several_keys_and_their_answers_is_calibrated(name, kind):
    keys = torch.tensor([[[-2.0, 0.0], [0.0, 2.0]], [[2.0, 0.5], [0.0, -2.0]]])
    options = {"key_precision": torch.full((2, 2), 2.0), "shift": torch.zeros(2), "diagonal_metric": kind == "diagonal"}
    options["metric"] = torch.tensor([1.5, 0.7]) if kind == "diagonal" else torch.tensor([[1.5, 0.4], [0.4, 0.7]])
    if name == "labels":
        model, outputs = (
            models.GaussianKeys(keys, answer_probs=torch.full((2, 3), 1 / 3), **options),
            torch.zeros(20).long(),
        )
    else:
        values, outputs = torch.tensor([[-1.0], [1.0]]), torch.zeros(20, 1)
        model = models.GaussianKeys(keys, values, value_precision=torch.ones(2), **options)
    own = dict(
        keys=Normal(keys, 0.4), shift=Normal(0.0, 0.5), key_precision=Gamma(10.0, 5.0),
        metric=Gamma(5.0, 4.0) if kind == "diagonal" else Wishart(torch.tensor(7.0), torch.eye(2) / 6),
        values=Normal(0.0, 1.0), value_precision=Gamma(5.0, 4.0), answer_probs=Dirichlet(torch.tensor([1.5, 1.0, 1.0])),
        weights=Dirichlet(torch.full((1, 2), 3.0)), component_weights=Dirichlet(torch.full((2,), 3.0)),
    )  # fmt: skip
    own = {prior: own[prior] for prior in SEVERAL[name].split()}
    data = (torch.zeros(20, 2), outputs, torch.arange(20) % 3 > 0)  # two answers in three are known
    found = results.calibrate(
        models.bayesian(model, **own), *data, num_simulations=500, num_draws=49, seed=0, batch_size=50,
        sampler=partial(inference.gibbs, num_chains=49, num_samples=1, num_warmup=60, progress=False),
    )  # fmt: skip
    assert found.ok(0.99), str(found)


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "names", "kind"), [
    ("gibbs", "metric", "full"), ("gibbs", "metric", "diagonal"), ("gibbs", "shift", "full"), ("gibbs", "shift metric", "diagonal"),
    ("gibbs", "keys shift metric", "full"), ("gibbs", "keys shift metric", "diagonal"), ("nuts", "metric", "full"),
    ("nuts", "shift", "diagonal"), ("nuts", "shift metric", "full"), ("nuts", "keys shift metric", "diagonal"),
])  # fmt: skip
def test_the_samplers_are_calibrated(sampler, names, kind):
    keys = torch.tensor([[-1.5, 0.0], [1.5, 0.5]])
    metric = torch.tensor([1.5, 0.7]) if kind == "diagonal" else torch.tensor([[1.5, 0.4], [0.4, 0.7]])
    options = {"metric": metric, "shift": torch.zeros(2), "diagonal_metric": kind == "diagonal"}
    mixture = models.GaussianMixture(keys, None, 2.0, **options)
    own = dict(
        keys=Normal(keys, 0.4), shift=Normal(0.0, 0.5),
        metric=Gamma(5.0, 4.0) if kind == "diagonal" else Wishart(torch.tensor(7.0), torch.eye(2) / 6),
    )  # fmt: skip
    posterior = models.bayesian(mixture, **{name: own[name] for name in names.split()})
    if sampler == "gibbs":
        run = {"sampler": partial(inference.gibbs, num_chains=49, num_samples=1, num_warmup=60), "batch_size": 50}
        simulations, num_draws = 500, 49
    else:
        sampler = partial(inference.nuts, num_chains=1, num_samples=98, num_warmup=100, progress=False)
        run, simulations, num_draws = {"sampler": sampler, "batch_size": 200}, 200, 49  # every other draw
    found = results.calibrate(
        posterior, torch.zeros(20, 2), num_simulations=simulations, num_draws=num_draws, seed=0, **run
    )
    assert found.ok(0.99), str(found)


@KINDS
@PROBLEMS
def test_causal_adaptation_is_that_of_each_prefix(make, kind):
    mixture, queries, *_ = make(generator(7), metric=kind)
    posterior = models.bayesian(mixture, **priors(mixture))
    fit = inference.adapt(posterior, queries, num_steps=3, causal=True)
    answers = fit.formulation.expected_outputs(queries.unsqueeze(-2)).squeeze(-2)
    for i in range(5):
        alone = inference.adapt(posterior, queries[: i + 1], num_steps=3).formulation
        for name in ("keys", "shift", "key_precision", "metric"):
            assert_equal(fit.formulation.held(name)[i], alone.held(name), operations=2048)
        assert_equal(answers[i], alone.expected_outputs(queries[i : i + 1])[0], operations=2048)


@pytest.mark.slow
@KINDS
@PROBLEMS
def test_causal_adaptation_of_a_batch_is_that_of_its_problems(make, kind):
    mixture, queries, *_ = make(generator(7), batch=(2,), queries=3, metric=kind)
    alone, options = single(mixture, (1,)), {"num_steps": 2, "causal": True}
    both, one = (
        inference.adapt(models.bayesian(x, metric=priors(x)["metric"]), asked, **options).formulation
        for x, asked in ((mixture, queries), (alone, queries[1]))
    )
    assert_equal(both.metric[1], one.metric, operations=512)
    answers, own = both.expected_outputs(queries.unsqueeze(-2)), one.expected_outputs(queries[1].unsqueeze(-2))
    assert_equal(answers[1], own, operations=512)


@pytest.mark.slow
@KINDS
def test_implicit_gradients_are_those_of_the_steps(kind):
    mixture, queries, *_ = problem(generator(8), queries=20, metric=kind)
    asked, found = queries.clone().requires_grad_(), []
    own = {
        name: prior for name, prior in priors(mixture).items() if name in ("keys", "metric")
    }  # they settle in 400 steps
    for implicit in (False, True):
        fit = inference.adapt(
            models.bayesian(mixture, **own), asked, num_steps=400, tol=None if not implicit else 1e-12, implicit=implicit
        )  # fmt: skip
        found.append(torch.autograd.grad(fit.formulation.expected_outputs(asked).square().sum(), asked)[0])
    # both stop within 1e-10 of the fixed point, whose inverse Jacobian is below 1e3
    assert (found[0] - found[1]).abs().max() < 1e-6 * found[0].abs().max()


def test_coordinates_of_positive_definite_matrices_are_a_bijection_with_its_jacobian():
    transform = biject_to(constraints.positive_definite)
    x = torch.randn(2, 6, generator=generator(9))
    y = transform(x)
    assert_equal(transform.inv(y), x, operations=256)
    assert transform.forward_shape(x.shape) == y.shape and transform.inverse_shape(y.shape) == x.shape
    rows, columns = torch.tril_indices(3, 3)
    for point, matrix in zip(x, y, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda p: transform(p)[rows, columns], point)
        assert_equal(transform.log_abs_det_jacobian(point, matrix), jacobian.det().abs().log(), operations=256)


def test_draws_of_a_wishart_have_its_mean_and_its_log_determinant():
    """20,000 draws, of the prior and of the conditional posterior, within 5 standard errors."""
    scale = torch.tensor([[1.0, 0.3], [0.3, 0.5]])
    wishart = PlainWishart(torch.tensor(6.0), scale)
    root, take = torch.linalg.cholesky(scale), draw(generator(11))
    torch.manual_seed(10)
    for drawn in (wishart.sample((20_000,)), take.wishart(torch.tensor(6.0), root, torch.zeros(20_000, 2, 2))):
        error = drawn.std(0) / 20_000**0.5
        assert ((drawn.mean(0) - 6 * scale).abs() < 5 * error).all()
        logs = torch.logdet(drawn)
        expected = (
            torch.logdet(scale) + 2 * math.log(2) + torch.digamma(torch.tensor(3.0)) + torch.digamma(torch.tensor(2.5))
        )
        assert abs(logs.mean() - expected) < 5 * logs.std() / 20_000**0.5


KEYS = torch.randn(4, 3, generator=generator(12), dtype=torch.float64)
MATRIX = torch.eye(3, dtype=torch.float64)
BAD = {
    "metric of other features": ({"metric": KEYS.new_ones(2)}, r"keys have 3 features but metric have 2"),
    "metric that is negative": ({"metric": -KEYS.new_ones(3)}, r"metric must be > 0"),
    "metric that is not symmetric": ({"metric": MATRIX + KEYS.new_ones(3, 3).triu(1)}, r"metric must be symmetric; .*metric\.mT"),
    "metric that is not positive definite": ({"metric": MATRIX - 2}, r"metric must be symmetric positive definite"),
    "metric that is said to be a matrix": ({"metric": KEYS.new_ones(3), "diagonal_metric": False}, r"metric must end in \(3, 3\)"),
    "shift of other features": ({"shift": KEYS.new_ones(2)}, r"keys have 3 features but shift have 2"),
    "metric of another dtype": ({"metric": MATRIX.float()}, r"differ in dtype"),
    "metric with NaN": ({"metric": MATRIX * math.nan}, r"metric contains NaN"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(name):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message) as error:
        models.GaussianMixture(KEYS, **options)
    assert "\n" not in str(error.value)


BAD_PRIORS = {
    "metric that is not there": ({"metric": Wishart(KEYS.new_tensor(4.0), MATRIX)}, {}, r"prior on metric, but the GaussianMixture has no metric"),
    "flat": ({"metric": models.FLAT}, {"metric": MATRIX}, r"unbounded in metric, .*Wishart"),
    "of a diagonal": ({"metric": Gamma(2.0, 1.0)}, {"metric": MATRIX}, r"Gamma on metric has the wrong support; .*positive definite matrices, such as Wishart"),
    "of a matrix": ({"metric": Wishart(KEYS.new_tensor(4.0), MATRIX)}, {"metric": KEYS.new_ones(3)}, r"Wishart on metric has the wrong support; .*positive numbers, such as Gamma"),
    "without a mode": ({"metric": Wishart(KEYS.new_tensor(3.5), MATRIX)}, {"metric": MATRIX}, r"fewer than D \+ 1 = 4 degrees of freedom.*inference\.gibbs"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PRIORS)
def test_a_prior_that_does_not_fit_is_one_clear_error(name):
    own, options, message = BAD_PRIORS[name]
    with pytest.raises(ValueError, match=message) as error:
        inference.adapt(models.bayesian(models.GaussianMixture(KEYS, **options), **own), torch.zeros(5, 3))
    assert "\n" not in str(error.value)
