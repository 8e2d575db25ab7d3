"""Draws as a formulation: at one draw, at the draw of the highest log density, at the means."""

import pyro
import pytest
import torch
from draws_by_hand import DTYPE, bayesian, data, make, samples
from pyro.distributions import LogNormal, Normal
from tolerances import assert_equal

from probtx_pyro import inference, models, results


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_draw_and_the_means_are_formulations(batch):
    draws = make(bayesian(batch), samples(batch, draws=9), data(batch))
    one = draws.formulation((2, -1))
    assert torch.equal(one.keys, draws.samples["keys"][2, 8]) and one.batch_shape == batch
    assert_equal(one.parameter("weights"), draws.samples["weights"][2, 8])
    assert torch.equal(one.key_precision, draws.program.formulation.key_precision)  # which has no prior
    mean = draws.formulation()
    assert torch.equal(mean.values, draws.samples["values"].mean((0, 1)))
    assert_equal(mean.log_prior.logsumexp(-1), torch.zeros(*batch, 1, dtype=DTYPE))
    chain, draw = (draws.statistics["lp"] == draws.statistics["lp"].max()).nonzero()[0].tolist()
    assert torch.equal(draws.formulation("highest").keys, draws.samples["keys"][chain, draw])


def test_the_mean_of_relabelled_draws_keeps_its_units_apart():
    given = samples(chains=2, draws=40)
    given["keys"][1] = given["keys"][1].flip(1)
    given["values"][1], given["weights"][1] = given["values"][1].flip(1), given["weights"][1].flip(-1)
    draws = make(bayesian(), given, data()[:1])
    assert (draws.formulation().keys.std(0) < 0.3).any()  # the first and the last unit meet in the middle
    # units stand 3 apart; the mean of 80 numbers of standard deviation 0.3 is within 0.2 of them
    centres = sorted(results.relabel(draws).formulation().keys[:, 0].tolist())
    assert centres == pytest.approx([0.0, 3.0, 6.0], abs=0.2)


@pytest.mark.slow
def test_hyperparameters_are_no_parameters_of_a_formulation():
    def keys():
        return Normal(0.0, pyro.sample("spread", LogNormal(0.0, 0.3))).expand([3, 2])

    program = models.bayesian(models.GaussianMixture(torch.randn(3, 2)), keys=keys)
    draws = inference.nuts(program, torch.randn(5, 2), num_samples=4, num_warmup=4, num_chains=1, seed=0)
    assert torch.equal(draws.formulation((0, 1)).keys, draws.samples["keys"][0, 1])


@pytest.mark.parametrize("at", [(4, 0), (0, 9), (0,), "median", 3, (0, "x"), (0, 0.5)])
def test_a_place_that_is_not_there_is_refused(at):
    draws = make(bayesian(), samples(draws=9), data())
    with pytest.raises(ValueError, match=r"^at must be 'mean', 'highest' or \(chain, draw\) within \(4, 9\), not "):
        draws.formulation(at)


def test_draws_of_another_program_have_no_formulation():
    draws = make(bayesian(), samples(draws=9), data())
    with pytest.raises(ValueError, match=r"only draws of a program made by models\.bayesian"):
        draws._replace(program=print).formulation()


@pytest.mark.filterwarnings("error")
def test_the_summary_of_a_single_draw_has_no_spread():
    rows = make(bayesian(), samples(chains=1, draws=1), data()).summary(most=1).splitlines()
    keys = next(row for row in rows if row.startswith("keys[0, 0]")).split()[2:]
    mean, spread, low, high = keys
    assert spread == "nan" and mean == low == high
