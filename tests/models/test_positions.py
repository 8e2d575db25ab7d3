"""Index priors by definition, and the attention that each of them is under another name."""

import itertools
import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Bernoulli
from pyro.infer import TraceEnum_ELBO
from strategies import generator
from tolerances import assert_equal
from torch.nn.functional import scaled_dot_product_attention

from probtx_pyro import models

N, D, H = 6, 3, 4
PRIORS = {
    "uniform": lambda d, **o: models.uniform_log_prior(d, **o),
    "laplace": lambda d, **o: models.laplace_log_prior(d, 0.7, **o),
    "laplace, rate 0": lambda d, **o: models.laplace_log_prior(d, 0.0, **o),
    "generalized gaussian": lambda d, **o: models.generalized_gaussian_log_prior(d, 1.7, 1.3, **o),
    "gaussian": lambda d, **o: models.generalized_gaussian_log_prior(d, 2.1, 2.0, **o),
    "stick-breaking": lambda d, **o: models.stick_breaking_log_prior(d, 0.3, **o),
}
WEIGHTS = {  # of distance, but for the normaliser, by the scalar functions of Python
    "uniform": lambda d: 1.0,
    "laplace": lambda d: math.exp(-0.7 * d),
    "laplace, rate 0": lambda d: 1.0,
    "generalized gaussian": lambda d: math.exp(-((d / 1.7) ** 1.3)),
    "gaussian": lambda d: math.exp(-((d / 2.1) ** 2)),
}
priors = pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed))


def seen(i, j, causal, window):
    return (j <= i or not causal) and (window is None or abs(i - j) < window)


def sticks(fractions, positions, units, causal=True, window=None):
    """Stick-breaking as a walk: a stick, and units in order of distance that break pieces off it; the last takes it all."""
    rows = []
    for i, query in enumerate(positions):
        walk = [j for j, unit in enumerate(units) if seen(query, unit, causal, window)]
        walk.sort(key=lambda j, query=query: abs(query - units[j]))
        row, stick = [0.0] * len(units), 1.0
        for j in walk[:-1]:
            row[j] = stick * float(fractions[i][j])
            stick -= row[j]
        row[walk[-1]] = stick
        rows.append(row)
    return torch.tensor(rows)


# -- by definition ------------------------------------------------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("window", [None, 1, 3, 2.5])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", WEIGHTS)
def test_rows_are_weights_of_the_distance_divided_by_their_sum(name, causal, window):
    found = PRIORS[name](models.offsets(N), causal=causal, window=window).exp()
    for i in range(N):
        row = [WEIGHTS[name](abs(i - j)) if seen(i, j, causal, window) else 0.0 for j in range(N)]
        assert_equal(found[i], torch.tensor(row) / sum(row))
        assert all((found[i][j] == 0) == (row[j] == 0) for j in range(N))  # hidden is 0 to the last bit


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("causal", [True, False])
def test_a_stick_is_broken_by_the_nearest_first(causal, window):
    fractions = torch.rand(N, N, generator=generator(1))
    found = models.stick_breaking_log_prior(models.offsets(N), fractions, causal=causal, window=window)
    assert_equal(found.exp(), sticks(fractions, range(N), range(N), causal, window))
    shared = models.stick_breaking_log_prior(models.offsets(N), fractions[0], causal=causal, window=window)
    assert_equal(shared.exp(), sticks(fractions[:1].expand(N, N), range(N), range(N), causal, window))


@priors
def test_queries_at_the_end_and_anywhere(prior):
    whole = prior(models.offsets(N), causal=True)
    assert_equal(prior(models.offsets(N, queries=2), causal=True), whole[-2:])
    asked = torch.tensor([4, 1])
    assert_equal(prior(models.offsets(N, asked), causal=True), whole[asked])
    order = torch.randperm(N, generator=generator(2))  # units in any order: positions count, not the place in memory
    assert_equal(prior(models.offsets(order, torch.arange(N)), causal=True), whole[:, order])
    moved = models.offsets(torch.arange(N) + 0.5, torch.arange(N) + 0.5)
    assert_equal(prior(moved, causal=True), whole)
    batch = models.offsets(torch.stack([torch.arange(N), order]), torch.arange(N))
    assert_equal(prior(batch, causal=True), torch.stack([whole, whole[:, order]]))


def test_offsets_are_positive_behind_the_query():
    expected = torch.tensor([[3.0, 2, 1, 0]])
    found = models.offsets(4, 1, dtype=torch.float32)
    assert torch.equal(found, expected.float()) and found.dtype == torch.float32
    assert models.offsets(4).dtype == torch.float64
    assert (
        models.offsets(torch.zeros(4, dtype=torch.float32), torch.ones(2, dtype=torch.float32)).dtype == torch.float32
    )


def test_parameters_of_heads_are_leading_axes():
    d = models.offsets(N)
    rate = torch.rand(2, H, generator=generator(3)) + 0.1
    found = models.laplace_log_prior(d, rate, causal=True)
    assert found.shape == (2, H, N, N)
    assert_equal(found[1, 2], models.laplace_log_prior(d, rate[1, 2], causal=True))
    shape = models.generalized_gaussian_log_prior(d, 1 / rate, 1 + rate)
    assert_equal(shape[0, 3], models.generalized_gaussian_log_prior(d, 1 / rate[0, 3], 1 + rate[0, 3]))
    fractions = rate[..., None, None].sigmoid()
    assert_equal(
        models.stick_breaking_log_prior(d, fractions)[1, 0], models.stick_breaking_log_prior(d, fractions[1, 0])
    )


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_slopes_are_the_published_geometric_sequence(heads):
    slopes = models.alibi_slopes(heads)
    assert slopes.tolist() == pytest.approx([2 ** (-8 * h / heads) for h in range(1, heads + 1)], rel=1e-15)


def test_slopes_between_powers_of_two():
    """Twelve heads: the eight of 8 heads, then the 1st, 3rd, 5th and 7th of 16."""
    expected = [2.0**-h for h in range(1, 9)] + [2.0**-h for h in (0.5, 1.5, 2.5, 3.5)]
    assert models.alibi_slopes(12).tolist() == pytest.approx(expected, rel=1e-15)


# -- the same attention under another name --------------------------------------------------------------------------------


def heads(seed=4, queries=N):
    return normal(H, queries, D, seed=seed), normal(H, N, D, seed=seed + 1), normal(H, N, 2, seed=seed + 2)


@pytest.mark.parametrize("queries", [N, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_laplace_with_the_linked_prior_is_alibi(causal, queries):
    q, k, v = heads(queries=queries)
    bias = torch.zeros(H, queries, N)
    for h, i, j in itertools.product(range(H), range(queries), range(N)):
        place = N - queries + i
        bias[h, i, j] = -(2.0 ** (-8 * (h + 1) / H)) * abs(place - j) if j <= place or not causal else -math.inf
    prior = models.laplace_log_prior(models.offsets(N, queries), models.alibi_slopes(H), causal=causal)
    mixture = models.GaussianMixture.linked(k, v, D**-0.5, log_prior=prior)
    expected = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=bias)[0]
    assert (mixture.expected_outputs(q) - expected).abs().max() < 1e-12
    keys = models.GaussianKeys.linked(k.unsqueeze(-2), v, D**-0.5, log_prior=prior)
    assert (keys.expected_outputs(q) - expected).abs().max() < 1e-12


def test_uniform_is_no_positions_and_causal_uniform_is_causal_attention():
    q, k, v = heads()
    without = models.GaussianMixture(k, v, 1.3)
    given = without.replace(log_prior=models.uniform_log_prior(models.offsets(N)))
    assert_equal(given.expected_outputs(q), without.expected_outputs(q))
    assert_equal(given.log_evidence(q), without.log_evidence(q))
    causal = models.uniform_log_prior(models.offsets(N), causal=True)
    linked = models.GaussianMixture.linked(k, v, D**-0.5, log_prior=causal)
    expected = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    assert (linked.expected_outputs(q) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [True, False])
def test_infinite_power_is_a_sliding_window(causal):
    """At scale 2.5 units at distances 0, 1 and 2 are inside: a window of 3. (2 / 2.5)^200 = 4e-20, (3 / 2.5)^200 = 7e15."""
    q, k, v = heads()
    d = models.offsets(N)
    mask = torch.tensor([[seen(i, j, causal, 3) for j in range(N)] for i in range(N)])
    expected = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
    options = {
        "window": models.uniform_log_prior(d, causal=causal, window=3),
        "power": models.generalized_gaussian_log_prior(d, 2.5, 200.0, causal=causal),
        "power beyond all numbers": models.generalized_gaussian_log_prior(d, 2.5, 1e5, causal=causal),
    }
    for prior in options.values():
        linked = models.GaussianMixture.linked(k, v, D**-0.5, log_prior=prior)
        assert (linked.expected_outputs(q) - expected).abs().max() < 1e-12
    before = models.GaussianMixture.linked(
        k, v, D**-0.5, log_prior=models.generalized_gaussian_log_prior(d, 2.5, 4.0, causal=causal)
    )
    assert (before.expected_outputs(q) - expected).abs().max() > 1e-3  # a power of 4 is not there yet


def test_at_exactly_the_scale_no_power_decides():
    row = models.generalized_gaussian_log_prior(models.offsets(4), 2.0, 300.0)[0].exp()
    assert_equal(row, torch.tensor([1.0, 1.0, math.exp(-1), 0.0]) / (2 + math.exp(-1)))


def test_power_one_is_laplace():
    d = models.offsets(N)
    laplace = models.laplace_log_prior(d, 1 / 1.7, causal=True)
    assert_equal(models.generalized_gaussian_log_prior(d, 1.7, 1.0, causal=True), laplace)


def test_gaussian_index_prior_is_the_position_as_a_coordinate_of_the_keys():
    """``(α/2) c² (i - j)² = ((i - j) / s)²`` for the coordinate c i, c = sqrt(2/α) / s: precision 2/s² of the position itself.

    It needs one precision for all units. The evidence is then that of the longer queries but for what rows share.
    """
    alpha, scale = 1.6, 2.3
    q, k, v = normal(N, D), normal(N, D, seed=1), normal(N, 2, seed=2)
    prior = models.generalized_gaussian_log_prior(models.offsets(N), scale, 2.0)
    mixture = models.GaussianMixture(k, v, alpha, log_prior=prior)
    place = (2 / alpha) ** 0.5 / scale * torch.arange(N)[:, None]
    longer = models.GaussianMixture(torch.cat([k, place], -1), v, alpha)
    asked = torch.cat([q, place], -1)
    assert_equal(mixture.attention(q), longer.attention(asked))
    assert_equal(mixture.expected_outputs(q), longer.expected_outputs(asked))
    total = torch.tensor([sum(math.exp(-(((i - j) / scale) ** 2)) for j in range(N)) for i in range(N)])
    shared = (total / N).log() + 0.5 * math.log(alpha / (2 * math.pi))
    assert_equal(longer.log_evidence(asked), mixture.log_evidence(q) + shared)
    unequal = torch.linspace(0.5, 3.0, N)
    difference = mixture.replace(key_precision=unequal).attention(q) - longer.replace(key_precision=unequal).attention(
        asked
    )
    assert difference.abs().max() > 0.01


@pytest.mark.parametrize("fraction", [0.05, 0.4, 0.9])
def test_a_constant_fraction_is_geometric(fraction):
    """Row i has n = i + 1 units: ``π = (1 - (1-b)^n) Laplace(-log(1-b)) + (1-b)^n`` on the farthest, which is unit 0."""
    stick = models.stick_breaking_log_prior(models.offsets(N), fraction).exp()
    laplace = models.laplace_log_prior(models.offsets(N), -math.log1p(-fraction), causal=True).exp()
    remainder = (1 - fraction) ** torch.arange(1.0, N + 1)[:, None]
    farthest = torch.zeros(N, N)
    farthest[:, 0] = 1.0
    assert_equal(stick, (1 - remainder) * laplace + remainder * farthest)
    for i, j in itertools.product(range(N), range(1, N)):
        assert float(stick[i, j]) == pytest.approx(fraction * (1 - fraction) ** (i - j) if j <= i else 0.0, rel=1e-12)


def test_fractions_of_queries_and_keys_are_stick_breaking_attention():
    """Published: sigmoids of dot products, the query's own unit left out, and a remainder that is nobody's. Here unit 0 has it."""
    q, k, v = normal(N, D), normal(N, D, seed=1), normal(N, 2, seed=2)
    fractions = (q @ k.T / D**0.5).sigmoid()
    silent = models.GaussianMixture(torch.zeros(N, D), v)  # keys that tell nothing: attention is the prior
    with_self = silent.replace(log_prior=models.stick_breaking_log_prior(models.offsets(N), fractions))
    without = fractions.masked_fill(torch.eye(N, dtype=torch.bool), 0.0)
    without_self = silent.replace(log_prior=models.stick_breaking_log_prior(models.offsets(N), without))
    for mixture, start in ((with_self, 0), (without_self, 1)):
        for i in range(N):
            published, left = torch.zeros(2), 1.0
            for j in range(i - start, -1, -1):
                published = published + left * fractions[i, j] * v[j]
                left = left * (1 - fractions[i, j])
            assert_equal(mixture.expected_outputs(q)[i], published + left * v[0])


# -- programs ---------------------------------------------------------------------------------------------------------------


def walk(fractions, query):
    """Asks the units backwards from the query, one after the other, whether they stop the walk; unit 0 always does."""
    for unit in range(query, 0, -1):
        if pyro.sample(f"stop_{unit}", Bernoulli(fractions[query, unit])) == 1:
            return unit
    return 0


def test_a_walk_of_bernoulli_draws_has_the_law_of_the_prior():
    fractions = torch.rand(5, 5, generator=generator(6))
    prior = models.stick_breaking_log_prior(models.offsets(5), fractions).exp()
    for query in range(5):
        law = torch.zeros(5)
        for stop in range(query, -1, -1):  # a walk is the units it passed and, but for unit 0, the one that stopped it
            answers = {f"stop_{unit}": torch.tensor(float(unit == stop)) for unit in range(query, max(stop, 1) - 1, -1)}
            trace = poutine.trace(poutine.condition(walk, answers)).get_trace(fractions, query)
            assert trace.nodes["_RETURN"]["value"] == stop and len(trace.stochastic_nodes) == 0
            law[stop] = trace.log_prob_sum().exp() if answers else 1.0
        assert_equal(prior[query], law)


@priors
def test_the_program_with_the_prior_has_the_attention_of_the_closed_form(prior):
    log_prior = prior(models.offsets(N, 4), causal=True)
    queries, values = normal(4, D), normal(N, 2, seed=2)
    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    for mixture in (
        models.GaussianMixture(normal(N, D, seed=1), values, 1.4, log_prior=log_prior),
        models.GaussianKeys(normal(N, 2, D, seed=1), values, 1.4, log_prior=log_prior),
    ):
        assert_equal(
            torch.tensor(-elbo.loss(mixture.model, mixture.guide, queries)), mixture.log_evidence(queries).sum()
        )
        unit = elbo.compute_marginals(mixture.model, lambda *a: None, queries)["unit"]
        assert_equal(unit.probs, mixture.attention(queries))


# -- numbers ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_reach_every_parameter(causal, window):
    d = models.offsets(5)
    options = {"causal": causal, "window": window}
    rate, scale, power = ((torch.rand(2, generator=generator(s)) + 0.5).requires_grad_() for s in range(3))
    for fractions in (
        torch.tensor(0.4),
        torch.rand(5, generator=generator(7)),
        torch.rand(2, 5, 5, generator=generator(8)),
    ):
        fractions.requires_grad_()
        assert torch.autograd.gradcheck(lambda b: models.stick_breaking_log_prior(d, b, **options).exp(), fractions)
    assert torch.autograd.gradcheck(lambda r: models.laplace_log_prior(d, r, **options).exp(), rate)
    assert torch.autograd.gradcheck(
        lambda s, p: models.generalized_gaussian_log_prior(d, s, p, **options).exp(), (scale, power)
    )
    places = (torch.arange(5.0) + 0.2 * torch.rand(5, generator=generator(9))).requires_grad_()
    asked = torch.arange(5.0) + 0.6  # between units, where the distance has a derivative
    assert torch.autograd.gradcheck(
        lambda p: models.generalized_gaussian_log_prior(models.offsets(p, asked), 1.5, 1.5).exp(), places
    )


def test_no_gradient_is_nan_at_the_edges():
    d = models.offsets(N)
    power = torch.tensor(1e4, requires_grad=True)
    fractions = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0, 0.3], requires_grad=True)
    for prior in (
        models.generalized_gaussian_log_prior(d, power.new_tensor(2.5), power),
        models.stick_breaking_log_prior(d, fractions),
    ):
        mixture = models.GaussianMixture(normal(N, D), normal(N, 2, seed=1), log_prior=prior)
        mixture.expected_outputs(normal(N, D, seed=2)).square().sum().backward()
    assert torch.isfinite(power.grad) and torch.isfinite(fractions.grad).all()
    assert fractions.grad[2] != 0


@priors
def test_float32_is_float64_and_its_rows_are_accepted(prior):
    d = models.offsets(300)
    low = prior(d.float(), causal=True)
    assert low.dtype == torch.float32
    # a cumulative sum, and a normaliser, of 300 terms each rounded once: 300 eps
    torch.testing.assert_close(low.exp().double(), prior(d, causal=True).exp(), rtol=0, atol=300 * 1.2e-7)
    models.GaussianMixture(torch.zeros(300, 1), log_prior=prior(d, causal=True))
    models.GaussianMixture(torch.zeros(300, 1).float(), log_prior=low)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: models.offsets(0), "units must be a count of 1 or more"),
        (lambda d: models.offsets([0, 1]), "units must be a count of 1 or more, or a tensor of positions"),
        (lambda d: models.offsets(3, torch.tensor(1.0)), "queries must be a count"),
        (lambda d: models.offsets(3, 4), "queries must be from 1 to the number of units, 3, not 4"),
        (lambda d: models.laplace_log_prior(d.long(), 1.0), "offsets must be a floating point tensor"),
        (lambda d: models.stick_breaking_log_prior(d.tolist(), 0.5), "offsets must be a torch.Tensor, not list"),
        (lambda d: models.uniform_log_prior(d[0]), r"offsets must have shape \(..., Q, U\)"),
        (lambda d: models.uniform_log_prior(d * math.nan), "offsets contains NaN"),
        (lambda d: models.laplace_log_prior(d, -0.1), "rate must be >= 0"),
        (lambda d: models.laplace_log_prior(d, math.inf), "rate contains infinity"),
        (lambda d: models.laplace_log_prior(d, torch.ones(2).float()), "differ in dtype: offsets torch.float64, rate"),
        (lambda d: models.laplace_log_prior(d.expand(3, 3, 3), torch.ones(2)), r"offsets \(3,\), rate \(2,\)"),
        (lambda d: models.alibi_slopes(0), "num_heads must be 1 or more, not 0"),
        (lambda d: models.generalized_gaussian_log_prior(d, 0.0, 2.0), "scale and power must be > 0"),
        (lambda d: models.generalized_gaussian_log_prior(d, 1.0, torch.tensor(-1.0)), "scale and power must be > 0"),
        (lambda d: models.generalized_gaussian_log_prior(d + 9.0, 1.0, 1e4), "a query may see no unit; widen the window"),
        (lambda d: models.stick_breaking_log_prior(d, 1.1), r"fractions must lie in \[0, 1\]"),
        (lambda d: models.stick_breaking_log_prior(d, torch.ones(3, 2)), r"offsets \(3, 3\), fractions \(3, 2\)"),
        (lambda d: models.stick_breaking_log_prior(d[:, :1], torch.ones(3)), "offsets have 1 units but fractions have 3"),
        (lambda d: models.uniform_log_prior(d, window=0), "a query may see no unit; widen the window"),
        (lambda d: models.stick_breaking_log_prior(d - 9.0, 0.5), "a query may see no unit"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call(models.offsets(3))
    assert "\n" not in str(error.value)
