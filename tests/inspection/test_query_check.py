"""The check of queries is calibrated, has power, and counts as loops do; cross validation against refits by hand."""

import math

import numpy as np
import oracles
import pytest
import scipy.stats
import torch
from pyro.distributions import Gamma, Normal
from tolerances import FALSE_ALARM_RATE, assert_equal

from probtx_pyro import inference, inspection, models
from probtx_pyro.data import text_transformer

SCALE = 0.5
# sums over some 80 queries of numbers up to 100, 4,096 roundings; a fit that Newton has finished is known as well
ROUNDING = 4096 * 2.2e-16 * 100


def drawn(problems, num_queries, units=6, features=3, scale=SCALE, causal=True, seed=0):
    """Queries drawn from softmax's mixture as written by numpy, and what `captured` makes of them and of their keys."""
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(problems, units, features)) * 1.5
    queries = np.empty((problems, num_queries, features))
    for p in range(problems):
        weights = np.exp(SCALE / 2 * (keys[p] ** 2).sum(-1))
        for i in range(num_queries):
            allowed = min(i + 1, units) if causal else units
            unit = rng.choice(allowed, p=weights[:allowed] / weights[:allowed].sum())
            queries[p, i] = keys[p, unit] + rng.normal(size=features) * scale**-0.5
    future = torch.ones(num_queries, units, dtype=torch.bool).triu(1)
    mask = torch.zeros(num_queries, units).masked_fill(future, -torch.inf) if causal else None
    return inspection.captured(torch.tensor(queries), torch.tensor(keys), None, mask, SCALE, dims=("head",)).raw


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_queries_from_the_implied_mixture_give_uniform_p_values(causal):
    """A rank among S exchangeable draws is uniform on its S + 1 places; p-values take the steps 2k/(S + 1)."""
    check = inspection.query_check(drawn(400, 5, causal=causal), num_draws=99, seed=1)
    for name, p_values, pit in zip(check.statistics, check.p_values, check.pit, strict=True):
        steps = np.unique(np.minimum(1, 2 * np.arange(1, 101) / 100))
        counts = np.histogram(p_values, np.append(steps - 0.01, 1.01))[0]
        assert counts.sum() == 400
        assert scipy.stats.chisquare(counts.reshape(10, 5).sum(1)).pvalue > FALSE_ALARM_RATE, name
        # given the keys, queries and their replicates are independent of those of other queries
        assert scipy.stats.kstest(pit.ravel(), "uniform").pvalue > FALSE_ALARM_RATE, name
        assert abs(p_values.mean() - 0.505) < 5 * 12**-0.5 / 400**0.5, (
            name
        )  # uniform on the steps: mean (1 + 1/50)/2 - 1/200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "name", "sign"),
    [(SCALE / 4, "log evidence", -1), (SCALE * 4, "nearest key", -1), (SCALE / 4, "squared norm", 1)],
)
def test_a_wrong_scale_gives_tiny_p_values(scale, name, sign):
    check = inspection.query_check(drawn(4, 60, scale=scale), num_draws=199, seed=1)
    row = check.statistics.index(name)
    np.testing.assert_allclose(check.p_values[row], 2 / 200)
    assert (sign * check.z_scores[row] > 4).all()
    assert scipy.stats.kstest(check.pit[row].ravel(), "uniform").pvalue < FALSE_ALARM_RATE


def test_a_head_that_is_off_ranks_first():
    one = drawn(5, 40)
    queries = one.queries.clone()
    queries[3] = queries[3] * 3
    off = inspection.captured(queries, one.keys, None, one.mask, SCALE, dims=("head",), coords={"head": list("abcde")})
    check = inspection.query_check(off.raw, num_draws=50, seed=0)
    assert check.ranking.shape == (5, 1) and check.ranking[0, 0] == 3
    assert sorted(check.ranking[:, 0]) == [0, 1, 2, 3, 4]
    assert (np.diff(check.discrepancy[check.ranking[:, 0]]) <= 0).all()
    assert check.dims == ("head",) and check.coords == {"head": list("abcde")}


def test_statistics_are_those_of_loops():
    one = drawn(2, 4, causal=True)
    found = {name: f(one) for name, f in inspection.QUERY_STATISTICS.items()}
    for p in range(2):
        keys, queries = one.keys[p].tolist(), one.queries[p].tolist()
        center = [sum(column) / len(keys) for column in zip(*keys, strict=True)]
        spread = np.cov(np.array(keys).T)
        direction = np.linalg.svd(spread)[0][:, 0]
        for i, query in enumerate(queries):
            assert math.isclose(found["squared norm"][p, i], sum(x * x for x in query), rel_tol=1e-12)
            assert math.isclose(
                found["nearest key"][p, i], min(math.dist(query, k) for k in keys[: i + 1]), rel_tol=1e-12
            )
            projected = sum(d * (x - c) for d, x, c in zip(direction, query, center, strict=True))
            # an eigenvector is known to rounding over the gap of the eigenvalues, some 1e-16 / 0.01
            assert math.isclose(abs(found["principal coordinate"][p, i]), abs(projected), rel_tol=1e-10, abs_tol=1e-10)
            logs = [SCALE * sum(a * b for a, b in zip(query, k, strict=True)) for k in keys[: i + 1]]
            weights = [math.exp(x - oracles.logsumexp(logs)) for x in logs]
            entropy = -sum(w * math.log(w) for w in weights)
            assert math.isclose(found["entropy"][p, i], entropy, abs_tol=1e-12)


def test_the_summary_is_short_and_right():
    """Replicates that are known: a statistic that ignores its queries and follows a list."""
    one, values = drawn(1, 3), iter([2.0, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0])

    def listed(of):
        return torch.full(of.queries.shape[:-1], next(values))

    check = inspection.query_check(one, num_draws=6, seed=0, statistics={"listed": listed}, controls={})
    assert check.observed.item() == 2.0
    assert check.replicated.tolist() == [[[1.0], [2.0], [3.0], [5.0], [6.0], [7.0]]]
    assert check.p_values.item() == 2 * 3 / 7  # 1, 2 and the observed 2 itself, of seven, are at most 2
    assert math.isclose(check.z_scores.item(), (2 - 4) / np.std([1, 2, 3, 5, 6, 7]))
    assert ((check.pit > 1 / 7) & (check.pit < 3 / 7)).all()  # one below, one tie


def test_only_queries_that_count_are_counted_and_the_batch_is_pooled():
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x, padded = torch.randn(3, 16, 8), torch.arange(16) >= torch.tensor([[16], [10], [0]])
    found = inspection.capture(layer, x, x, x, padded)
    check = inspection.query_check(found, num_draws=20, seed=3)
    assert check.dims == ("layer", "head") and check.p_values.shape == (5, 1, 2)
    assert list(check.coords) == ["layer"]
    assert np.isfinite(check.replicated).all()
    np.testing.assert_array_equal(np.isnan(check.pit[0, 0, :, 0]), padded)
    alone = inspection.query_check(found["MultiheadAttention"], num_draws=20, seed=3)
    np.testing.assert_allclose(alone.z_scores, check.z_scores[:, 0], atol=ROUNDING)
    evidence = found["MultiheadAttention"].log_evidence()
    expected = [np.mean([*evidence[0, h], *evidence[1, h, :10]]) for h in range(2)]
    np.testing.assert_allclose(alone.observed[0], expected)


def test_a_seed_is_a_result_and_leaves_the_random_state_alone():
    one, state = drawn(2, 5), torch.get_rng_state()
    first, again, other = (inspection.query_check(one, num_draws=10, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(first.replicated, again.replicated)
    np.testing.assert_array_equal(first.pit, again.pit)
    assert (first.replicated != other.replicated).any()


def test_a_bar_where_it_is_asked_for(capsys):
    one = drawn(2, 6)
    for progress, shown in ((True, True), (False, False), (None, False)):  # no terminal here
        inspection.query_check(one, num_draws=3, seed=0, progress=progress)
        inspection.cross_validate({"softmax": one.mixture}, one.queries, seed=0, folds=2, progress=progress)
        written = capsys.readouterr().err
        assert ("replicates" in written, "folds" in written) == (shown, shown)


def test_a_statistic_that_cannot_vary_is_not_a_finding():
    one = inspection.captured(torch.randn(4, 2), torch.randn(1, 2), dims=()).raw
    check = inspection.query_check(
        one, num_draws=10, seed=0, statistics={"entropy": inspection.QUERY_STATISTICS["entropy"]}
    )
    assert check.p_values.item() == 1.0 and check.z_scores.item() == 0.0
    assert check.ranking.shape == (1, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda one: inspection.query_check(one, num_draws=0, seed=0), "num_draws must be 1 or more"),
        (lambda one: inspection.query_check(one, num_draws=1, seed=0, statistics={}), "statistics not empty"),
        (lambda one: inspection.query_check(one, num_draws=1, seed=0, statistics={"x": lambda of: of.queries}), r"'x' gave shape \(2, 3, 3\)"),
        (lambda one: inspection.query_check(inspection.captured(one.queries, one.keys, padded=torch.ones(2, 3).bool()), num_draws=1, seed=0), "without a query that counts"),
        (lambda one: inspection.cross_validate(one.mixture, one.queries, folds=4, seed=0), "folds must be from 2 to 3, the queries, not 4"),
        (lambda one: inspection.cross_validate(one.mixture.replace(key_precision=torch.ones(6)), one.queries, folds=2, seed=0), "candidates by default"),
        (lambda one: inspection.cross_validate(models.GaussianKeys(one.keys.unsqueeze(-2), None), one.queries, folds=2, seed=0), "candidates by default"),
        (lambda one: inspection.cross_validate({}, one.queries, folds=2, seed=0), "candidates must not be empty"),
        (lambda one: inspection.cross_validate(one.mixture, one.queries, folds=2, seed=0, present=torch.tensor([True, False, False])), "at least two queries"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(drawn(2, 3))
    assert "\n" not in str(caught.value)


# -- cross validation --------------------------------------------------------------------------------------------------------


def test_held_out_queries_are_scored_by_fits_to_the_others():
    """Against a refit on each training set itself, with the rows of the causal prior picked by hand."""
    one = drawn(2, 7)
    prior = Normal(one.keys, 1.0)
    candidates = {"as it is": one.mixture, "keys": models.bayesian(one.mixture, keys=prior)}
    table = inspection.cross_validate(candidates, one.queries, folds=7, seed=0, num_steps=5, tol=None)
    np.testing.assert_allclose(table.pointwise[0], one.log_evidence())
    for i in range(7):
        rest = [j for j in range(7) if j != i]
        training = one.mixture.replace(log_prior=one.mixture.log_prior[:, rest])
        adapted = inference.adapt(models.bayesian(training, keys=prior), one.queries[:, rest], num_steps=5)
        keys = adapted.formulation.keys
        held_out = one.mixture.replace(keys=keys, log_prior=one.mixture.log_prior[:, [i]])
        assert_equal(torch.tensor(table.pointwise[1, :, i]), held_out.log_evidence(one.queries[:, [i]])[:, 0])
    assert table.names == ("as it is", "keys")


def test_the_table_adds_up():
    one = drawn(3, 12)
    present = torch.ones(3, 12, dtype=torch.bool)
    present[1, 8:] = False
    table = inspection.cross_validate(one.mixture, one.queries, seed=0, folds=4, present=present)
    assert table.names == ("softmax", "shared precision", "precision of each unit", "adapted keys")
    for p, n in enumerate((12, 8, 12)):
        rows = table.pointwise[:, p, :n]
        assert np.isfinite(rows).all() and np.isnan(table.pointwise[:, p, n:]).all()
        np.testing.assert_allclose(table.elpd[:, p], rows.sum(-1))
        np.testing.assert_allclose(table.standard_error[:, p], np.sqrt(n) * rows.std(-1, ddof=1))
        best = rows.sum(-1).argmax()
        np.testing.assert_allclose(table.difference[:, p], rows.sum(-1) - rows[best].sum())
        np.testing.assert_allclose(table.difference_error[:, p], np.sqrt(n) * (rows - rows[best]).std(-1, ddof=1))


@pytest.mark.slow
def test_problems_do_not_learn_from_each_other():
    one = drawn(3, 12)
    both = inspection.cross_validate(one.mixture, one.queries, seed=0, folds=3, tol=None)
    first = one.mixture.replace(keys=one.keys[:1], log_prior=one.mixture.log_prior[:1])
    alone = inspection.cross_validate(first, one.queries[:1], seed=0, folds=3, tol=None)
    np.testing.assert_allclose(alone.pointwise, both.pointwise[:, :1], rtol=ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "best"),
    [
        (lambda one, noise: one.queries, "softmax"),
        (lambda one, noise: one.keys[:, [0]] + noise * 0.1, "precision of each unit"),
        (lambda one, noise: one.queries + 4.0, "adapted keys"),
    ],
    ids=["as assumed", "one tight unit", "elsewhere"],
)
def test_the_formulation_that_made_the_queries_wins(make, best):
    """Sixty queries from what each formulation can say and the simpler ones cannot; where softmax is true it loses to none by
    more than noise."""
    one = drawn(2, 60, causal=False)
    noise = torch.randn(2, 60, 3, generator=torch.Generator().manual_seed(0))
    table = inspection.cross_validate(one.mixture, make(one, noise), seed=0, folds=5)
    row = table.names.index(best)
    if best == "softmax":
        assert (table.difference[row] > -2 * np.maximum(table.difference_error[row], 1e-12)).all()
    else:
        assert (table.difference[row] == 0).all()


def test_a_precision_is_found_by_its_held_out_score():
    one = drawn(1, 80, scale=8 * SCALE, causal=False)
    rate = torch.full((1, 1), 1 / SCALE)
    shared = models.bayesian(one.mixture, key_precision=Gamma(torch.full((1, 1), 2.0), rate))
    table = inspection.cross_validate({"softmax": one.mixture, "shared": shared}, one.queries, seed=0, folds=5)
    gain = -table.difference[0, 0] / 80
    # D/2 log 8 - 7/8 D/2 nats a query where the units lie apart: 1.8 for three coordinates, less where they overlap
    assert 0.3 < gain < 1.8
    assert table.difference[0, 0] < -4 * table.difference_error[0, 0]


def test_checks_are_of_the_best_equivalent_unless_the_raw_one_is_asked_for():
    """By name: what was captured, its best equivalent, one with numbers of one's own, and the mixture as written."""
    raw = drawn(3, 40)
    found = inspection.captured(raw.queries, raw.keys, None, raw.mask, 2 * SCALE, dims=("head",))
    best = inspection.best_equivalent(found)
    how = {"num_draws": 20, "seed": 0}
    by_name = [inspection.query_check(x, **how) for x in (found, best, found.equivalent(best.tilt, best.precision))]
    for check in by_name[1:]:
        np.testing.assert_allclose(check.replicated, by_name[0].replicated, atol=ROUNDING)
    np.testing.assert_allclose(by_name[0].observed[0], best.log_evidence().mean(-1))
    assert (np.abs(by_name[0].z_scores[1]) < 1).all()  # the mean square was fitted
    for one in (found, best, found.raw):
        drawn_from = one.replicate()
        assert drawn_from.mixture is one.mixture and not torch.equal(drawn_from.queries, one.queries)
    as_written = inspection.query_check(found.raw, **how)
    np.testing.assert_allclose(as_written.observed[0], found.raw.mixture.log_evidence(found.queries).mean(-1))
    assert (as_written.observed[0] < by_name[0].observed[0]).all()
    data, written = (inspection.capture_data(x)["captured"]["log_evidence"] for x in (found, found.raw))
    np.testing.assert_allclose(data, best.log_evidence())
    np.testing.assert_allclose(written, found.raw.log_evidence())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:best_equivalent. a head has")  # twelve queries are folds enough
def test_held_out_queries_say_nothing_of_the_equivalent_that_scores_them():
    raw = drawn(2, 12, causal=False)
    found = inspection.captured(raw.queries, 2 * raw.keys + 1, None, None, SCALE, dims=("head",))
    table = inspection.cross_validate(found, folds=12, seed=0, num_steps=2, tol=None)
    for i in range(12):
        rest = [j for j in range(12) if j != i]
        others = inspection.captured(found.queries[:, rest], found.keys, None, None, SCALE, dims=("head",))
        best = inspection.best_equivalent(others)
        scored = found.equivalent(best.tilt, best.precision).log_evidence()[:, i]
        np.testing.assert_allclose(table.pointwise[0, :, i], scored, atol=ROUNDING)
        alternatives = inspection.softmax_alternatives(best.mixture)
        fit = inference.adapt(alternatives["adapted keys"], found.queries[:, rest], num_steps=2).formulation
        np.testing.assert_allclose(table.pointwise[3, :, i], fit.log_evidence(found.queries)[:, i], atol=ROUNDING)
    whole = inspection.best_equivalent(found)
    for one in (found.raw, whole):
        chosen = inspection.cross_validate(one, folds=3, seed=0, num_steps=2, held_out="queries")
        plain = inspection.cross_validate(one.mixture, found.queries, folds=3, seed=0, num_steps=2)
        np.testing.assert_allclose(chosen.pointwise[:4], plain.pointwise)
    full = inspection.best_equivalent(found, "full")
    assert inspection.cross_validate(full, folds=3, seed=0, num_steps=2).elpd.shape == (6, 2)
    with pytest.raises(ValueError, match="queries must be given, unless the candidate was captured"):
        inspection.cross_validate(found, found.queries, seed=0)
    with pytest.raises(ValueError, match="queries must be given, unless the candidate was captured"):
        inspection.cross_validate(found.raw.mixture, seed=0)


@pytest.mark.slow
def test_real_queries_of_a_trained_transformer():
    """What the notebook shows: no head's queries look like draws from its implied mixture, and adapting predicts better."""
    words = "The for statement is used to iterate over the elements of a sequence"
    heads = text_transformer.load().heads(words)
    future = torch.full((len(words), len(words)), -torch.inf).triu(1)
    real = inspection.captured(heads.queries, heads.keys, heads.values, future, dims=("layer", "head")).raw
    check = inspection.query_check(real, num_draws=99, seed=0)
    assert (check.p_values[check.statistics.index("log evidence")] == 0.02).all()
    table = inspection.cross_validate(real.mixture, real.queries, seed=0, folds=5, num_steps=20)
    assert table.elpd.shape == (4, 2, 4)
    assert (table.difference[0] < 0).all()
