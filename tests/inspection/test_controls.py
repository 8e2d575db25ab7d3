"""Controls of a captured head against densities written out by scipy; what a reader sees of them; folds of texts."""

import numpy as np
import pytest
import scipy.stats
import torch
from pyro import poutine
from pyro.distributions import Normal
from tolerances import assert_equal

from probtx_pyro import inference, inspection, models
from probtx_pyro.inspection import _query_check

ISOTROPIC, FULL, OTHER = "one Gaussian, isotropic", "one Gaussian, full", "keys of another text"
# a fit that Newton has finished, and sums over some 100 queries: 4,096 roundings of numbers up to 100
FOUND = 4096 * 2.2e-16 * 100


def texts(number=3, heads=2, queries=20, units=20, features=3, seed=0, padded=None, causal=True):
    """Queries of an elongated cloud off the origin, read by heads with keys that know nothing of it."""
    g = torch.Generator().manual_seed(seed)
    turn = torch.randn(features, features, generator=g)
    asked = torch.randn(number, heads, queries, features, generator=g) @ turn + 2
    keys = 1.5 * torch.randn(number, heads, units, features, generator=g)
    mask = torch.zeros(queries, units)
    if causal:
        mask = mask.masked_fill(torch.ones(queries, units, dtype=torch.bool).triu(1), -torch.inf)
    return inspection.captured(asked, keys, None, mask, 0.7, padded=padded)


def gaussians(points):
    """Mean, isotropic and shrunk covariance of points (n, D), by loops."""
    n, features = points.shape
    mean, scatter = [sum(column) / n for column in points.T.tolist()], np.zeros((features, features))
    for point in points:
        scatter += np.outer(point - mean, point - mean)
    square = sum(scatter[i, i] for i in range(features)) / (n * features)
    return mean, square * np.eye(features), (scatter + features * square * np.eye(features)) / (n + features)


def log_density(points, mean, covariance):
    return scipy.stats.multivariate_normal(mean, covariance).logpdf(points)


def by_hand(queries, keys, mask, scale, tilt, precision):
    """Log density of each query under the mixture of b and P."""
    at = (scale * keys + tilt) / precision
    weights = mask + 0.5 * precision * (at**2).sum(-1)
    parts = np.stack([log_density(queries, mean, np.eye(len(tilt)) / precision) for mean in at], -1)
    return np.logaddexp.reduce(parts + weights - np.logaddexp.reduce(weights, -1, keepdims=True), -1)


def test_one_gaussian_is_that_of_the_queries_that_count():
    padded = torch.arange(20) >= torch.tensor([20, 12, 15]).reshape(3, 1, 1)
    one = texts(padded=padded)
    found = inspection.controls(one)
    assert list(found) == [ISOTROPIC, FULL, OTHER]
    for h in range(2):
        points = np.concatenate([one.queries[t, h, : (20, 12, 15)[t]].numpy() for t in range(3)])
        mean, isotropic, full = gaussians(points)
        for name, covariance in ((ISOTROPIC, isotropic), (FULL, full)):
            expected = log_density(one.queries[:, h].numpy(), mean, covariance)
            np.testing.assert_allclose(found[name].log_evidence(one.queries)[:, h], expected, rtol=1e-10)


def test_the_full_one_is_the_most_probable_under_its_prior():
    """Worth D queries of the isotropic spread: no other precision has a higher penalised log likelihood."""
    points = texts(1, 1, 8).queries.flatten(0, 2)
    n, features = points.shape
    best = inspection.controls(inspection.captured(points, points))[FULL].metric
    scatter = (points - points.mean(0)).mT @ (points - points.mean(0)) / n
    square = scatter.trace() / features

    def objective(precision):
        prior = features / 2 * (precision.logdet() - square * precision.trace())
        return n / 2 * (precision.logdet() - (scatter @ precision).trace()) + prior

    slope = torch.autograd.functional.jacobian(objective, best)
    assert_equal(slope @ best, torch.zeros_like(slope), n * best @ scatter, operations=4096)
    assert_equal(torch.linalg.inv(best).trace() / features, square)  # the mean square of the isotropic one
    two = inspection.controls(inspection.captured(points[:2], points))
    assert all(x.log_evidence(points).isfinite().all() for x in two.values())


def test_keys_of_the_next_text_at_their_own_best_equivalent():
    one = texts()
    turned = inspection.captured(one.queries, one.keys[[1, 2, 0]], None, one.mask, 0.7)
    fit = inspection.best_equivalent(turned)
    found = inspection.controls(one)[OTHER].log_evidence(one.queries)
    given = inspection.controls(one, inspection.captured(one.queries, one.keys[[1, 2, 0]], None, one.mask, 0.7))[OTHER]
    assert_equal(given.log_evidence(one.queries), found, torch.tensor(1e4))
    for t in range(3):
        for h in range(2):
            each = one.queries[t, h].numpy(), one.keys[(t + 1) % 3, h].numpy(), one.mask[0, 0].numpy()
            expected = by_hand(*each, 0.7, fit.tilt[h].numpy(), float(fit.precision[h]))
            np.testing.assert_allclose(found[t, h], expected, atol=FOUND)


def test_padding_is_that_of_the_text_whose_keys_they_are():
    one = texts(2)
    open_ = [torch.zeros(20).masked_fill(torch.arange(20) >= n, -torch.inf) for n in (20, 9)]
    mask = one.mask + torch.stack(open_)[:, None, None]
    padded = torch.arange(20) >= torch.tensor([20, 9]).reshape(2, 1, 1)
    found = inspection.controls(inspection.captured(one.queries, one.keys, None, mask, 0.7, padded=padded))[OTHER]
    hidden = found.log_weights().expand(2, 2, 20, 20) == -torch.inf
    assert hidden[0, :, :, 9:].all() and not hidden[1, :, 19].any()


@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_keys_of_another_text_have_the_metric_of_the_mixture_beside_them(metric):
    one = texts(queries=30)
    turned = inspection.captured(one.queries, one.keys[[1, 2, 0]], None, one.mask, 0.7)
    found = inspection.controls(inspection.best_equivalent(one, metric))[OTHER].log_evidence(one.queries)
    np.testing.assert_allclose(found, inspection.best_equivalent(turned, metric).log_evidence(), atol=FOUND)


def test_where_there_is_no_other_text_and_where_the_fit_is_of_another():
    alone = texts(1)
    assert list(inspection.controls(alone)) == [ISOTROPIC, FULL]
    assert list(inspection.controls(alone, texts(1, seed=1))) == [ISOTROPIC, FULL, OTHER]
    assert list(inspection.controls({"a": texts(), "b": texts(seed=1)})) == [ISOTROPIC, FULL, OTHER]
    first, second = texts(seed=3), texts(2, queries=15, units=15, seed=4)
    told = inspection.controls(inspection.best_equivalent(first, on=second))
    plain = inspection.controls(first)
    for name in (ISOTROPIC, FULL):
        assert torch.equal(told[name].keys, plain[name].keys)
    fit = inspection.best_equivalent(inspection.captured(first.queries, first.keys[[1, 2, 0]], None, first.mask, 0.7))
    turned = inspection.captured(second.queries, second.keys[[1, 0]], None, second.mask, 0.7)
    expected = turned.equivalent(fit.tilt, fit.precision).log_evidence()
    np.testing.assert_allclose(told[OTHER].log_evidence(second.queries), expected, atol=FOUND)


# -- checks ------------------------------------------------------------------------------------------------------------


def clumps(number, from_keys, seed=0):
    """Queries around far apart keys, or from one elongated Gaussian; two texts and heads."""
    rng = np.random.default_rng(seed)
    keys = 4 * rng.normal(size=(2, 2, 6, 2))
    weights = np.exp(0.25 * (keys**2).sum(-1) - 0.25 * (keys**2).sum(-1).max(-1, keepdims=True))
    queries = np.empty((2, 2, number, 2))
    for t in range(2):
        for h in range(2):
            unit = rng.choice(6, number, p=weights[t, h] / weights[t, h].sum())
            around = keys[t, h, unit] + rng.normal(size=(number, 2)) * 2**0.5
            line = rng.multivariate_normal([1, 2], [[5, 4], [4, 4]], number)
            queries[t, h] = around if from_keys else line
    return inspection.captured(torch.tensor(queries), torch.tensor(keys), None, None, 0.5)


def test_a_reader_sees_who_passes():
    """Queries of the mixture: the Gaussians fail where it passes. Queries of one Gaussian: the reverse."""
    own = inspection.query_check(clumps(100, True), num_draws=99, seed=0)
    assert (own.discrepancy < 4).all()  # five statistics of two heads, of z that is nearly normal: 1 in 1,500
    assert list(own.controls) == [ISOTROPIC, FULL, OTHER]
    assert all((check.discrepancy > 4).all() and not check.controls for check in own.controls.values())
    assert all((own.log_density > check.log_density).all() for check in own.controls.values())
    line = inspection.query_check(clumps(100, False), num_draws=99, seed=0)
    assert (line.controls[FULL].discrepancy < 4).all() and (line.discrepancy > 4).all()
    assert (line.log_density < line.controls[FULL].log_density).all()
    written = str(line).splitlines()
    assert [row.split("  ")[0] for row in written] == ["median |z|", "mixture", ISOTROPIC, FULL, OTHER]
    assert written[1].endswith(f"{line.log_density.mean():.1f}") and len({map(len, written)} - set()) >= 1
    assert "controls=('one Gaussian, isotropic'" in repr(line)


def test_a_control_is_the_same_statistic_of_other_draws():
    one = texts(2, queries=12, units=12)
    check = inspection.query_check(one, num_draws=30, seed=0)
    alone = inspection.query_check(one, num_draws=30, seed=0, controls={})
    assert alone.controls == {}
    np.testing.assert_array_equal(alone.replicated, check.replicated)
    mixtures = inspection.controls(one)
    for name, each in check.controls.items():
        np.testing.assert_array_equal(each.observed, check.observed)
        evidence = mixtures[name].log_evidence(one.queries).mean((0, 2))
        np.testing.assert_allclose(each.log_density, evidence)
        mine = inspection.query_check(one, num_draws=30, seed=0, controls={"mine": mixtures[name]}).controls["mine"]
        np.testing.assert_array_equal(mine.z_scores, each.z_scores)
    np.testing.assert_allclose(check.log_density, one.log_evidence().mean((0, 2)))


@pytest.mark.parametrize("metric", [None, [0.5, 2.0], [[1.0, 0.6], [0.6, 2.0]]])
def test_draws_have_the_moments_of_the_mixture(metric):
    """Mean and covariance of 40,000 draws, within five standard errors; masked units are never drawn."""
    metric = None if metric is None else torch.tensor(metric)
    keys, weights = torch.tensor([[-1.0, 0.0], [3.0, 1.0], [50.0, 50.0]]), torch.tensor([0.3, 0.7, 0.0])
    mixture = models.GaussianMixture(keys, None, 2.0, log_prior=weights.log().unsqueeze(0), metric=metric)
    with poutine.seed(rng_seed=0):
        draws = _query_check.drawing(mixture, torch.Size([4, 10_000]))().flatten(0, 1)
    whole = torch.eye(2) if metric is None else metric.diag() if metric.dim() == 1 else metric
    mean = weights @ keys
    covariance = torch.linalg.inv(2 * whole) + (weights[:, None] * (keys - mean)).mT @ (keys - mean)
    away = draws - mean
    errors = (covariance.diagonal() / 40_000).sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * errors).all()
    products = away.unsqueeze(-1) * away.unsqueeze(-2)
    assert ((products.mean(0) - covariance).abs() < 5 * products.std(0) / 200).all()


def heads_of_every_kind():
    one, layered = texts(queries=30), texts(2, seed=5)
    keys = models.GaussianKeys(torch.randn(2, 1, 5, 2, 3), None, 0.8)
    several = inspection.Captured(layered.queries, keys, torch.zeros(1, 1, 1, 5), layered.present, layered.dims)
    return {
        "raw": one.raw,
        "scalar": inspection.best_equivalent(one),
        "diagonal": inspection.best_equivalent(one, "diagonal"),
        "full": inspection.best_equivalent(one, "full"),
        "several keys to a unit": several,
    }


@pytest.mark.parametrize("kind", ["raw", "scalar", "diagonal", "full", "several keys to a unit"])
def test_statistics_that_share_a_product_are_those_by_themselves(kind):
    """Distances pair by pair, attention and evidence as the formulation has them."""
    one = heads_of_every_kind()[kind]
    queries, keys = one.placed()
    distances = (queries.unsqueeze(-2) - keys.unsqueeze(-3)).square().sum(-1).sqrt()
    nearest = distances.masked_fill(one.mixture.log_weights() == -torch.inf, torch.inf).amin(-1)
    shared = _query_check._Asked.of(one)
    told = {name: statistic(shared) for name, statistic in inspection.QUERY_STATISTICS.items()}
    np.testing.assert_allclose(told["nearest key"], nearest, rtol=1e-9)
    np.testing.assert_allclose(told["log evidence"], one.mixture.log_evidence(one.queries), rtol=1e-9)
    attention = one.attention()
    np.testing.assert_allclose(told["entropy"], torch.special.entr(attention).sum(-1), atol=1e-9)
    for name, statistic in inspection.QUERY_STATISTICS.items():
        np.testing.assert_allclose(statistic(one), told[name], rtol=1e-9, atol=1e-9)


# -- cross validation --------------------------------------------------------------------------------------------------


def test_controls_are_fitted_to_the_training_folds():
    one = texts(3, queries=16, units=16)
    table = inspection.cross_validate(one, seed=0, folds=4, num_steps=1)
    assert table.names[4:] == (ISOTROPIC, FULL, OTHER)
    for block in range(4):
        out = np.arange(16) // 4 == block
        for h in range(2):
            training = one.queries[:, h, ~out].flatten(0, 1).numpy()
            mean, isotropic, full = gaussians(training)
            for row, covariance in ((4, isotropic), (5, full)):
                expected = log_density(one.queries[:, h, out].numpy(), mean, covariance)
                np.testing.assert_allclose(table.pointwise[row][:, h, out], expected, rtol=1e-9)
        rest = inspection.captured(one.queries, one.keys[[1, 2, 0]], None, one.mask, 0.7, padded=torch.tensor(out))
        fit = inspection.best_equivalent(rest)
        for t, h in np.ndindex(3, 2):
            each = one.queries[t, h].numpy(), one.keys[(t + 1) % 3, h].numpy(), one.mask[0, 0].numpy()
            expected = by_hand(*each, 0.7, fit.tilt[h].numpy(), float(fit.precision[h]))
            np.testing.assert_allclose(table.pointwise[6, t, h, out], expected[out], atol=FOUND)
    written = str(table).splitlines()
    assert written[0] == "held out                 nats a query  best in, of 6"
    assert written[1].split()[1] == f"{table.pointwise[0].mean():.2f}" and len(written) == 8
    assert sum(int(line.split()[-1]) for line in written[1:]) == 6


def test_blocks_are_runs_of_the_queries_that_count_and_texts_are_whole():
    present = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 0], [0, 1, 0, 1, 1, 1, 0, 0]]).bool().unsqueeze(1)
    one = texts(2, 1, 8, 8, padded=~present)

    def told(**how):
        """Which queries have been held out together: those of equal density under a mean of the others."""
        table = inspection.cross_validate(one.raw, seed=1, num_steps=1, **how)
        return np.isfinite(table.pointwise[0]), table

    counted, table = told(folds=2)
    np.testing.assert_array_equal(counted, present)
    for held in ([(0, range(4)), (1, (1, 3))], [(0, range(4, 7)), (1, (4, 5))]):
        out = torch.zeros(2, 8, dtype=torch.bool)
        for t, places in held:
            out[t, list(places)] = True
        centre, isotropic, _ = gaussians(one.queries[:, 0][present[:, 0] & ~out].numpy())
        expected = log_density(one.queries[:, 0][out].numpy(), centre, isotropic)
        np.testing.assert_allclose(table.pointwise[4][:, 0][out.numpy()], expected, rtol=1e-9)
    _, table = told(held_out="texts")
    for t in range(2):
        centre, isotropic, _ = gaussians(one.queries[1 - t, 0][present[1 - t, 0]].numpy())
        expected = log_density(one.queries[t, 0][present[t, 0]].numpy(), centre, isotropic)
        np.testing.assert_allclose(table.pointwise[4][t, 0][present[t, 0].numpy()], expected, rtol=1e-9)
    np.testing.assert_allclose(table.difference[1:4] - table.difference[0], 0, atol=FOUND)  # nothing to adapt to


def test_single_queries_held_out_deceive_where_neighbours_are_alike():
    """A walk that forgets within ten steps, about the mixture that it has in the long run. Keys adapted to it predict queries
    between two of its steps better, and another walk worse, as they do the next run of the same one."""
    rng = np.random.default_rng(0)

    def walk(number):
        steps, x = np.empty((10, number, 3)), rng.normal(size=(10, 3))
        for i in range(number):
            x = 0.9 * x + (1 - 0.9**2) ** 0.5 * rng.normal(size=(10, 3))
            steps[:, i] = x
        return torch.tensor(steps)

    mixture = models.GaussianMixture(torch.tensor(rng.normal(size=(10, 12, 3)) / 2), None, 4 / 3)  # nearly N(0, I)
    posterior = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))
    here, there = walk(200), walk(200)
    adapted = inference.adapt(posterior, here, num_steps=20).formulation
    elsewhere = float((adapted.log_evidence(there) - mixture.log_evidence(there)).mean())

    def gain(held_out):
        candidates, how = {"as it is": mixture, "keys": posterior}, {"seed": 0, "folds": 4, "num_steps": 20}
        table = inspection.cross_validate(candidates, here, held_out=held_out, **how)
        return np.diff(table.pointwise.mean((1, 2))).item()

    assert gain("queries") > 0.1 and elsewhere < -0.1  # 0.20 and -0.19 nats
    assert abs(gain("blocks") - elsewhere) < 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inspection.controls(texts(), texts(2)), r"other has \{'batch': 2, 'head': 2\}, 20 queries of 3 features, 20 units but captured \{'batch': 3"),
        (lambda: inspection.controls(inspection.captured(torch.ones(4, 3), torch.randn(5, 3))), "whose queries are all alike"),
        (lambda: inspection.cross_validate(texts(), seed=0, held_out="pages"), "held_out must be one of blocks, texts, queries, not 'pages'"),
        (lambda: inspection.cross_validate(texts(1, queries=30), seed=0, held_out="texts"), "folds must be from 2 to 1, the texts, not 1"),
        (lambda: inspection.cross_validate(texts(1).raw.mixture, texts(1).queries, other=texts(1), seed=0), "other is the text of a control"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
