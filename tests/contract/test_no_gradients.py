"""Inside ``torch.no_grad`` and ``torch.inference_mode`` numbers are the same, or one line says what needs gradients."""

import warnings

import pytest
import torch
from formulations import ROWS, priors_of
from strategies import generator

from probtx_pyro import inference, models, nn
from probtx_pyro.ops.tree_distribution import tree_marginals

QUIET = {"progress": False}
MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
FORMS = {
    **{name: lambda x, cls=cls: cls(8, 2, batch_first=True)(x, x, x, need_weights=False)[0] for name, cls in nn.ATTENTIONS.items()},
    "adapted units": lambda x: nn.GaussianMixtureAttention(8, 2, batch_first=True, adapt=nn.Adapt(steps=30))(x, x, x)[0],
    "adapted units, implicit": lambda x: nn.GaussianMixtureAttention(8, 2, batch_first=True, adapt=nn.Adapt(steps=30, implicit=True))(x, x, x)[0],
    "dependency CRF": lambda x: nn.DependencyCRFEncoder(8, 2)(x),
    "mean field, implicit": lambda x: models.DependencyCRF(x, x.new_ones(2, 2, 8, 8)).mean_field(50, implicit=True).label_marginals,
    "trees": lambda x: tree_marginals(x[..., :6]),
    "log partition": lambda x: models.DependencyCRF(x[0, :3, :2], x.new_ones(1, 2, 2, 2)).log_partition(),
}  # fmt: skip


@modes
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_are_the_same(form, mode):
    x, found = torch.randn(2, 5, 8, generator=generator(1)), []
    for context in (torch.enable_grad, mode):
        torch.manual_seed(0)
        with context():
            found.append(form(x.clone()))
    assert torch.equal(*found)


VERBS = {
    "ecm": lambda p, q: inference.adapt(p, q, num_steps=3, **QUIET).formulation.keys,
    "gibbs": lambda p, q: inference.gibbs(p, q, num_samples=3, num_warmup=2, num_chains=1, seed=0, **QUIET).samples[
        "keys"
    ],
    "nuts": lambda p, q: inference.nuts(p, q, num_samples=3, num_warmup=3, num_chains=1, seed=0, **QUIET).samples[
        "keys"
    ],
    "variational": lambda p, q: inference.variational(p, q, num_steps=3, num_samples=3, seed=0, **QUIET).draws.samples[
        "keys"
    ],
}
NEED_GRADIENTS = "gibbs", "nuts", "variational"  # Gibbs for its start, a mode


@modes
@pytest.mark.parametrize("name", VERBS)
def test_verbs_are_the_same_or_say_that_they_need_gradients(name, mode):
    mixture, queries, *_ = ROWS["gaussian mixture"].draw(generator(2))
    posterior = models.bayesian(mixture, **priors_of(mixture))
    with warnings.catch_warnings(action="ignore"):
        expected = VERBS[name](posterior, queries)
        with mode():
            if mode is torch.inference_mode and name in NEED_GRADIENTS:
                with pytest.raises(RuntimeError, match="instead"):
                    VERBS[name](posterior, queries)
            else:
                assert torch.equal(VERBS[name](posterior, queries), expected)
