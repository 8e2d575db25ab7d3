"""ArviZ's own plots run on our files: they draw, and what they draw are our variables."""

import arviz
import matplotlib
import numpy as np
import pytest
import torch
from draws_by_hand import DTYPE, bayesian, data, make, normal, samples
from matplotlib import pyplot
from pyro.distributions import Dirichlet

from probtx_pyro import models, results

# matplotlib 3.11 announces a change to what arviz 0.23 calls: not ours to mend
pytestmark = pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping:DeprecationWarning")
KEYS = {"var_names": ["keys"], "coords": {"unit": [0]}}


@pytest.fixture(scope="module")
def file():
    energy = {"energy": normal(3, 4, 60), "diverging": torch.zeros(4, 60, dtype=torch.bool)}
    draws = make(bayesian(), samples(draws=60), data()[:2], **energy)
    return results.to_inference_data(draws, seed=1, prior=20)


@pytest.fixture(autouse=True)
def _closed(monkeypatch):
    matplotlib.use("Agg")
    yield
    pyplot.close("all")


PLOTS = {
    "trace": lambda file: arviz.plot_trace(file, **KEYS),
    "rank": lambda file: arviz.plot_rank(file, **KEYS),
    "forest": lambda file: arviz.plot_forest(file, **KEYS, combined=True),
    "attention forest": lambda file: arviz.plot_forest(file, var_names=["attention"], coords={"query": [0]}),
    "pair": lambda file: arviz.plot_pair(file, **KEYS, divergences=True),
    "energy": arviz.plot_energy,
    "autocorr": lambda file: arviz.plot_autocorr(file, **KEYS, max_lag=10),
    "ppc": lambda file: arviz.plot_ppc(file, var_names=["queries"], num_pp_samples=20, random_seed=1),
    "ppc of answers": lambda file: arviz.plot_ppc(file, var_names=["outputs"], num_pp_samples=20, random_seed=1),
    "prior ppc": lambda file: arviz.plot_ppc(file, group="prior", num_pp_samples=10, random_seed=1),
    "prior and posterior": lambda file: arviz.plot_dist_comparison(file, var_names=["weights"]),
    "khat": lambda file: arviz.plot_khat(arviz.loo(file, pointwise=True)),
}


@pytest.mark.parametrize("name", PLOTS)
@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")  # draws made by hand fit no data
def test_it_draws(name, file):
    axes = np.atleast_1d(np.asarray(PLOTS[name](file), object)).ravel()
    assert len(axes) and all(ax.has_data() for ax in axes if ax.get_visible())


def test_titles_are_our_dims(file):
    axes = arviz.plot_trace(file, **KEYS, compact=False)
    assert axes[0, 0].get_title() == "keys\n0, 0" and axes[1, 0].get_title() == "keys\n0, 1"


def test_loo_pit_takes_labels():
    """Labels are one number a query, so LOO-PIT takes them by name: log likelihood, new labels and labels share their dims."""
    keys = torch.tensor([[-2.0], [2.0]], dtype=DTYPE)
    mixture = models.GaussianMixture.categorical(keys, torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=DTYPE))
    prior = models.MixturePriors(answer_probs=Dirichlet(torch.ones(2, 2, dtype=DTYPE)))
    probs = torch.stack([normal(1, 4, 100, 2).sigmoid()] * 2, -1)
    probs[..., 1] = 1 - probs[..., 0]
    draws = make(models.bayesian(mixture, prior), {"answer_probs": probs}, (normal(2, 12, 1), torch.arange(12) % 2))
    found = results.to_inference_data(draws, likelihood="answers", seed=1)
    assert arviz.plot_loo_pit(found, y="outputs", ecdf=True).has_data()


def test_loo_pit_of_one_coordinate():
    """A query is a vector, whose weight all its coordinates share: one line spreads the weights over a coordinate."""
    draws = make(bayesian(), samples(draws=60), data()[:1])
    found = results.to_inference_data(draws, seed=1)
    likelihood = found["log_likelihood"]["queries"].stack(__sample__=("chain", "draw"))
    weights = arviz.psislw(-likelihood)[0]
    new = found["posterior_predictive"]["queries"].sel(feature=0).stack(__sample__=("chain", "draw"))
    y = found["observed_data"]["queries"].sel(feature=0)
    pit = arviz.loo_pit(y=y, y_hat=new, log_weights=weights)
    assert pit.shape == (5,) and ((pit >= 0) & (pit <= 1)).all()
    assert arviz.plot_loo_pit(y=y, y_hat=new, log_weights=weights).has_data()
