"""ArviZ's own plots run on our files: they draw, and what they draw are our variables."""

import arviz
import arviz_versions as versions
import matplotlib
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
    "pair": lambda file: versions.plot_pair(file, **KEYS),
    "energy": arviz.plot_energy,
    "autocorr": lambda file: arviz.plot_autocorr(file, **KEYS, max_lag=10),
    "ppc": lambda file: versions.plot_ppc(file, var_names=["queries"]),
    "ppc of answers": lambda file: versions.plot_ppc(file, var_names=["outputs"]),
    "prior ppc": lambda file: versions.plot_ppc(file, group="prior", number=10),
    "prior and posterior": lambda file: versions.plot_prior_posterior(file, var_names=["weights"]),
    "khat": lambda file: arviz.plot_khat(arviz.loo(file, pointwise=True, var_name="joint")),
}
LABELS_ALONE = ("forest", "attention forest", "pair")  # have axes of labels, or corners that stay empty, in 1.x


@pytest.mark.parametrize("name", PLOTS)
@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")  # draws made by hand fit no data
def test_it_draws(name, file):
    drawn = [ax.has_data() for ax in versions.axes(PLOTS[name](file))]
    assert drawn and (any(drawn) if not versions.OLD and name in LABELS_ALONE else all(drawn))


def test_titles_are_our_dims(file):
    titles = [ax.get_title() for ax in versions.axes(versions.plot_trace(file, **KEYS))]
    assert [title for title in dict.fromkeys(titles) if title] == ["keys\n0, 0", "keys\n0, 1"]


def test_loo_pit_takes_labels():
    """Labels are one number a query, so LOO-PIT takes them by name: log likelihood, new labels and labels share their dims."""
    keys = torch.tensor([[-2.0], [2.0]], dtype=DTYPE)
    mixture = models.GaussianMixture.categorical(keys, torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=DTYPE))
    prior = dict(answer_probs=Dirichlet(torch.ones(2, 2, dtype=DTYPE)))
    probs = torch.stack([normal(1, 4, 100, 2).sigmoid()] * 2, -1)
    probs[..., 1] = 1 - probs[..., 0]
    draws = make(models.bayesian(mixture, **prior), {"answer_probs": probs}, (normal(2, 12, 1), torch.arange(12) % 2))
    found = results.to_inference_data(draws, likelihood="answers", seed=1)
    assert all(ax.has_data() for ax in versions.axes(versions.plot_loo_pit(found, "outputs")))


def test_loo_pit_of_one_coordinate():
    """A query is a vector, whose weight all its coordinates share: a file of one coordinate spreads the weights over it."""
    draws = make(bayesian(), samples(draws=60), data()[:1])
    found = results.to_inference_data(draws, seed=1)
    groups = {
        "posterior": {"keys": found["posterior"]["keys"]},
        "log_likelihood": {"queries": found["log_likelihood"]["queries"]},
        **{
            group: {"queries": found[group]["queries"].sel(feature=0)}
            for group in ("posterior_predictive", "observed_data")
        },
    }
    one = results.from_arrays(
        {group: {name: (x.dims, x.values) for name, x in named.items()} for group, named in groups.items()}
    )
    pit = versions.loo_pit(one, "queries")
    assert pit.shape == (5,) and ((pit >= 0) & (pit <= 1)).all()
    assert all(ax.has_data() for ax in versions.axes(versions.plot_loo_pit(one, "queries")))
