"""Filters, evidence, smoothing and reads of a regression memory against the joint normal density that it is."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_oracle import conditioned, joint
from mpmath import mp, mpf
from pyro import poutine
from pyro.distributions import Beta, Gamma, Normal
from pyro.infer import Trace_ELBO

from probtx_pyro import inference, models
from probtx_pyro.models import regression_memory
from probtx_pyro.models.regression_memory import Discount, PullBack, RegressionMemory, Reset, Static, Walk

# Bounds of 1e-9 to 1e-13 are rounding: some thousand operations in double precision, at conditions below 1e3 and numbers
# of order ten; the oracle's own solves of 12 x 12 matrices take the larger part of it.
KINDS = ("static", "discount", "pull back", "walk", "reset")
T, F, M = 12, 3, 2


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(seed, *shape, low=0.0, high=1.0):
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return low + (high - low) * drawn


def matrix(seed, size=F):
    root = normal(seed, size, size)
    return root @ root.mT + torch.eye(size, dtype=torch.float64)


def drift_of(kind, seed, length=T):
    """A drift, and the oracle's numbers of it."""
    if kind == "static":
        return Static(), None
    if kind == "walk":
        decay, spread = uniform(seed, F, low=0.7), uniform(seed + 1, F, high=0.3)
        return Walk(decay, spread), (decay.numpy(), spread.numpy())
    factor = uniform(seed, length, low=0.7)
    if kind == "reset":
        return Reset(decay=factor), factor.numpy()
    return {"discount": Discount, "pull back": PullBack}[kind](factor), factor.numpy()


def problem(kind, seed, clock=True, relative=False, length=T):
    """A memory, its data, and the oracle's answers: log density, path means and covariance given the values."""
    drift, numbers = drift_of(kind, seed, length)
    prior, mean = matrix(seed + 2), normal(seed + 3, M, F)
    memory = RegressionMemory(None, 3.0, drift, mean, relative=relative, prior_matrix=prior)
    keys, values = normal(seed + 4, length, F), normal(seed + 5, length, M)
    strength, observed = uniform(seed + 6, length, low=0.5, high=1.5), uniform(seed + 7, length) > 0.2
    betas = (torch.where(observed, strength, 0.0) * (1.0 if relative else 3.0)).numpy()
    moves = np.ones(length, bool) if clock else observed.numpy()
    made = joint(kind, numbers, keys.numpy(), betas, prior.numpy(), mean.numpy(), moves)
    if relative:  # all variances are those of the filter, over the noise precision
        made = (made[0], made[1] / 3.0, made[2])
        betas = betas * 3.0
    return memory, (keys, values, observed, strength), conditioned(*made, values.numpy(), betas), made


def largest(x, y):
    return float((torch.as_tensor(x) - torch.as_tensor(y)).abs().max())


@pytest.mark.pairs
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("clock", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_filter_evidence_and_smoother_are_those_of_the_joint_density(kind, clock, relative):
    for seed in range(0, 100, 10):
        memory, data, (density, path, covariance), _ = problem(kind, seed, clock, relative)
        state, smooth = memory.filter(*data, clock), memory.smooth(*data, clock)
        assert float(state.log_evidence.sum()) == pytest.approx(density, rel=1e-10)
        assert largest(state.mean, path[:, -F:]) < 1e-10
        scale = 3.0 if relative else 1.0
        assert largest(state.covariance / scale, covariance[-F:, -F:]) < 1e-10
        assert largest(state.precision @ state.covariance, torch.eye(F)) < 1e-9
        rows = path.reshape(M, T + 1, F).transpose(1, 0, 2)[1:]
        blocks = np.stack([covariance[t * F : (t + 1) * F, t * F : (t + 1) * F] for t in range(1, T + 1)])
        assert largest(smooth.mean, rows) < 1e-10
        assert largest(smooth.covariance, blocks) < 1e-10


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.booleans())
def test_random_problems_agree_with_the_joint_density(kind, seed, clock):
    memory, data, (density, path, _), _ = problem(kind, seed, clock)
    assert float(memory.log_evidence(*data, clock).sum()) == pytest.approx(density, rel=1e-10, abs=1e-10)
    assert largest(memory.filter(*data, clock).mean, path[:, -F:]) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_the_stack_of_its_singles(kind):
    made = [problem(kind, seed) for seed in (1, 2, 3)]
    drifts = [memory.drift for memory, *_ in made]
    stacked = {
        name: torch.stack([vars(d)[name] for d in drifts]) for name, x in vars(drifts[0]).items() if torch.is_tensor(x)
    }
    drift = regression_memory.check.unchecked(type(drifts[0]), **vars(drifts[0]) | stacked)
    prior, mean = (torch.stack([getattr(memory, name) for memory, *_ in made]) for name in ("prior_matrix", "mean"))
    memory = RegressionMemory(None, 3.0, drift, mean, prior_matrix=prior)
    data = [torch.stack(x) for x in zip(*(data for _, data, *_ in made), strict=True)]
    queries = normal(9, 3, T, F)
    both = (memory.filter(*data), memory.read(queries, *data))
    for i, (single, own, *_) in enumerate(made):
        state, read = single.filter(*own), single.read(queries[i], *own)
        assert largest(both[0].mean[i], state.mean) < 1e-12
        assert largest(both[0].log_evidence[i], state.log_evidence) < 1e-12
        assert largest(both[1].mean[i], read.mean) < 1e-12
        assert largest(both[1].variance[i], read.variance) < 1e-12


@pytest.mark.parametrize("drift", [Static(), Discount(0.9), PullBack(0.9), Walk(0.9), Reset()])
def test_a_memory_that_has_read_nothing_is_its_prior(drift):
    nothing = torch.zeros(0, 2, dtype=torch.float64)
    memory = RegressionMemory(2.0, 3.0, drift)
    state = memory.filter(nothing, nothing[:, :1])
    assert largest(state.covariance, 0.5 * torch.eye(2)) < 1e-12 and float(state.mean.abs().max()) == 0
    assert memory.attention(torch.ones(1, 2, dtype=torch.float64), nothing, causal=False).shape == (1, 0)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pull back"])  # whose prior is what it is pulled to
def test_what_was_learned_before_goes_on_as_a_prior(kind):
    memory, (keys, values, observed, strength), *_ = problem(kind, 4)
    drift = memory.drift
    if kind in ("discount", "reset"):
        name = "factor" if kind == "discount" else "decay"
        first, second = (type(drift)(**{name: vars(drift)[name][rows]}) for rows in (slice(5), slice(5, None)))
    else:
        first = second = drift
    start = memory.replace(drift=first).filter(keys[:5], values[:5], observed[:5], strength[:5])
    later = start.memory.replace(drift=second)
    if kind == "reset":
        later = later.replace(drift=Reset(torch.ones(7), second.decay))
        memory = memory.replace(drift=Reset(torch.ones(12), drift.decay))
        start = memory.replace(drift=Reset(torch.ones(5), first.decay)).filter(
            keys[:5], values[:5], observed[:5], strength[:5]
        )
        later = start.memory.replace(drift=Reset(torch.ones(7), second.decay))
    end, whole = (
        later.filter(keys[5:], values[5:], observed[5:], strength[5:]),
        memory.filter(keys, values, observed, strength),
    )
    assert largest(end.mean, whole.mean) < 1e-10
    assert largest(torch.cat([start.log_evidence, end.log_evidence]), whole.log_evidence) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_reads_are_attention_times_values_and_what_is_left_of_the_prior(kind):
    memory, (keys, values, observed, strength), *_ = problem(kind, 6)
    queries = normal(11, T, F)
    for causal in (True, False):
        weights = memory.attention(queries, keys, observed, strength, causal)
        bare = memory.replace(mean=None).read(queries, keys, torch.nan_to_num(values), observed, strength, causal)
        assert largest(weights @ values, bare.mean) < 1e-10
        assert not causal or float(weights.triu(1).abs().max()) == 0.0
        assert float(weights[:, ~observed].abs().max()) == 0.0


def test_attention_of_a_memory_that_stands_still_is_the_smoother_matrix():
    memory, (keys, *_), *_ = problem("static", 8)
    precision = memory.prior_matrix + 3.0 * keys.mT @ keys
    weights = memory.attention(keys, keys, causal=False)
    assert largest(weights, 3.0 * keys @ torch.linalg.solve(precision, keys.mT)) < 1e-12
    freedom = F - torch.trace(memory.prior_matrix @ torch.linalg.inv(precision))
    assert float(torch.trace(weights) - freedom) == pytest.approx(0.0, abs=1e-10)


def test_leaving_one_out_is_refitting_without_it():
    memory, (keys, values, observed, strength), *_ = problem("static", 9)
    found = memory.loo(keys, values, observed, strength)
    for i in range(T):
        rest = observed.clone()
        rest[i] = False
        state = memory.filter(keys, values, rest, strength).memory
        alone = state.log_evidence(keys[i : i + 1], values[i : i + 1], None, strength[i : i + 1])
        assert float(found[i]) == pytest.approx(float(alone) if observed[i] else 0.0, rel=1e-9, abs=1e-9)
    with pytest.raises(ValueError, match="take log_evidence"):
        memory.replace(drift=Walk(0.9)).loo(keys, values)


@pytest.mark.parametrize("kind", ["static", "discount", "pull back"])
def test_ill_conditioned_memories_keep_their_digits_or_are_refused(kind):
    """Three nearly equal keys and values that contradict each other, in 60 digits."""
    keys = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 1e-4], [1.0, 1.0 - 1e-4], [0.3, -0.2]], dtype=torch.float64)
    values = torch.tensor([[1.0], [-1.0], [2.0], [0.5]], dtype=torch.float64)
    mp.dps = 60
    for power in range(2, 13, 2):
        beta, gamma = 10.0**power, {"static": 1.0}.get(kind, 0.9)
        drift = {"static": Static(), "discount": Discount(gamma), "pull back": PullBack(gamma)}[kind]
        memory = RegressionMemory(1.0, beta, drift)
        found = memory.log_evidence(keys, values)
        precision, product, exact = mp.eye(2), mp.zeros(1, 2), []
        for key, value in zip(keys.tolist(), values[:, 0].tolist(), strict=True):
            phi = mp.matrix([mpf(x) for x in key])
            back = (1 - mpf(gamma)) * mp.eye(2) if kind == "pull back" else mp.zeros(2)
            precision, product = mpf(gamma) * precision + back, mpf(gamma) * product
            covariance = precision**-1
            variance = 1 / mpf(beta) + (phi.T * covariance * phi)[0]
            error = mpf(value) - (product * covariance * phi)[0]
            exact.append(-(mp.log(2 * mp.pi * variance) + error**2 / variance) / 2)
            precision, product = precision + mpf(beta) * phi * phi.T, product + mpf(beta) * mpf(value) * phi.T
        for x, y in zip(found.tolist(), exact, strict=True):
            assert abs(x - float(y)) <= 1e-6 * max(1.0, abs(float(y))), (power, x, float(y))
    with pytest.raises(ValueError, match="raise prior_precision or lower noise_precision"):
        RegressionMemory(1.0, 1e30, drift).log_evidence(keys, values)


def test_a_problem_beside_an_ill_conditioned_one_keeps_its_bits():
    keys, values = normal(1, T, F), normal(2, T, M)
    alone = RegressionMemory(1.0, torch.ones(1, dtype=torch.float64)).log_evidence(
        keys.unsqueeze(0), values.unsqueeze(0)
    )
    both = RegressionMemory(1.0, torch.tensor([1.0, 1e12], dtype=torch.float64)).log_evidence(keys, values)
    assert largest(alone[0], both[0]) < 1e-14
    other = RegressionMemory(1.0, 1e12).log_evidence(keys, values)
    assert largest(other, both[1]) < 1e-9 * float(other.abs().max())


def test_scales_of_keys_and_values_that_the_precisions_follow_change_nothing():
    keys, values = normal(1, T, F), normal(2, T, M)
    plain = RegressionMemory(2.0, 5.0).predictive(keys, values)
    for a, b in ((1e6, 1e-6), (1e-6, 1e6), (1e6, 1e6)):
        scaled = RegressionMemory(2.0 * (a / b) ** 2, 5.0 / b**2).predictive(a * keys, b * values)
        z = (values - plain.mean) / plain.variance.sqrt()
        assert largest((b * values - scaled.mean) / scaled.variance.sqrt(), z) < 1e-9


def test_order_rotation_and_strength_of_a_memory_that_stands_still():
    keys, values = normal(1, T, F), normal(2, T, M)
    memory = RegressionMemory(2.0, 5.0)
    total = memory.log_evidence(keys, values).sum()
    order = torch.randperm(T, generator=torch.Generator().manual_seed(0))
    assert largest(memory.log_evidence(keys[order], values[order]).sum(), total) < 1e-10
    turn, other = torch.linalg.qr(normal(3, F, F))[0], torch.linalg.qr(normal(4, M, M))[0]
    assert largest(memory.log_evidence(keys @ turn, values @ other).sum(), total) < 1e-10
    twice = memory.filter(keys, values, strength=torch.full((T,), 2.0, dtype=torch.float64))
    again = memory.filter(keys.repeat(2, 1), values.repeat(2, 1))
    assert largest(twice.mean, again.mean) < 1e-10
    assert largest(twice.covariance, again.covariance) < 1e-10


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_guide_makes_the_elbo_the_evidence(kind, relative):
    memory, data, (density, *_), _ = problem(kind, 12, relative=relative)
    assert -Trace_ELBO().loss(memory.model, memory.guide, *data) == pytest.approx(density, abs=1e-8)
    assert float(poutine.trace(memory.collapsed).get_trace(*data).log_prob_sum()) == pytest.approx(density, abs=1e-9)
    memory, data, (density, *_), _ = problem(kind, 13, relative=relative)
    held = poutine.condition(memory.collapsed, {"values": data[1]})  # values that are put in after the site was made
    assert float(poutine.trace(held).get_trace(data[0], None, *data[2:]).log_prob_sum()) == pytest.approx(
        density, abs=1e-9
    )


@pytest.mark.parametrize("kind", KINDS)
def test_draws_of_the_programs_have_the_moments_of_the_joint_density(kind):
    memory, (keys, _, _, strength), _, _ = problem(kind, 15, length=4)
    observed = torch.ones(4, dtype=torch.bool)
    numbers = drift_of(kind, 15, 4)[1]
    betas = 3.0 * strength.numpy()
    means, covariance, reader = joint(
        kind, numbers, keys.numpy(), betas, memory.prior_matrix.numpy(), memory.mean.numpy(), np.ones(4, bool)
    )
    wide = keys.expand(20_000, 4, F)
    expected, spread = means @ reader.T, reader @ covariance @ reader.T + np.diag(1 / betas)
    for program in (memory.model, memory.collapsed):
        torch.manual_seed(1)
        drawn = poutine.trace(program).get_trace(wide, None, observed, strength).nodes["values"]["value"].numpy()
        z = (drawn.mean(0).T - expected) / np.sqrt(np.diag(spread) / 20_000)
        assert np.abs(z).max() < 4.5
        found = np.cov(drawn[:, :, 0].T)
        error = np.sqrt((spread**2 + np.outer(np.diag(spread), np.diag(spread))) / 20_000)
        assert np.abs((found - spread) / error).max() < 4.5


@pytest.mark.parametrize("kind", ["static", "discount", "pull back", "walk"])
def test_evidence_is_differentiable_in_all_that_it_depends_on(kind):
    keys, values = normal(1, 6, F), normal(2, 6, M)

    def evidence(precision, noise, own, mean, keys, values):
        drift = {"static": lambda x: Static(), "discount": Discount, "pull back": PullBack, "walk": Walk}[kind](own)
        return RegressionMemory(precision, noise, drift, mean).log_density(keys, values)

    start = [uniform(3, F, low=0.5), uniform(4, low=0.5), uniform(5, low=0.5, high=0.9), normal(6, M, F), keys, values]
    assert torch.autograd.gradcheck(evidence, [x.clone().requires_grad_() for x in start])


def test_what_is_absent_is_never_read_nor_its_gradient():
    keys, values = normal(1, T, F), normal(2, T, M)
    observed = torch.ones(T, dtype=torch.bool)
    observed[3] = False
    holes = keys.clone(), values.clone()
    for x in holes:
        x[3] = math.nan
    for drift in (Static(), Discount(0.9), PullBack(0.9), Walk(0.9), Reset()):
        memory = RegressionMemory(torch.ones(1, dtype=torch.float64, requires_grad=True), 2.0, drift)
        one, other = (memory.log_evidence(*x, observed).sum() for x in ((keys, values), holes))
        assert largest(one.detach(), other.detach()) < 1e-12
        (slope,) = torch.autograd.grad(other, memory.prior_precision)
        assert bool(torch.isfinite(slope).all())
    with pytest.raises(ValueError, match="values contains NaN"):
        memory.log_evidence(keys, holes[1])


WALKS = [
    pytest.param(Walk(*how), marks=pytest.mark.slow) for how in ((0.9,), (0.9, 0.1), (torch.tensor([0.9, 0.8, 0.7]),))
]


@pytest.mark.parametrize("drift", [Static(), *WALKS])
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("size", [1, F])
def test_em_never_lowers_the_log_joint(drift, relative, size):
    keys, values = normal(1, 5, T, F), normal(2, 5, T, M)
    memory = RegressionMemory(
        torch.ones(5, size, dtype=torch.float64), torch.ones(5, dtype=torch.float64), drift, relative=relative
    )
    posterior = models.bayesian(memory, prior_precision=Gamma(2.0, 1.0), noise_precision=Gamma(2.0, 1.0))
    fit = inference.adapt(posterior, keys, values, num_steps=30)
    assert fit.method == "ECM"
    assert float(fit.objective.diff(dim=0).min()) >= -1e-9
    rest = inference.adapt(models.bayesian(fit.formulation, **posterior.priors), keys, values, num_steps=3000, tol=1e-9)
    assert bool(rest.converged.all())
    found = {name: getattr(rest.formulation, name).clone().requires_grad_() for name in posterior.priors}
    slopes = torch.autograd.grad(posterior.problem(keys, values).objective(found).sum(), [*found.values()])
    # a step that moves a precision by 1e-9 of it has a slope of that times its complete data, at most M F (T + 1) / 2 + 1
    assert all(float((g * x).detach().abs().max()) < 1e-7 for g, x in zip(slopes, found.values(), strict=True))


def test_em_finds_the_fixed_point_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    keys = normal(1, 60, 4)
    values = keys @ torch.tensor([[1.0], [-2.0], [0.5], [0.3]], dtype=torch.float64) + 0.3 * normal(2, 60, 1)
    flat = {"prior_precision": Gamma(1.0, 1e-13), "noise_precision": Gamma(1.0, 1e-13)}
    none = dict(fit_intercept=False, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, tol=1e-12, max_iter=3000)
    theirs = linear_model.BayesianRidge(compute_score=True, **none).fit(keys.numpy(), values[:, 0].numpy())
    ours = inference.adapt(
        models.bayesian(RegressionMemory(1.0, 1.0), **flat), keys, values, num_steps=2000, tol=1e-13
    ).formulation
    assert float(ours.prior_precision) == pytest.approx(theirs.lambda_, rel=1e-8)
    assert float(ours.noise_precision) == pytest.approx(theirs.alpha_, rel=1e-8)
    assert float(ours.log_evidence(keys, values).sum()) == pytest.approx(theirs.scores_[-1], rel=1e-8)
    each = linear_model.ARDRegression(threshold_lambda=1e12, **none).fit(keys.numpy(), values[:, 0].numpy())
    wide = RegressionMemory(torch.ones(4, dtype=torch.float64), 1.0)
    ours = inference.adapt(models.bayesian(wide, **flat), keys, values, num_steps=3000, tol=1e-13).formulation
    assert ours.prior_precision.numpy() == pytest.approx(each.lambda_, rel=1e-6)


def test_noise_that_is_summed_out_is_the_integral_over_it():
    keys, values = normal(1, T, F), normal(2, T, M)
    for drift in (Static(), Discount(0.9), PullBack(0.8), Walk(0.9), Reset()):
        memory = RegressionMemory(
            2.0, Gamma(torch.tensor(3.0).double(), torch.tensor(2.0).double()), drift, relative=True
        )
        grid = torch.linspace(math.log(1e-3), math.log(60.0), 4001, dtype=torch.float64)
        known = RegressionMemory(2.0, grid.exp(), drift, relative=True).log_evidence(keys, values).sum(-1)
        logs = known + Gamma(torch.tensor(3.0).double(), torch.tensor(2.0).double()).log_prob(grid.exp()) + grid
        total = torch.logsumexp(logs, 0) + (grid[1] - grid[0]).log()
        assert float(memory.log_evidence(keys, values).sum()) == pytest.approx(float(total), abs=1e-9)
        state = memory.filter(keys, values)
        mean = ((logs - torch.logsumexp(logs, 0)).exp() * grid.exp()).sum()
        assert float(state.memory.noise_precision) == pytest.approx(float(mean), rel=1e-8)
        said = memory.predictive(keys, values).log_prob(values)
        assert largest(said, state.log_evidence) < 1e-10


def test_coverage_of_bands_and_what_known_but_wrong_noise_does_to_them():
    size, answers, steps, beta = 16, 4, 256, 25.0
    keys = normal(5, 10, steps, size)
    keys = keys / keys.norm(dim=-1, keepdim=True)
    weights = normal(6, 10, answers, size)
    values = keys @ weights.mT + normal(7, 10, steps, answers) / beta**0.5

    def coverage(memory, width=1.645):
        said = memory.predictive(keys, values)
        if hasattr(said, "df"):  # each number of a Student's t of all
            width = torch.as_tensor(
                np.vectorize(lambda n: __import__("scipy.stats").stats.t.ppf(0.95, n))(said.df.numpy())
            )[..., None]
            scale = said.scale_tril[..., 0, 0].unsqueeze(-1)
        else:
            scale = said.variance.sqrt()
        return ((values - said.mean).abs() < width * scale).double().mean((-2, -1))

    known = coverage(RegressionMemory(1.0, beta))
    assert 0.88 < float(known.mean()) < 0.92
    assert float(known.min()) > 0.85
    assert float(known.max()) < 0.95
    learned = RegressionMemory(
        1.0 / beta, Gamma(torch.tensor(1.0).double(), torch.tensor(1 / beta).double()), relative=True
    )
    assert 0.88 < float(coverage(learned).mean()) < 0.92
    exact = RegressionMemory(1.0, beta).log_evidence(keys, values).sum(-1)
    assert float((exact - learned.log_evidence(keys, values).sum(-1)).mean()) <= 6.0
    assert float(coverage(RegressionMemory(1.0, 4 * beta)).mean()) < 0.70


REFUSED = {
    "both precisions": (lambda: RegressionMemory(1.0, prior_matrix=torch.eye(2)), "exactly one"),
    "neither": (lambda: RegressionMemory(), "exactly one"),
    "prior precision": (lambda: RegressionMemory(-1.0), "prior_precision must be > 0"),
    "noise precision": (lambda: RegressionMemory(1.0, 0.0), "noise_precision must be > 0"),
    "a gate that is a logarithm": (lambda: Discount(-0.1), "exp\\(log gate\\)"),
    "a gate above 1": (lambda: PullBack(1.1), "\\(0, 1\\]"),
    "a walk without a stationary prior": (lambda: Walk(1.0), "give spread"),
    "a drift that is a name": (lambda: RegressionMemory(1.0, drift="discount"), "models.Discount"),
    "a Gamma in absolute units": (lambda: RegressionMemory(1.0, Gamma(1.0, 1.0)), "relative=True"),
    "strength": (
        lambda: RegressionMemory(1.0).filter(torch.ones(2, 1), torch.ones(2, 1), strength=torch.tensor([1.0, -1.0])),
        "strength must be >= 0",
    ),
    "steps": (lambda: RegressionMemory(1.0).filter(torch.ones(2, 1), torch.ones(3, 1)), "steps"),
    "queries": (
        lambda: RegressionMemory(1.0).read(torch.ones(3, 1), torch.ones(2, 1), torch.ones(2, 1)),
        "causal=False",
    ),
    "a prior that the drift lacks": (
        lambda: models.bayesian(RegressionMemory(1.0), forgetting=Beta(20.0, 1.0)),
        "drift=models.Discount",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_name_the_argument_and_the_repair(name):
    call, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        call()


def test_gibbs_refuses_what_has_no_closed_conditional_and_names_nuts():
    memory = RegressionMemory(1.0, 4.0, Discount(0.9))
    with pytest.raises(NotImplementedError, match="inference\\.nuts"):
        inference.gibbs(
            models.bayesian(memory, prior_precision=Gamma(2.0, 1.0)), normal(1, 5, 2), normal(2, 5, 1), seed=0
        )


@pytest.mark.parametrize("drift", [Discount, PullBack])
def test_a_factor_for_each_problem_makes_a_problem_of_each(drift):
    keys, values = normal(1, T, F), normal(2, T, M)
    factors, noise = uniform(3, 2, low=0.7), Gamma(torch.tensor(1.0).double(), torch.tensor(1.0).double())
    both = RegressionMemory(1.0, noise, drift(factors), relative=True)
    found = both.log_evidence(keys, values)
    assert both.plates(keys, values).batch == (2,) and both.smooth(keys, values).mean.shape == (2, T, M, F)
    for i in range(2):
        alone = RegressionMemory(1.0, noise, drift(factors[i]), relative=True)
        assert largest(found[i], alone.log_evidence(keys, values)) < 1e-12
    assert torch.equal(found, both.replace(drift=drift(factors[:, None])).log_evidence(keys, values))
    with pytest.raises(ValueError, match="forgetting"):
        both.log_evidence(keys.expand(3, T, F), values)


def test_reset_to_rising_precision_has_reads_but_no_evidence():
    keys, values = normal(1, 4, 2), normal(2, 4, 1)
    memory = RegressionMemory(1.0, 4.0, Reset(torch.tensor([1.0, 2.0, 3.0, 4.0]).double()))
    assert bool(torch.isfinite(memory.read(keys, keys, values).mean).all())
    with pytest.raises(ValueError, match="no model of a memory"):
        memory.log_evidence(keys, values)


def test_priors_on_the_drift_and_the_mean_are_part_of_the_program():
    memory = RegressionMemory(1.0, 4.0, PullBack(0.9), torch.zeros(1, 2, dtype=torch.float64))
    posterior = models.bayesian(memory, forgetting=Beta(20.0, 1.0), mean=Normal(0.0, 1.0))
    trace = poutine.trace(posterior).get_trace(normal(1, 5, 2), normal(2, 5, 1))
    assert trace.nodes["forgetting"]["value"].shape == ()
    assert trace.nodes["mean"]["value"].shape == (1, 2)
    gates = RegressionMemory(1.0, 4.0, PullBack(uniform(1, 5, low=0.5)))
    trace = poutine.trace(models.bayesian(gates, forgetting=Beta(20.0, 1.0))).get_trace(
        normal(1, 5, 2), normal(2, 5, 1)
    )
    assert trace.nodes["forgetting"]["value"].shape == (5,)


def grid_posterior(memory, keys, values, priors):
    """Means and quantile grids of the two precisions under their priors, by a sum over a fine grid of logarithms."""
    lines = [torch.linspace(math.log(1e-2), math.log(50.0), 241, dtype=torch.float64) for _ in priors]
    prior, noise = torch.meshgrid(*lines, indexing="ij")
    wide = memory.with_parameters({"prior_precision": prior.exp().unsqueeze(-1), "noise_precision": noise.exp()})
    logs = wide.log_density(keys, values).sum(-1)
    for x, own in zip((prior, noise), priors.values(), strict=True):
        logs = logs + own.log_prob(x.exp()) + x
    weights = (logs - logs.max()).exp()
    weights = weights / weights.sum()
    return {name: float((weights * x.exp()).sum()) for name, x in zip(priors, (prior, noise), strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("drift", [Static(), Walk(0.9), Walk(0.9, 0.1)])
@pytest.mark.parametrize("relative", [False, True])
def test_gibbs_draws_have_the_means_of_the_exact_posterior(drift, relative):
    keys, values = normal(1, T, F), normal(2, T, M)
    memory = RegressionMemory(1.0, 4.0, drift, relative=relative)
    two = torch.tensor([3.0, 2.0], dtype=torch.float64)
    priors = {"prior_precision": Gamma(two[0], two[1]), "noise_precision": Gamma(two[0], two[1])}
    draws = inference.gibbs(
        models.bayesian(memory, **priors), keys, values, num_samples=100, num_chains=64, num_warmup=60, seed=0
    )
    exact = grid_posterior(memory, keys, values, priors)
    for name, mean in exact.items():
        chains = draws.samples[name].reshape(64, 100).mean(1)
        assert abs(float(chains.mean()) - mean) < 4 * float(chains.std()) / 8, name


@pytest.mark.slow
def test_gibbs_of_the_noise_alone_draws_from_the_gamma_that_it_is():
    stats = pytest.importorskip("scipy.stats")
    keys, values = normal(1, T, F), normal(2, T, M)
    for drift in (Discount(0.9), PullBack(0.8), Reset()):
        memory = RegressionMemory(2.0, 4.0, drift, relative=True)
        posterior = models.bayesian(
            memory, noise_precision=Gamma(torch.tensor(3.0).double(), torch.tensor(2.0).double())
        )
        draws = inference.gibbs(posterior, keys, values, num_samples=40, num_chains=100, num_warmup=1, seed=1)
        noise = Gamma(torch.tensor(3.0).double(), torch.tensor(2.0).double())
        state = memory.replace(noise_precision=noise).filter(keys, values).memory
        shape, rate = float(state.noise_shape), float(state.noise_rate)
        assert (
            stats.kstest(draws.samples["noise_precision"].flatten().numpy(), "gamma", (shape, 0, 1 / rate)).pvalue
            > 0.01
        )
