"""The best equivalent of a captured head: its attention held, its evidence highest, against Gaussian mixtures written out by hand."""

import itertools
import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from pyro.distributions import Gamma, LogNormal, Normal, Wishart
from tolerances import assert_equal, assert_frequency

from probtx_pyro import inspection
from probtx_pyro import nn as layers

METRICS = ("scalar", "diagonal", "full")
HELD = 1e-8  # promised of attention
# Newton stops where the squared distance from the maximum is 1e-14 and takes one more step, which squares the distance: what is left
# is rounding, here of 4,096 operations on numbers of up to 100
FOUND = 4096 * 2.2e-16 * 100


def head(num_queries=45, units=6, features=3, causal=False, batch=(), seed=0, scale=0.7):
    """Captured queries of an elongated cloud off the origin, and keys that know nothing of it."""
    g = torch.Generator().manual_seed(seed)
    turn = torch.randn(features, features, generator=g)
    queries = torch.randn(*batch, num_queries, features, generator=g) @ turn + 2 * torch.randn(features, generator=g)
    keys = 1.5 * torch.randn(*batch, units, features, generator=g)
    future = torch.ones(num_queries, units, dtype=torch.bool).triu(1)
    mask = torch.zeros(num_queries, units).masked_fill(future, -torch.inf) if causal else None
    return inspection.captured(queries, keys, None, mask, scale)


def by_hand(queries, keys, mask, scale, tilt, precision):
    """Log densities and attention of one head under the mixture of b and P, from scipy's multivariate normal; numpy throughout."""
    covariance = np.linalg.inv(precision)
    pull = scale * keys + tilt
    at = pull @ covariance
    logs = mask + 0.5 * (pull * at).sum(-1)
    weights = np.exp(logs - np.logaddexp.reduce(logs, -1, keepdims=True))
    density = scipy.stats.multivariate_normal(cov=covariance).pdf(queries[:, None] - at)
    joint = weights * density.reshape(len(queries), len(at))
    return np.log(joint.sum(-1)), joint / joint.sum(-1, keepdims=True)


def arrays(one):
    """Queries, keys, mask and scale of a head without leading axes."""
    mask = np.zeros((1, one.keys.shape[-2])) if one.mask is None else one.mask.numpy()
    return one.queries.numpy(), one.keys.numpy(), mask, float(one.scale)


def matrix(precision, features):
    """P as a matrix."""
    precision = np.asarray(precision)
    return precision * np.eye(features) if precision.ndim < 2 else precision


def packed(tilt, precision, metric):
    """b and the free numbers of P, as one vector."""
    precision = np.atleast_1d(np.asarray(precision))
    free = precision[np.tril_indices(len(precision))] if metric == "full" else precision
    return np.concatenate([np.asarray(tilt), free])


def unpacked(theta, features, metric):
    """b and P as a matrix."""
    tilt, free = theta[:features], theta[features:]
    if metric != "full":
        return tilt, np.diag(np.broadcast_to(free, features))
    half = np.zeros((features, features))
    half[np.tril_indices(features)] = free
    return tilt, half + np.tril(half, -1).T


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("metric", METRICS)
def test_the_best_equivalent_is_the_mixture_written_out_by_hand(metric, causal):
    one = head(causal=causal)
    best = inspection.best_equivalent(one, metric)
    evidence, attention = by_hand(*arrays(one), best.tilt.numpy(), matrix(best.precision, 3))
    np.testing.assert_allclose(best.log_evidence(), evidence, atol=FOUND)
    np.testing.assert_allclose(best.attention(), attention, atol=HELD)
    np.testing.assert_allclose(best.mixture.attention(best.queries), one.attention(), atol=HELD)
    assert best.log_evidence().sum() > one.raw.log_evidence().sum() + 1


@pytest.mark.parametrize("seed", range(6))
def test_attention_is_held_and_evidence_never_falls_nor_does_it_with_more_numbers(seed):
    scale = 10.0 ** ((seed % 3) - 1)
    one = head(60, 8, 4, causal=seed % 2 == 1, batch=(2, 3), seed=seed, scale=scale)
    before, tallies = one.raw.mixture.attention(one.queries), [one.raw.log_evidence().sum((0, 2))]
    for metric in METRICS:
        best = inspection.best_equivalent(one, metric)
        assert (best.mixture.attention(one.queries) - before).abs().max() < HELD
        tallies.append(best.log_evidence().sum((0, 2)))
    for less, more in itertools.pairwise(tallies):
        # each is a special case of the next; a maximum is known to rounding of the sum of 120 log densities
        assert (more - less > -FOUND * more.abs()).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("metric", METRICS)
def test_moments_of_the_mixture_are_those_of_the_queries(metric, causal):
    """What makes it a maximum: mean, and mean squares as far as the metric has numbers for them."""
    one = head(causal=causal)
    best = inspection.best_equivalent(one, metric)
    queries, keys, mask, scale = arrays(one)
    covariance = np.linalg.inv(matrix(best.precision, 3))
    pull = scale * keys + best.tilt.numpy()
    at = pull @ covariance
    logs = mask + 0.5 * (pull * at).sum(-1)
    weights = np.exp(logs - np.logaddexp.reduce(logs, -1, keepdims=True))
    weights = np.broadcast_to(weights, (len(queries), len(keys))).mean(0)
    second = covariance + (weights[:, None] * at).T @ at
    seen = queries.T @ queries / len(queries)
    np.testing.assert_allclose(weights @ at, queries.mean(0), atol=FOUND)
    if metric == "full":
        np.testing.assert_allclose(second, seen, atol=FOUND)
    elif metric == "diagonal":
        np.testing.assert_allclose(np.diag(second), np.diag(seen), atol=FOUND)
    else:
        np.testing.assert_allclose(np.trace(second), np.trace(seen), atol=FOUND)


@pytest.mark.slow
@pytest.mark.parametrize("metric", [*METRICS[:-1], pytest.param(METRICS[-1], marks=pytest.mark.slow)])
def test_a_general_optimizer_finds_the_same_maximum_from_anywhere(metric):
    one, features = head(causal=True), 3
    best = inspection.best_equivalent(one, metric)

    def surprise(theta):
        tilt, precision = unpacked(theta, features, metric)
        if np.linalg.eigvalsh(precision)[0] < 1e-3:
            return 1e6
        return -by_hand(*arrays(one), tilt, precision)[0].sum()

    rng = np.random.default_rng(0)
    for start in (0.5, 2.0):
        theta = packed(rng.normal(size=features), matrix(start, features) if metric == "full" else start * np.ones(features if metric == "diagonal" else 1), metric)  # fmt: skip
        found = scipy.optimize.minimize(surprise, theta, method="Nelder-Mead", options={"maxiter": 20000, "maxfev": 20000, "xatol": 1e-5, "fatol": 1e-9, "adaptive": True})  # fmt: skip
        assert -found.fun <= float(best.log_evidence().sum()) + FOUND  # nothing is above it
        # Nelder-Mead stops within its xatol of the maximum, up to the shape of its simplex: some digits of the parameters
        np.testing.assert_allclose(found.x, packed(best.tilt, best.precision, metric), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("metric", METRICS)
def test_the_evidence_is_concave_in_tilt_and_precision(metric):
    one, rng = head(causal=True), np.random.default_rng(1)
    for _ in range(10):
        ends = []
        for _ in range(2):
            root = rng.normal(size=(3, 3))
            precision = root @ root.T + 0.1 * np.eye(3)
            precision = {"full": precision, "diagonal": np.diag(np.diag(precision)), "scalar": precision[0, 0] * np.eye(3)}[metric]  # fmt: skip
            ends.append((rng.normal(size=3), precision))
        along = [
            by_hand(*arrays(one), *(t * x + (1 - t) * y for x, y in zip(*ends, strict=True)))[0].sum()
            for t in np.linspace(0, 1, 9)
        ]
        assert (np.diff(along, 2) < FOUND * np.abs(along).max()).all()


SCALE_MATRIX = torch.tensor([[1.0, 0.3, 0.0], [0.3, 2.0, 0.1], [0.0, 0.1, 0.5]], dtype=torch.float64)
PRIORS = {
    "none": lambda metric: {},
    "tilt": lambda metric: {"tilt": Normal(0.5, 0.3)},
    "both": lambda metric: {
        "tilt": Normal(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 1.0, 2.0])),
        "precision": Wishart(torch.tensor(6.0), SCALE_MATRIX) if metric == "full" else Gamma(3.0, 2.0),
    },
}


@pytest.mark.parametrize("kind", PRIORS)
@pytest.mark.parametrize("metric", METRICS)
def test_slopes_vanish_and_errors_are_those_of_the_curvature(metric, kind):
    """By torch's derivatives of the log posterior, from its own multivariate normal and the priors' densities."""
    one, features, priors = head(causal=True), 3, PRIORS[kind](metric)
    best = inspection.best_equivalent(one, metric, **priors)
    errors = torch.tensor(packed(best.tilt_error, best.precision_error, metric))

    def value(theta):
        tilt, free = theta[:features], theta[features:]
        if metric != "full":
            precision = torch.diag(free.expand(features))
        else:
            half = torch.zeros(features, features).index_put(tuple(torch.tril_indices(features, features)), free)
            precision = half + half.tril(-1).mT
        pull = one.scale * one.keys + tilt
        at = pull @ torch.linalg.inv(precision)
        weights = (one.mask + 0.5 * (pull * at).sum(-1)).log_softmax(-1)
        density = torch.distributions.MultivariateNormal(at, precision_matrix=precision).log_prob(
            one.queries.unsqueeze(-2)
        )
        total = (weights + density).logsumexp(-1).sum()
        for name, prior in priors.items():
            drawn = tilt if name == "tilt" else precision if metric == "full" else free
            total = total + prior.log_prob(drawn).sum()
        return total

    top = torch.tensor(packed(best.tilt, best.precision, metric))
    slopes = torch.autograd.functional.jacobian(value, top)
    assert (slopes * errors).abs().max() < FOUND  # slopes in units of the errors: how many errors from the maximum
    curvature = torch.autograd.functional.hessian(value, top)
    np.testing.assert_allclose(torch.linalg.inv(-curvature).diagonal().sqrt(), errors, rtol=FOUND)


@pytest.mark.filterwarnings("ignore:best_equivalent. a head has")  # few queries are the point
def test_a_prior_on_the_precision_stands_in_for_queries_that_are_too_few():
    few = head(2)
    best = inspection.best_equivalent(few, "full", precision=Wishart(torch.tensor(5.0), torch.eye(3)))
    assert bool(torch.linalg.eigvalsh(best.precision).min() > 0) and bool(best.tilt.isfinite().all())
    strong = inspection.best_equivalent(head(), tilt=Normal(1.0, 1e-6), precision=Gamma(1e12, 1e12 / 3.0))
    # 45 queries move a parameter whose prior has the sd 1e-6 by about 45 (1e-6)², far less than that sd
    np.testing.assert_allclose(strong.tilt, 1.0, atol=1e-6)
    np.testing.assert_allclose(strong.precision, 3.0, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:best_equivalent. a head has")  # few queries are the point
def test_the_fewest_queries_that_have_a_maximum():
    """D + 1 points in general position; two for a scalar metric. One less is refused, and so are more in a subspace."""
    assert inspection.best_equivalent(head(4), "full").precision.shape == (3, 3)
    assert inspection.best_equivalent(head(2), "scalar").precision.shape == ()
    assert inspection.best_equivalent(head(2), "diagonal").precision.shape == (3,)
    many = head(40)
    flat = many.queries.clone()
    flat[..., 2] = flat[..., 0] - 2 * flat[..., 1] + 1
    still = inspection.captured(flat, many.keys)
    inspection.best_equivalent(still, "diagonal")
    for call in (
        lambda: inspection.best_equivalent(head(3), "full"),
        lambda: inspection.best_equivalent(still, "full"),
        lambda: inspection.best_equivalent(head(1)),
        lambda: head(1).log_evidence(),
        lambda: inspection.query_check(head(1), num_draws=2, seed=0),
    ):
        with pytest.raises(ValueError, match=r"lie in a subspace.*captured\.raw") as caught:
            call()
        assert "\n" not in str(caught.value)
    head(1).raw.log_evidence()


def test_the_batch_shares_and_heads_do_not():
    both = head(30, batch=(2, 3), causal=True)
    best = inspection.best_equivalent(both, "diagonal")
    assert best.tilt.shape == best.precision.shape == (3, 3) and best.num_steps.shape == (3,)
    for h in range(3):
        alone = inspection.captured(both.queries[:, h], both.keys[:, h], None, both.mask, 0.7, dims=("batch",))
        one = inspection.best_equivalent(alone, "diagonal")
        np.testing.assert_allclose(one.tilt, best.tilt[h], atol=FOUND)
        np.testing.assert_allclose(one.precision, best.precision[h], rtol=FOUND)
        assert_equal(one.log_evidence(), best.log_evidence()[:, h], torch.tensor(1e4))
    apart = inspection.captured(both.queries, both.keys, None, both.mask, 0.7, dims=("text", "head"))
    assert inspection.best_equivalent(apart).tilt.shape == (2, 3, 3)


def test_queries_that_do_not_count_say_nothing():
    one = head(30)
    padded = torch.arange(30) >= 20
    queries = torch.where(padded.unsqueeze(-1), 1e3, one.queries)
    found = inspection.best_equivalent(inspection.captured(queries, one.keys, None, None, 0.7, padded=padded))
    kept = inspection.best_equivalent(inspection.captured(one.queries[:20], one.keys, None, None, 0.7))
    np.testing.assert_allclose(found.tilt, kept.tilt, atol=FOUND)
    np.testing.assert_allclose(found.precision, kept.precision, rtol=FOUND)


def test_it_does_not_depend_on_how_the_same_attention_is_written():
    """Keys moved and rescaled, the origin and unit of queries changed: the best equivalent is one."""
    one = head(50, causal=True)
    moved = inspection.captured(one.queries, 2 * one.keys + 3.0, None, one.mask, 0.35)
    for metric in METRICS:
        first, second = (inspection.best_equivalent(x, metric) for x in (one, moved))
        np.testing.assert_allclose(first.mixture.keys, second.mixture.keys, atol=FOUND)
        np.testing.assert_allclose(first.log_evidence(), second.log_evidence(), atol=FOUND)
    turn = torch.linalg.qr(torch.randn(3, 3))[0] * 4.0
    keys = one.keys @ torch.linalg.inv(turn).mT
    mask = one.mask - 0.7 * 5.0 * keys.sum(-1)  # what the new origin adds to the logits
    turned = inspection.captured(one.queries @ turn + 5.0, keys, None, mask, 0.7)
    assert_equal(turned.attention(), one.attention(), torch.tensor(100.0))
    for metric in ("scalar", "full"):
        first, second = (inspection.best_equivalent(x, metric) for x in (one, turned))
        np.testing.assert_allclose(first.log_evidence(), second.log_evidence() + 3 * math.log(4.0), atol=FOUND)


class OwnPrecisions(layers.GaussianMixtureAttention):
    """A layer whose units have weights and precisions that their inputs decide."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.unit_precision, self.unit_weights = (torch.nn.Linear(8, 2, bias=False) for _ in range(2))

    def units_of(self, keys, source):
        weights, precision = (linear(source).mT for linear in (self.unit_weights, self.unit_precision))
        return super().units_of(keys, source)._replace(log_weights=weights, log_precision=precision)


def test_units_with_precisions_of_their_own():
    """Attention by Gaussian distance, the precision of each unit its own: equivalents add one number to all of them."""
    torch.manual_seed(0)
    layer = OwnPrecisions(8, 2, batch_first=True, linked=False)
    for linear in (layer.unit_precision, layer.unit_weights):
        torch.nn.init.normal_(linear.weight, std=0.3)
    x = torch.randn(3, 12, 8)
    found = inspection.capture(layer.double(), x, x, x, is_causal=True)["OwnPrecisions"]
    best = inspection.best_equivalent(found)
    assert (best.mixture.attention(best.queries) - found.attention()).abs().max() < HELD
    assert (best.log_evidence().sum((0, 2)) > found.raw.log_evidence().sum((0, 2)) + 1).all()
    added = best.mixture.key_precision - found.as_written.key_precision
    assert_equal(added, added[..., :1].expand_as(added), best.mixture.key_precision)
    step = 1e-4
    for change in (step, -step):  # no better number, no better tilt
        worse = found.equivalent(best.tilt, best.precision * (1 + change)).log_evidence().sum((0, 2))
        assert (worse < best.log_evidence().sum((0, 2))).all()
        worse = found.equivalent(best.tilt + change, best.precision).log_evidence().sum((0, 2))
        assert (worse < best.log_evidence().sum((0, 2))).all()
    with pytest.raises(ValueError, match="units whose precisions differ"):
        inspection.best_equivalent(found, "full")


@pytest.mark.filterwarnings("ignore:best_equivalent. a head has")  # few queries are the point
@pytest.mark.slow
def test_a_thousand_problems_of_any_scale():
    """Lengths of queries and keys from 0.01 to 100, the fewest queries that have a maximum among them, masks, origins far away."""
    for seed in range(1000):
        g, metric = torch.Generator().manual_seed(seed), METRICS[seed % 3]

        def between(low, high, g=g):
            return int(torch.randint(low, high + 1, (1,), generator=g))

        features, units = between(1, 6), between(1, 20)
        least = features + 1 if metric == "full" else 2
        number = least + (0 if between(0, 3) == 0 else between(0, 100))
        wide, long = (10 ** (4 * torch.rand(2, generator=g) - 2)).tolist()
        turn, away = torch.randn(features, features, generator=g), torch.randn(features, generator=g)
        queries = wide * (torch.randn(number, features, generator=g) @ turn + between(0, 5) * away)
        future = torch.ones(number, units, dtype=torch.bool).triu(1)
        mask = torch.zeros(number, units).masked_fill(future, -torch.inf) if between(0, 1) else None
        one = inspection.captured(queries, long * torch.randn(units, features, generator=g), None, mask)
        best = inspection.best_equivalent(one, metric)
        assert (best.mixture.attention(queries) - one.attention()).abs().max() < HELD, seed
        after, before = best.log_evidence().sum(), one.raw.log_evidence().sum()
        assert after - before > -FOUND * before.abs(), seed


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_the_truth_is_found_and_its_intervals_cover_it(metric):
    """Queries from a mixture whose b and P are known, the keys captured at another origin and scale: 400 simulations, seeds 0 to 399."""
    rng = np.random.default_rng(20)
    keys, tilt, scale, number, simulations = rng.normal(size=(8, 3)), np.array([0.8, -0.5, 0.3]), 0.6, 500, 400
    precision = {"scalar": 1.7 * np.eye(3), "diagonal": np.diag([0.8, 1.5, 2.5]), "full": np.array([[1.5, 0.5, 0.2], [0.5, 1.2, -0.3], [0.2, -0.3, 2.0]])}[metric]  # fmt: skip
    covariance = np.linalg.inv(precision)
    at = (scale * keys + tilt) @ covariance
    weights = np.exp(0.5 * ((scale * keys + tilt) * at).sum(-1))
    free = {"scalar": 1.7, "diagonal": np.diag(precision), "full": precision}[metric]
    truth, inside, mean = packed(tilt, free, metric), 0, 0.0
    for seed in range(simulations):
        rng = np.random.default_rng(seed)
        unit = rng.choice(len(keys), number, p=weights / weights.sum())
        queries = at[unit] + rng.multivariate_normal(np.zeros(3), covariance, number)
        best = inspection.best_equivalent(
            inspection.captured(torch.tensor(queries), torch.tensor(keys), None, None, scale), metric
        )
        found, error = (
            packed(x, y, metric) for x, y in ((best.tilt, best.precision), (best.tilt_error, best.precision_error))
        )
        inside = inside + (np.abs(found - truth) < scipy.stats.norm.ppf(0.975) * error)
        mean = mean + (found - truth) / error / simulations
    print(metric, "coverage", (inside / simulations).round(3).tolist(), "mean z", np.round(mean, 2).tolist())
    for count in inside:
        assert_frequency(count, simulations, 0.95, sigmas=4)
    assert (np.abs(mean) < 0.3).all()


@pytest.mark.parametrize(("metric", "numbers"), [("scalar", 4), ("diagonal", 6), ("full", 9)])
def test_few_queries_a_number_are_warned_of_once(metric, numbers):
    """Five a number, three for b and 1, 3 or 6 for P, less what a prior holds."""
    inspection.best_equivalent(head(5 * numbers), metric)  # warnings are errors here
    few = head(5 * numbers - 1)
    prior = Wishart(torch.tensor(5.0), torch.eye(3)) if metric == "full" else Gamma(2.0, 1.0)
    inspection.best_equivalent(few, metric, tilt=Normal(0.0, 1.0))
    inspection.best_equivalent(few, metric, precision=prior)
    with pytest.warns(
        UserWarning, match=rf"{5 * numbers - 1} queries that count for {numbers} numbers .*more text"
    ) as caught:
        inspection.best_equivalent(few, metric)
    assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.warns(UserWarning, match="for 3 numbers"):
        inspection.best_equivalent(head(14), precision=Gamma(2.0, 1.0))


def test_every_check_of_few_queries_warns_once():
    few = head(5, batch=(3, 2))
    for call in (
        lambda: few.log_evidence(),
        lambda: inspection.query_check(head(5, batch=(3, 2)), num_draws=2, seed=0),
        lambda: inspection.cross_validate(head(5, batch=(3, 2)), folds=2, num_steps=1, seed=0),
    ):
        with pytest.warns(UserWarning, match="15 queries that count for 4 numbers") as caught:
            call()
        assert len(caught) == 1
    few.log_evidence()  # once each
    inspection.query_check(few.raw, num_draws=2, seed=0)
    inspection.query_check(
        inspection.best_equivalent(few, tilt=Normal(0.0, 1.0), precision=Gamma(2.0, 1.0)), num_draws=2, seed=0
    )


@pytest.mark.parametrize("metric", METRICS)
def test_fitted_on_one_text_and_told_of_another(metric):
    """Density by hand of the other text's queries, at b and P of the first; axes of the batch are its own."""
    one, other = head(50, batch=(2, 3), causal=True, seed=1), head(30, units=4, batch=(1, 3), seed=2)
    fit, told = inspection.best_equivalent(one, metric), inspection.best_equivalent(one, metric, on=other)
    assert torch.equal(fit.tilt, told.tilt) and torch.equal(fit.precision, told.precision)
    assert told.fitted_on is one and fit.fitted_on is None
    np.testing.assert_allclose(told.attention(), other.attention())
    for h in range(3):
        each = np.zeros((1, 4)), 0.7, fit.tilt[h].numpy(), matrix(fit.precision[h], 3)
        evidence, _ = by_hand(other.queries[0, h].numpy(), other.keys[0, h].numpy(), *each)
        np.testing.assert_allclose(told.log_evidence()[0, h], evidence, atol=FOUND)
    layers = inspection.best_equivalent({"a": one, "b": one}, on={"a": other, "b": other})
    assert layers.log_evidence().shape == (2, 1, 3, 30)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda one: inspection.best_equivalent(head(batch=(2, 3)), on=head(batch=(2, 4))), r"on has axes \{'head': 4, 'feature': 3\} but captured \{'head': 3, 'feature': 3\}; give"),
        (lambda one: inspection.best_equivalent(one, on=head(features=2)), r"on has axes \{'feature': 2\} but captured \{'feature': 3\}"),
        (lambda one: inspection.best_equivalent(one, "round"), "metric must be one of full, diagonal, scalar, not 'round'"),
        (lambda one: inspection.best_equivalent(one, precision=LogNormal(0.0, 1.0)), "under a Gamma prior, not under LogNormal"),
        (lambda one: inspection.best_equivalent(one, "full", precision=Gamma(2.0, 1.0)), "under a Wishart prior"),
        (lambda one: inspection.best_equivalent(one, tilt=Gamma(2.0, 1.0)), "tilt: the one maximum is known under a Normal prior"),
        (lambda one: inspection.best_equivalent(one, precision=Gamma(0.5, 1.0)), "less than a concentration of 1"),
        (lambda one: inspection.best_equivalent(one, "full", precision=Wishart(torch.tensor(3.5), torch.eye(3))), "less than D [+] 1 = 4 degrees"),
        (lambda one: inspection.best_equivalent(one, tilt=Normal(torch.zeros(4), 1.0)), r"tilt: the prior has shape \(4,\); heads need \(3,\)"),
        (lambda one: inspection.best_equivalent(inspection.captured(one.queries, one.keys, padded=torch.ones(45).bool())), "has no query that counts"),
        (lambda one: one.equivalent(torch.zeros(2, 3), torch.ones(())), r"tilt must have shape \(\*heads, D\), precision"),
        (lambda one: one.equivalent(torch.zeros(3), -torch.eye(3)), "precision must be symmetric positive definite|precision"),
        (lambda one: one.equivalent(torch.zeros(3), torch.tensor(-1.0)), "key_precision must be > 0"),
        (lambda one: inspection.stack_layers({"a": one, "b": one.raw}), "layers differ in shape, kind or choice of mixture"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(head())
    assert "\n" not in str(caught.value)
