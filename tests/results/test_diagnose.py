"""The verdict on draws whose faults are planted. This file imports neither torch nor pyro: it also runs under ArviZ 1.x."""

import subprocess
import sys

import arviz
import numpy as np
import pytest

from probtx_pyro import results

MANY = ("chain", "draw")


def posterior(**variables):
    return {"posterior": {name: (dims, x) for name, (dims, x) in variables.items()}}


def good(seed=0, *shape):
    return np.random.default_rng(seed).normal(size=(4, 500, *shape))


def check(verdict, name):
    (found,) = (one for one in verdict.checks if one.name == name)
    return found


def file(attrs=None, likelihood=None, **statistics):
    keys = good(0, 3, 2)
    groups = posterior(keys=((*MANY, "unit", "feature"), keys))
    groups["sample_stats"] = {name: (MANY, x) for name, x in statistics.items()}
    groups["log_likelihood"] = {} if likelihood is None else {"queries": ((*MANY, "query"), likelihood)}
    return results.from_arrays(groups, attrs=attrs)


def test_good_draws_pass():
    rng = np.random.default_rng(1)
    data = file(
        likelihood=-1 + 0.1 * rng.normal(size=(4, 500, 6)),
        diverging=np.zeros((4, 500), bool),
        energy=rng.normal(size=(4, 500)),
    )
    verdict = results.diagnose(data)
    assert verdict.ok and verdict.skipped == ()
    names = [one.name for one in verdict.checks]
    assert names == ["R-hat", "bulk ESS", "tail ESS", "divergences", "BFMI", "Pareto k"]
    assert str(verdict).startswith("These draws may be used.") and "What to do" not in str(verdict)


def test_the_worst_is_named_in_words():
    keys = good(0, 4, 2)
    keys[2, :, 3, 1] += 1.0
    groups = posterior(keys=((*MANY, "unit", "feature"), keys), values=(MANY, good(1)))
    found = check(results.diagnose(results.from_arrays(groups)), "R-hat")
    assert not found.ok and found.where == "keys[unit=3, feature=1]"
    assert found.value == pytest.approx(float(arviz.rhat(keys[..., 3, 1])), abs=1e-12)
    labelled = results.from_arrays(groups, {"unit": ["a", "b", "c", "d"]})
    assert check(results.diagnose(labelled), "R-hat").where == "keys[unit=d, feature=1]"


def test_slow_chains_have_too_few_effective_draws():
    noise, walk = good(2), good(3)
    for i in range(1, 500):
        walk[:, i] += 0.95 * walk[:, i - 1]
    verdict = results.diagnose(results.from_arrays(posterior(x=(MANY, noise), y=(MANY, walk))))
    bulk = check(verdict, "bulk ESS")
    assert not bulk.ok and bulk.where == "y" and bulk.value < 400
    assert bulk.value == pytest.approx(float(arviz.ess(walk, method="bulk")))
    tail = check(verdict, "tail ESS")
    assert tail.value == pytest.approx(float(arviz.ess(walk, method="tail", prob=(0.05, 0.95))))
    assert f"draw about {int(np.ceil(400 / bulk.value))} times as many" in str(verdict)


def test_heavy_tails_that_the_classic_rhat_does_not_see():
    """Four Cauchy chains, one ten times as wide: the classic split R-hat, which Pyro prints, calls them converged."""
    chains = np.random.default_rng(4).standard_cauchy(size=(4, 500))
    chains[3] *= 10
    halves = chains.reshape(8, 250)
    within, between = halves.var(1, ddof=1).mean(), 250 * halves.mean(1).var(ddof=1)
    assert np.sqrt((249 / 250 * within + between / 250) / within) < 1.01
    found = check(results.diagnose(results.from_arrays(posterior(x=(MANY, chains)))), "R-hat")
    assert not found.ok and found.value > 1.05


def test_divergences_and_energy_are_counted():
    diverging = np.zeros((4, 500), bool)
    diverging[2, :5] = True
    energy = np.random.default_rng(5).normal(size=(4, 500))
    energy[1] = np.cumsum(energy[1])
    verdict = results.diagnose(file(diverging=diverging, energy=energy))
    found = check(verdict, "divergences")
    assert (found.value, found.where, found.ok) == (5, "chain 2", False)
    expected = np.square(np.diff(energy[1])).mean() / energy[1].var()
    bfmi = check(verdict, "BFMI")
    assert bfmi.where == "chain 1" and not bfmi.ok and bfmi.value == pytest.approx(expected)
    for advice in ("raise target_accept,", "explored slowly"):
        assert advice in str(verdict)
    assert not verdict.ok and "2 of 5 checks fail" in str(verdict)


def test_an_outlier_has_a_high_pareto_k():
    """One query's likelihood is small and heavy-tailed: importance weights without a mean, k = 2 in the tail."""
    rng = np.random.default_rng(6)
    likelihood = -1 + 0.1 * rng.normal(size=(4, 500, 6))
    likelihood[..., 4] = 2 * np.log(rng.uniform(size=(4, 500)))
    found = check(results.diagnose(file(likelihood=likelihood)), "Pareto k")
    assert not found.ok and found.where == "queries[query=4]" and found.value > 0.7
    assert found.bound == "< 0.7"  # 1 - 1 / log10(2000) = 0.697
    assert check(results.diagnose(file(likelihood=likelihood), pareto_k=9.0), "Pareto k").ok


def test_constant_variables_are_left_out():
    keys = good(7, 3)
    keys[..., 1] = 0.25
    groups = posterior(keys=((*MANY, "unit"), keys), fixed=(MANY, np.full((4, 500), 0.1)))
    verdict = results.diagnose(results.from_arrays(groups))
    assert verdict.ok and "fixed: constant in all draws" in verdict.skipped
    assert all(np.isfinite(one.value) for one in verdict.checks)


def test_chains_that_never_move_are_the_worst_not_nothing():
    """Each chain stands still, at a place of its own: R-hat has no finite value, and that is a failure."""
    stuck = np.repeat(np.arange(4.0)[:, None], 500, 1)
    verdict = results.diagnose(results.from_arrays(posterior(x=(MANY, stuck), y=(MANY, good(8)))))
    assert not verdict.ok and check(verdict, "R-hat").where == "x" and check(verdict, "R-hat").value > 1e3
    assert check(verdict, "bulk ESS").where == "x"


def test_nan_is_a_failure():
    broken = good(9, 2)
    broken[1, 7, 1] = np.nan
    verdict = results.diagnose(results.from_arrays(posterior(x=((*MANY, "unit"), broken))))
    assert not verdict.ok and check(verdict, "finite").where == "x[unit=1]"
    assert check(verdict, "R-hat").ok


def test_one_chain_and_draws_of_a_guide():
    one = posterior(x=(MANY, good(10)[:1]))
    found = check(results.diagnose(results.from_arrays(one)), "R-hat")
    assert not found.ok and np.isnan(found.value) and "run 4, from different starts" in found.advice
    verdict = results.diagnose(results.from_arrays(one, attrs={"approximation": "AutoNormal"}))
    assert not verdict.ok and [x.name for x in verdict.checks] == ["R-hat"]
    assert "R-hat has no meaning for independent draws of a guide (AutoNormal)" in str(verdict)


def test_files_made_elsewhere():
    groups = {"posterior": {"mu": good(11, 2)}, "sample_stats": {"diverging": np.zeros((4, 500), bool)}}
    old = int(arviz.__version__.split(".")[0]) < 1
    verdict = results.diagnose(arviz.from_dict(**groups) if old else arviz.from_dict(groups))
    assert verdict.ok
    assert set(verdict.skipped) == {"energy: the sampler recorded none", "Pareto k: there is no group log_likelihood"}


def test_attention_is_checked_where_it_is_named():
    attention = good(12, 2, 3)
    attention[0] += 1
    dims = (*MANY, "query", "unit")
    data = results.from_arrays(posterior(attention=(dims, attention), keys=((*MANY, "unit"), good(13, 3))))
    assert results.diagnose(data).ok
    assert check(results.diagnose(data, var_names=["attention"]), "R-hat").where.startswith("attention[query=")
    assert results.diagnose(data, var_names="attention") == results.diagnose(data, var_names=["attention"])


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            {"point_estimate": {"keys": (("unit",), np.zeros(3))}},
            {},
            "data has no group 'posterior', only point_estimate",
        ),
        (posterior(x=(MANY, np.zeros((4, 3)))), {}, "data: 3 draws a chain are too few to check"),
        (posterior(x=(MANY, np.zeros((4, 9)))), {"var_names": ["y"]}, "the posterior has no 'y'; choose from x"),
    ],
)
def test_errors_name_the_argument(data, options, message):
    with pytest.raises(ValueError, match=message):
        results.diagnose(results.from_arrays(data), **options)


@pytest.mark.slow
def test_relabelling_of_files_needs_no_torch():
    code = (
        "import sys; from probtx_pyro import results; results.diagnose, results.relabel; print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
    keys = np.array([-2.0, 0.0, 2.0]) + 0.1 * good(14, 3)
    planted = keys.copy()
    planted[1] = keys[1][:, [2, 0, 1]]
    groups = posterior(keys=((*MANY, "unit"), planted))
    marked = groups | {"constant_data": {"exchangeable_units": (("unit",), np.zeros(3, int))}}
    for data, options in (
        (results.from_arrays(groups), {"exchangeable": {"unit": [0, 0, 0]}}),
        (results.from_arrays(marked), {}),
    ):
        relabelled = results.relabel(data, {"keys": [-2.0, 0.0, 2.0]}, **options)
        np.testing.assert_array_equal(relabelled["posterior"]["keys"].values, keys)
        assert not results.diagnose(data).ok and results.diagnose(relabelled).ok


def test_so_few_draws_that_no_tail_is_left_have_an_infinite_k():
    """ArviZ 1.3 ends in an IndexError."""
    groups = {
        "posterior": {"keys": (MANY, np.random.default_rng(4).normal(size=(1, 4)))},
        "log_likelihood": {"queries": ((*MANY, "query"), np.random.default_rng(3).normal(size=(1, 4, 2)))},
    }
    assert check(results.diagnose(results.from_arrays(groups)), "Pareto k").value == np.inf


@pytest.mark.parametrize("likelihood", ["few draws", "constant"])
def test_a_likelihood_that_has_no_tail_fails_the_check(likelihood):
    """ArviZ 1.x refuses to smooth such weights, 0.x finds an infinite k: the verdict is the same."""
    draws = 5 if likelihood == "few draws" else 500
    values = np.random.default_rng(3).normal(size=(4, draws, 3)) * (1.0 if likelihood == "few draws" else [1, 0, 1])
    groups = {
        "posterior": {"keys": ((*MANY, "unit"), np.random.default_rng(4).normal(size=(4, draws, 2)))},
        "log_likelihood": {"queries": ((*MANY, "query"), values)},
    }
    found = check(results.diagnose(results.from_arrays(groups)), "Pareto k")
    assert not found.ok and found.value == np.inf
    assert likelihood == "few draws" or found.where == "queries[query=1]"


def test_a_likelihood_without_an_observation_is_not_checked():
    verdict = results.diagnose(file(likelihood=np.zeros((4, 500, 0))))
    assert "Pareto k" not in [x.name for x in verdict.checks]
    assert "Pareto k: queries has no observation" in verdict.skipped
