"""Numbers are right at any scale: mixtures, several keys, k-means and log normalisers against exact fractions of the same floats.

A logit may be wrong by ``(D + 4) eps (C + 8 size)``: C = `EXPANDED` where squares are expanded and 0 where they are not, ``size`` the
sum of the magnitudes of its parts (square, normaliser, log prior), 8 for the few roundings that each of them has seen.
"""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.distributions import Gamma, Normal
from strategies import generator

from probtx_pyro import inference, models
from probtx_pyro.ops._factor import EXPANDED, far_apart, whiten
from probtx_pyro.ops.statistics import expected_statistics

mpmath.mp.dps = 60
LARGEST = {torch.float64: 150, torch.float32: 18}  # exponents of ten of a magnitude whose square is a number
SECONDS = 1.7e9  # since 1970
MONTH = 30 * 86400.0


def fractions(x):
    """Nested lists of the exact numbers that a tensor holds."""
    return [fractions(row) for row in x] if x.dim() else Fraction(float(x))


def real(x):
    return mpmath.mpf(x.numerator) / x.denominator


def quadratic(a, b, metric=None):
    """``(a - b)'Λ(a - b)``, exactly."""
    away = [p - q for p, q in zip(a, b, strict=True)]
    if metric is None:
        return sum(d * d for d in away)
    if not isinstance(metric[0], list):
        return sum(m * d * d for m, d in zip(metric, away, strict=True))
    return sum(d * m * e for row, d in zip(metric, away, strict=True) for m, e in zip(row, away, strict=True))


class Exact:
    """Log joints of queries (Q, D) and units (U, D), with the error that each may have."""

    def __init__(self, queries, keys, precision, log_prior=None, metric=None, expanded=True):
        self.eps, features = torch.finfo(keys.dtype).eps, keys.shape[-1]
        q, k, alpha = fractions(queries), fractions(keys), fractions(precision)
        inner = None if metric is None else fractions(metric)
        root = 0 if metric is None else mpmath.log(mpmath.det(_matrix(metric))) / 2
        self.rows, self.errors = [], []
        for x in q:
            row, error = [], []
            for j, (at, a) in enumerate(zip(k, alpha, strict=True)):
                prior = -mpmath.log(len(k)) if log_prior is None else mpmath.mpf(float(log_prior[j]))
                parts = [
                    -real(a * quadratic(x, at, inner)) / 2,
                    features * mpmath.log(real(a) / (2 * mpmath.pi)) / 2 + root,
                    prior,
                ]
                row.append(sum(parts))
                size = float(sum(abs(part) for part in parts)) + 1
                error.append((features + 4) * self.eps * ((EXPANDED[keys.dtype] if expanded else 0) + 8 * size))
            self.rows.append(row)
            self.errors.append(error)

    def attention(self):
        """Posteriors of the units, and how far each may be off: ``w_j (δ_j + Σ_k w_k δ_k)``, twice for the second order."""
        weights, bounds = [], []
        for row, error in zip(self.rows, self.errors, strict=True):
            top = max(row)
            total = sum(mpmath.exp(x - top) for x in row)
            w = [float(mpmath.exp(x - top) / total) for x in row]
            mean = sum(p * e for p, e in zip(w, error, strict=True))
            weights.append(w)
            bounds.append([2 * min(1.0, p * min(1e9, e + mean)) + 8 * self.eps for p, e in zip(w, error, strict=True)])
        return torch.tensor(weights, dtype=torch.float64), torch.tensor(bounds, dtype=torch.float64)

    def evidence(self):
        found, bounds = [], []
        for row, error in zip(self.rows, self.errors, strict=True):
            top = max(row)
            found.append(float(top + mpmath.log(sum(mpmath.exp(x - top) for x in row))))
            bounds.append(2 * error[row.index(top)] + 8 * self.eps * abs(found[-1]))
        return torch.tensor(found, dtype=torch.float64), torch.tensor(bounds, dtype=torch.float64)

    def log_joint(self):
        return (
            torch.tensor([[float(x) for x in row] for row in self.rows], dtype=torch.float64),
            torch.tensor(self.errors, dtype=torch.float64),
        )


def _matrix(metric):
    rows = metric if metric.dim() == 2 else torch.diag(metric)
    return mpmath.matrix([[real(x) for x in row] for row in fractions(rows)])


def assert_within(found, expected, said):
    expected, bound = expected
    off = (found.double() - expected).abs()
    assert torch.isfinite(found).all(), f"{said}: not finite"
    assert (off <= bound).all(), f"{said}: off by {float((off - bound).max()):.3g} more than {float(bound.max()):.3g}"


@st.composite
def problems(draw, dtype=None):
    """Points in groups, any scale, far from the origin or not: queries (Q, D), keys (U, D), precisions (U,), and the scale."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32])) if dtype is None else dtype
    g = generator(draw(st.integers(0, 2**31)))
    features, units, queries = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    digits = 12 if dtype == torch.float64 else 5
    gap, offset = (10.0 ** draw(st.integers(0, digits)) * draw(st.booleans()) for _ in range(2))
    room = LARGEST[dtype] - digits - 2
    scale = 10.0 ** draw(st.integers(-room, room))

    def points(count):
        group = torch.randint(-1, 2, (count, 1), generator=g)
        noise = draw(st.sampled_from([0.0, 1.0])) * torch.randn(count, features, generator=g)
        return ((offset + gap * group + noise) * scale).to(dtype)

    keys = points(units)
    own = keys[torch.randint(units, (queries,), generator=g)] + scale * torch.randn(queries, features, generator=g).to(
        dtype
    )
    asked = torch.cat([own, points(1)])
    precision = (torch.rand(units, generator=g).to(dtype) + 0.1) / scale / scale
    return asked, keys, precision, scale


@settings(max_examples=30, deadline=None)
@given(problem=problems(), kind=st.sampled_from([None, "diagonal", "full"]), weighted=st.booleans())
def test_one_truth_of_a_mixture(problem, kind, weighted):
    """Log joint, attention, evidence, answers, the program and its collapsed form: all the exact ones, whatever the route."""
    queries, keys, precision, _ = problem
    features, units = keys.shape[-1], keys.shape[-2]
    metric = None
    if kind == "diagonal":
        metric = torch.linspace(0.5, 2.0, features, dtype=keys.dtype)
    elif kind == "full":
        metric = 0.5 * torch.eye(features, dtype=keys.dtype) + 0.25
    weights = torch.arange(1.0, units + 1, dtype=keys.dtype) if weighted else torch.ones(units, dtype=keys.dtype)
    log_prior = (weights / weights.sum()).log().unsqueeze(0)
    values = torch.eye(units, dtype=keys.dtype)
    mixture = models.GaussianMixture(
        keys, values, precision, log_prior=log_prior, metric=metric, diagonal_metric=kind == "diagonal"
    )
    exact = Exact(queries, keys, precision, log_prior[0].double(), metric)
    assert_within(mixture.log_joint(queries), exact.log_joint(), "log joint")
    assert_within(mixture.attention(queries), exact.attention(), "attention")
    assert_within(mixture.expected_outputs(queries), exact.attention(), "answers")
    assert_within(mixture.log_evidence(queries), exact.evidence(), "evidence")
    assert_within(
        poutine.trace(mixture.collapsed).get_trace(queries).nodes["queries"]["fn"].log_prob(queries),
        exact.evidence(),
        "collapsed",
    )
    unit = torch.randint(units, queries.shape[:1], generator=generator(0))
    program = poutine.trace(poutine.condition(mixture.model, {"unit": unit})).get_trace(queries)
    program.compute_log_prob()
    density = sum(program.nodes[site]["log_prob"] for site in ("unit", "queries"))
    rows = torch.arange(len(unit))
    assert_within(density, tuple(x[rows, unit] for x in exact.log_joint()), "program")


@settings(max_examples=20, deadline=None)
@given(problem=problems())
def test_several_keys_of_a_unit(problem):
    queries, keys, precision, _ = problem
    twice = torch.stack([keys, keys.roll(1, 0)], -2)
    each = precision.unsqueeze(-1).expand(-1, 2)
    model = models.GaussianKeys(twice, torch.eye(len(keys), dtype=keys.dtype), each)
    exact = Exact(queries, twice.flatten(0, 1), each.flatten())
    weights, bounds = exact.attention()
    assert_within(model.responsibilities(queries).flatten(-2), (weights, bounds), "responsibilities")
    per_unit = tuple(x.unflatten(-1, (-1, 2)).sum(-1) for x in (weights, bounds))
    assert_within(model.attention(queries), per_unit, "attention")
    assert_within(model.expected_outputs(queries), per_unit, "answers")
    assert_within(model.log_evidence(queries), exact.evidence(), "evidence")


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_one_step_of_ecm_at_any_scale(problem):
    """Keys and precisions after an E-step, from exact sums of the differences with mpmath's attention."""
    queries, keys, precision, scale = problem
    prior = Gamma(torch.full_like(precision, 2.0), torch.full_like(precision, scale * scale))
    posterior = models.bayesian(models.GaussianMixture(keys, None, precision), keys=models.FLAT, key_precision=prior)
    found = inference.adapt(posterior, queries, num_steps=1).formulation
    exact, q, eps = Exact(queries, keys, precision), fractions(queries), torch.finfo(keys.dtype).eps
    weights, bounds = exact.attention()
    for j in range(len(keys)):
        count, slack = float(weights[:, j].sum()), float(bounds[:, j].sum())
        if count < 1e-3:
            continue  # a unit that hardly any query reaches: its mean is a ratio of errors
        w = [Fraction(float(x)) for x in weights[:, j]]
        mean = [sum(a * row[d] for a, row in zip(w, q, strict=True)) / sum(w) for d in range(keys.shape[1])]
        spread = float(max(abs(row[d] - m) for row, a in zip(q, w, strict=True) for d, m in enumerate(mean) if a > 0))
        for d, m in enumerate(mean):
            size = float(abs(m)) + float(abs(Fraction(float(keys[j, d])) - m))
            assert abs(Fraction(float(found.keys[j, d])) - m) <= 64 * eps * size + 8 * spread * slack / count
        at = fractions(found.keys[j])
        rate = sum(a * quadratic(row, at) for a, row in zip(w, q, strict=True)) / 2 + Fraction(float(prior.rate[j]))
        exactly = (1 + sum(w) * keys.shape[1] / 2) / rate
        part = slack / count * (1 + spread**2 * count / float(rate))
        assert abs(float(Fraction(float(found.key_precision[j])) / exactly) - 1) <= 512 * eps + 8 * part


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_distances_labels_and_inertia_of_k_means(problem):
    x, centers, _, scale = problem
    exact = [[quadratic(a, b) for b in fractions(centers)] for a in fractions(x)]
    eps, model = torch.finfo(x.dtype).eps, models.SoftKMeans(centers, torch.inf)
    for found, row in zip(model.distances(x).double(), exact, strict=True):
        assert all(abs(float(a) - float(b)) <= 8 * eps * float(b) for a, b in zip(found, row, strict=True))
    chosen = model.assign(x).argmax(-1)
    fit = model.em(x, 1)
    for label, row in zip(chosen, exact, strict=True):
        assert float(row[label]) <= float(min(row)) * (1 + 16 * eps)
    assert float(fit.objective[0]) == pytest.approx(float(sum(min(row) for row in exact)), rel=64 * eps)
    soft = models.SoftKMeans(centers, 1 / scale / scale)
    ratio = torch.full((len(centers),), 2 * float(soft.gamma), dtype=x.dtype)
    assert_within(soft.assign(x), Exact(x, centers, ratio).attention(), "assignment")


@pytest.mark.parametrize("unit", [1.0, 1e6, 1e9], ids=["seconds", "microseconds", "nanoseconds"])
@pytest.mark.parametrize("months", [1, 12, 120])
def test_times_since_1970(months, unit):
    """Bursts .4 s apart, in groups months apart: attention, answers, labels, evidence, one step of ECM."""
    bursts = [SECONDS + group + burst for group in (0, months * MONTH) for burst in (0.0, 0.4)]
    keys = torch.tensor([[b * unit] for b in bursts])
    noise = 0.12 * unit * torch.randn(12, 1, generator=generator(0))
    times = torch.cat([key + noise for key in keys])
    precision = torch.full((4,), 200 / unit**2)
    mixture = models.GaussianMixture(keys, torch.eye(4), precision)
    exact = Exact(times, keys, precision, expanded=False)
    assert far_apart(times - keys.mean(0), keys - keys.mean(0), precision)
    assert_within(mixture.attention(times), exact.attention(), "attention")
    assert_within(mixture.expected_outputs(times), exact.attention(), "answers")
    assert_within(mixture.log_evidence(times), exact.evidence(), "evidence")
    nearest = torch.tensor([[float(quadratic(a, b)) for b in fractions(keys)] for a in fractions(times)])
    clusters = models.SoftKMeans(keys, torch.inf)
    assert (clusters.assign(times).argmax(-1) == nearest.argmin(-1)).all()
    assert float(clusters.em(times, 1).objective[0]) == pytest.approx(float(nearest.amin(-1).sum()), rel=1e-12)
    priors = {"keys": Normal(keys, 0.5 * unit), "key_precision": Gamma(torch.full((4,), 2.0), 0.02 * unit**2)}
    posterior = models.bayesian(mixture, **priors)
    weights = exact.attention()[0]
    fit = inference.adapt(posterior, times, num_steps=1).formulation
    for j in range(4):  # the same in coordinates of order one, exactly as far from the key
        away = torch.tensor([float((Fraction(float(t)) - Fraction(float(keys[j]))) / Fraction(unit)) for t in times])
        count, strength = weights[:, j].sum(), 200.0
        moved = strength * (weights[:, j] @ away) / (strength * count + 4)
        rate = 0.02 + 0.5 * weights[:, j] @ (away - moved).square()
        ulp = math.ulp(float(keys[j]))
        assert float(fit.keys[j] - keys[j]) == pytest.approx(float(moved) * unit, abs=ulp + 1e-9 * unit)
        assert float(fit.key_precision[j]) * unit**2 == pytest.approx(
            float((1 + 0.5 * count) / rate), rel=1e-5
        )  # a key's ulp


def test_ecm_stops_as_late_in_unix_seconds_as_near_the_origin():
    """``tol`` times the distances from the mean key; times the magnitude of 1.7e9 it would be 1,700 s, and the first step the last."""
    noise = 60 * torch.randn(30, 1, generator=generator(4))

    def steps(start, model):
        keys = start + torch.tensor([[0.0], [100.0], [250.0]])
        mixture = model(keys if model is models.GaussianMixture else keys.unsqueeze(-2), None, 1 / 60**2)
        posterior = models.bayesian(mixture, keys=Normal(mixture.keys, 100.0))
        fit = inference.adapt(posterior, start + 120 + noise, num_steps=500, tol=1e-6)
        assert fit.converged
        return int(fit.num_steps)

    for model in (models.GaussianMixture, models.GaussianKeys):
        assert steps(SECONDS, model) == steps(0.0, model) > 10


def test_gibbs_draws_in_nanoseconds_as_in_seconds_near_the_origin():
    """The same random numbers, and points that differ from those near the origin by less than an ulp of 2.4e-7 s."""

    def drawn(bursts, unit):
        keys = torch.tensor([[b] for b in bursts])
        noise = 0.12 * unit * torch.randn(12, 1, generator=generator(0))
        mixture = models.GaussianMixture(keys, None, torch.full((4,), 200 / unit**2))
        priors = {"keys": Normal(keys, 0.5 * unit), "key_precision": Gamma(torch.full((4,), 2.0), 0.02 * unit**2)}
        points = torch.cat([key + noise for key in keys])
        how = {"num_samples": 60, "num_chains": 2, "num_warmup": 20, "seed": 0, "start": "formulation"}
        draws = inference.gibbs(models.bayesian(mixture, **priors), points, **how).samples
        return (draws["keys"] - keys) / unit, draws["key_precision"] * unit**2

    far = [(SECONDS + away) * 1e9 for away in (0.0, 0.4, 120 * MONTH, 120 * MONTH + 0.4)]
    moved, precision = drawn(far, 1e9)
    near, expected = drawn([0.0, 0.4, 40.0, 40.4], 1.0)
    same = (moved - near).abs().amax(
        (-2, -1)
    ) < 1e-4  # until an assignment falls on the other side of its uniform number
    assert same[:, :20].all()
    torch.testing.assert_close(precision[:, :20], expected[:, :20], rtol=1e-3, atol=0)


def test_answers_far_apart_are_learned_as_near_ones():
    """Values in Unix seconds, keys of order one: value precisions see the spread within a unit, not the distance between units."""
    g = generator(3)
    keys, queries = torch.tensor([[-1.0], [1.0]]), torch.tensor([[-1.0], [1.0]]).repeat_interleave(20, 0)
    noise = 0.1 * torch.randn(40, 1, generator=g)
    years = torch.tensor([[SECONDS], [SECONDS + 120 * MONTH]])
    prior = Gamma(torch.full((2,), 2.0), 0.02)

    def fitted(values, answers, model=models.GaussianMixture, at=keys):
        mixture = model(at, values, key_precision=50.0, value_precision=torch.full((2,), 100.0))
        posterior = models.bayesian(mixture, values=models.FLAT, value_precision=prior)
        return inference.adapt(posterior, queries, answers, num_steps=1).formulation

    far = fitted(years, years.repeat_interleave(20, 0) + noise)
    near = fitted(torch.zeros(2, 1), noise)
    ulp = math.ulp(2 * SECONDS)
    assert (far.values - years - near.values).abs().max() <= 2 * ulp
    torch.testing.assert_close(
        far.value_precision, near.value_precision, rtol=1e-5, atol=0
    )  # answers have an ulp of 2e-7 in .1
    several = fitted(
        years,
        years.repeat_interleave(20, 0) + noise,
        models.GaussianKeys,
        keys.unsqueeze(-2) + torch.tensor([[0.0], [0.01]]),
    )
    torch.testing.assert_close(several.value_precision, near.value_precision, rtol=1e-5, atol=0)


@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_a_metric_is_learned_far_away_as_near(metric):
    """Two groups far apart: the metric, the shift and the keys that one step finds are those of the groups at home."""
    g = generator(5)
    noise = torch.randn(30, 2, generator=g) @ torch.tensor([[1.0, 0.3], [0.0, 0.5]])
    start = torch.eye(2) if metric == "full" else torch.ones(2)
    prior = {"metric": Gamma(2.0, 1.0)} if metric == "diagonal" else {}
    if metric == "full":
        from pyro.distributions import Wishart

        prior = {"metric": Wishart(torch.tensor(4.0), torch.eye(2))}

    def fitted(away):
        keys = torch.tensor([[0.0, 0.0], [away, -away]])
        points = torch.cat([keys[0] + noise, keys[1] + noise])
        mixture = models.GaussianMixture(keys, None, 4.0, metric=start, shift=torch.zeros(2))
        posterior = models.bayesian(mixture, keys=Normal(keys, 1.0), shift=Normal(0.0, 1.0), **prior)
        return inference.adapt(posterior, points, num_steps=3).formulation, keys

    (near, home), (far, out) = fitted(60.0), fitted(2.0**33)  # keys and points keep 20 bits there
    torch.testing.assert_close(far.metric, near.metric, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(far.keys - out, near.keys - home, rtol=0, atol=1e-5)
    torch.testing.assert_close(far.shift, near.shift, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_problem_does_not_know_how_far_apart_the_points_of_another_are(dtype):
    """In batches of two of the same size a problem has the same bits beside a near and beside a far one, with answers and without."""
    g, far = generator(2), 2.0 ** {torch.float32: 7, torch.float64: 20}[dtype]
    scale = torch.tensor([1.0, far]).reshape(2, 1, 1)
    keys, queries = ((torch.randn(2, n, 3, generator=g) * scale).to(dtype) for n in (4, 9))
    values, outputs = (torch.randn(2, n, 2, generator=g).to(dtype) for n in (4, 9))

    def found(pair, answers):
        mixture = models.GaussianMixture(keys[pair], values[pair], torch.ones(2, 4, dtype=dtype), value_precision=3.0)
        asked = [queries[pair], outputs[pair] if answers else None]
        return mixture.log_joint(*asked), mixture.log_evidence(*asked), mixture.expect((*asked, None, None)).sums

    assert far_apart(queries, keys, torch.ones(2, 4, dtype=dtype)).flatten().tolist() == [False, True]
    for answers in (False, True):
        mixed = found([0, 1], answers)
        for own in (0, 1):
            same = found([own, own], answers)
            assert torch.equal(mixed[0][own], same[0][own])
            assert torch.equal(mixed[1][own], same[1][own])
            assert mixed[2].shape == same[2].shape


@pytest.mark.parametrize("metric", [None, "diagonal", "full"])
@pytest.mark.parametrize("far", [2.0**2, 2.0**11, 2.0**18])
def test_float32_takes_digits_from_float64_before_it_takes_differences(far, metric):
    """Three routes by distance; evidence, sums, means and scatter are those of float64, which has digits for all three.

    Roundings are 2^-24. Evidence of some 8 nats has seen 8: 2^-18; a product loses ``(D + 4) EXPANDED`` of them. Means of size ``far`` have
    seen 8: 2^-21 of it. Squares and scatter add 60 terms of a dozen roundings each, 4e-5, and attention's own.
    """
    g = generator(7)
    group = torch.randint(4, (60,), generator=g)
    keys = (far * torch.randn(4, 3, generator=g)).to(torch.float32)
    queries = (keys[group] + torch.randn(60, 3, generator=g)).to(torch.float32)
    shape = {None: None, "diagonal": torch.tensor([0.5, 1.0, 2.0]), "full": torch.eye(3) + 0.25}[metric]
    weights = torch.rand(60, generator=g).to(torch.float32)

    def seen(dtype):
        kind = None if shape is None else shape.to(dtype)
        mixture = models.GaussianMixture(
            keys.to(dtype), None, torch.ones(4, dtype=dtype), metric=kind, diagonal_metric=metric == "diagonal"
        )
        factor, log_weights = mixture.lowered(queries.to(dtype))
        return factor, expected_statistics(factor, log_weights, weights.to(dtype)), mixture.attention(queries.to(dtype))

    (factor, found, _), (_, exact, attention) = seen(torch.float32), seen(torch.float64)
    route = "product" if not factor.squares else "differences" if factor.squares[0].origin is None else "float64"
    assert route == {2.0**2: "product", 2.0**11: "float64", 2.0**18: "differences"}[far]
    loss = 7 * EXPANDED[torch.float32] * 2.0**-24 if route == "product" else 2.0**-18
    assert (found.log_evidence - exact.log_evidence).abs().amax() <= loss
    torch.testing.assert_close(found.counts.double(), exact.counts, rtol=loss, atol=loss)
    if route == "product":
        return
    root = None if shape is None else factor.squares[0].root.double()
    for j, center in enumerate(found.centers[0].double()):
        away = whiten(queries.double() - center, root)
        share = (attention[:, j] * weights.double()).unsqueeze(-1)
        torch.testing.assert_close(
            found.sums[j, :3].double(), (share * away).sum(0), rtol=0, atol=float(share.sum()) * far * 2.0**-21
        )
        assert float(found.sums[j, 3]) == pytest.approx(float(-0.5 * (share * away.square()).sum()), rel=1e-4)
    strength = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    around = whiten(queries.double().unsqueeze(-2) - found.centers[0].double(), root)
    scatter = torch.einsum("i,ij,j,ijd,ije->de", weights.double(), attention, strength, around, around)
    torch.testing.assert_close(
        found.scatter(strength.float()).double(), scatter, rtol=1e-4, atol=1e-4 * float(scatter.abs().amax())
    )


def test_the_covariance_of_answers_in_unix_seconds_is_that_near_zero():
    """Half a second apart within two groups that are ten years apart, of which a query sees one. An ulp is 2.4e-7 s: 5e-7 of .5."""
    keys, queries = torch.tensor([[-9.0], [-8.0], [8.0], [9.0]]), torch.tensor([[-8.4], [8.7]])
    near = torch.tensor([[0.0], [0.5], [0.0], [0.5]])
    far = near + torch.tensor([[SECONDS], [SECONDS], [SECONDS + 120 * MONTH], [SECONDS + 120 * MONTH]])

    def found(values):
        return models.GaussianMixture(keys, values, value_precision=400.0).output_covariance(queries)

    torch.testing.assert_close(found(far), found(near), rtol=1e-6, atol=0)


def test_linked_keys_far_from_the_origin_attend_as_near_it():
    """``softmax(β q'k)`` changes with the origin; moved by 2^30 along a feature that all keys share it does not.

    Queries lose all below 2^-22 of that feature, which is the same for all keys; the other numbers stay in double precision.
    """
    g = generator(11)
    keys, queries = torch.randn(5, 3, generator=g), torch.randn(4, 3, generator=g)
    keys[:, 2] = 0.0

    def attention(away):
        at = torch.tensor([0.0, 0.0, away])
        return models.GaussianMixture.linked(keys + at, torch.eye(5), 0.7).attention(queries + at)

    torch.testing.assert_close(attention(2.0**30), attention(0.0), rtol=1e-6, atol=1e-9)


def test_a_true_value_that_overflows_is_minus_infinity_or_an_error():
    mixture = models.GaussianMixture(torch.zeros(2, 1), torch.eye(2))
    queries = torch.tensor([[0.0], [1e200], [1.7e308]])
    assert mixture.log_evidence(queries).tolist()[1:] == [-math.inf, -math.inf]
    assert math.isfinite(mixture.log_evidence(queries)[0])
    for method in (mixture.attention, mixture.expected_outputs, mixture.explicit_outputs):
        with pytest.raises(ValueError, match="overflow"):
            method(queries)
    clusters = models.SoftKMeans(torch.zeros(2, 1), 1.0)
    assert clusters.distances(queries)[1].tolist() == [math.inf, math.inf]
    for hard in (clusters, clusters.replace(gamma=torch.inf)):
        with pytest.raises(ValueError, match="overflow"):
            hard.assign(queries)
    with pytest.raises(ValueError, match="eta: scores"):
        models.LogNormalizer(torch.tensor([[1e200], [-1e200]])).log_normalizer(torch.tensor([[1e200]]))


def test_a_square_that_overflows_on_the_way_to_a_number_does_not():
    """``α |x - ξ|²`` of x = 1e160 and α = 1e-300 is 1e20, though the square is none."""
    mixture = models.GaussianMixture(torch.zeros(1, 1), None, 1e-300)
    expected = -0.5 * 1e20 + 0.5 * math.log(1e-300 / (2 * math.pi))
    assert float(mixture.log_evidence(torch.tensor([[1e160]]))) == pytest.approx(expected, rel=1e-14)


def test_a_very_low_log_weight_is_no_mask():
    """A unit with log weight -1e35 next to masked ones is the only one that answers; it was taken for masked."""
    log_prior = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    lone = models.GaussianMixture(torch.zeros(3, 1), torch.eye(3), log_prior=log_prior)
    assert lone.expected_outputs(torch.zeros(1, 1)).tolist() == [[0.0, 1.0, 0.0]]
    from probtx_pyro import ops

    factor = ops.gaussian_factor(torch.zeros(1, 1), torch.zeros(3, 1), torch.tensor(1.0))
    low = torch.tensor([[-torch.inf, -1e35, -torch.inf]])
    assert ops.attend(factor, torch.eye(3), low).tolist() == [[0.0, 1.0, 0.0]]
    assert float(ops.log_evidence(factor, low)) == pytest.approx(-1e35, rel=1e-12)
    assert ops.expected_statistics(factor, low).counts.tolist() == [0.0, 1.0, 0.0]
    assert ops.sampled_statistics(factor, low, torch.tensor([0.5]))[1].tolist() == [1]


@settings(max_examples=30, deadline=None)
@given(problem=problems(dtype=torch.float64), each=st.booleans())
def test_the_tilted_density_of_a_log_normalizer(problem, each):
    """Attention and log Z from exact scores; the density of points from exact squares."""
    points, locations, precision, scale = problem
    variance = (1 / precision).unsqueeze(-1) if each else (1 / precision)[:1].unsqueeze(-1)
    measure = models.LogNormalizer(locations, variance=variance)
    eta = torch.randn(points.shape, generator=generator(1)) / scale
    eps, features = torch.finfo(points.dtype).eps, points.shape[-1]
    found = measure.log_joint(eta, points)
    spread = fractions(variance.expand(len(locations), 1)[:, 0])
    for i, (x, e) in enumerate(zip(fractions(points), fractions(eta), strict=True)):
        scores, sizes = [], []
        for at, s in zip(fractions(locations), spread, strict=True):
            inner, own = (sum(a * b for a, b in zip(at, e, strict=True)), s * sum(b * b for b in e) / 2)
            scores.append(real(inner + own) - mpmath.log(len(spread)))
            sizes.append(float(sum(abs(a * b) for a, b in zip(at, e, strict=True)) + own))
        top = max(scores)
        log_z = top + mpmath.log(sum(mpmath.exp(x - top) for x in scores))
        bound = (features + 4) * eps * (8 * max(sizes) + 8 * abs(float(log_z)) + EXPANDED[points.dtype])
        assert abs(float(measure.log_normalizer(eta)[i]) - float(log_z)) <= bound
        tilt = real(sum(a * b for a, b in zip(x, e, strict=True)))
        size = float(sum(abs(a * b) for a, b in zip(x, e, strict=True)))
        for n, (at, s) in enumerate(zip(fractions(locations), spread, strict=True)):
            square = -real(quadratic(x, at) / s) / 2
            exact = square - features * mpmath.log(2 * mpmath.pi * real(s)) / 2 - mpmath.log(len(spread)) + tilt - log_z
            slack = bound + (features + 4) * eps * 8 * (size + abs(float(square)) + 400 * features)
            assert abs(float(found[i, n]) - float(exact)) <= slack
