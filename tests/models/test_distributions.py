"""The two distributions of our own: densities against torch's, draws by goodness of fit."""

import pytest
import torch
from pyro.distributions import Categorical, Dirichlet, MixtureSameFamily, Normal
from scipy import stats
from strategies import generator, problem
from tolerances import FALSE_ALARM_RATE, assert_equal

from probtx_pyro.models import FaceDirichlet, IsotropicMixture


@pytest.mark.parametrize("precision", ["unit", "shared"])
def test_isotropic_mixture_is_torchs_mixture(precision):
    mixture, queries, *_ = problem(generator(1), batch=(2,), rows=5, precision=precision)
    ours = IsotropicMixture(mixture.log_prior, mixture.keys, mixture.key_precision, 5)
    scale = mixture.key_precision.expand(2, 4).rsqrt()[:, None, :, None].expand(2, 5, 4, 3)
    theirs = MixtureSameFamily(
        Categorical(logits=mixture.log_prior), Normal(mixture.keys[:, None].expand(2, 5, 4, 3), scale).to_event(1)
    )
    assert ours.batch_shape == theirs.batch_shape and ours.event_shape == theirs.event_shape
    assert_equal(ours.log_prob(queries), theirs.log_prob(queries))
    assert_equal(ours.mean, theirs.mean)
    draws = torch.randn(7, 2, 5, 3, generator=generator(2))
    assert_equal(ours.log_prob(draws), theirs.log_prob(draws))
    assert_equal(ours.expand((6, 2, 5)).log_prob(queries), theirs.log_prob(queries).expand(6, 2, 5))


def test_isotropic_mixture_draws_fit_its_density():
    mixture = IsotropicMixture(
        torch.tensor([[0.2, 0.8]]).log(), torch.tensor([[-1.0], [2.0]]), torch.tensor([4.0, 0.5]), 1
    )
    torch.manual_seed(3)
    draws = mixture.sample((5000,)).flatten().numpy()

    def cdf(x):
        return 0.2 * stats.norm.cdf(x, -1, 0.5) + 0.8 * stats.norm.cdf(x, 2, 2**0.5)

    assert stats.kstest(draws, cdf).pvalue > FALSE_ALARM_RATE
    assert stats.kstest(draws + 0.3, cdf).pvalue < FALSE_ALARM_RATE  # the check can fail


def test_face_dirichlet_is_a_dirichlet_of_fewer_coordinates():
    allowed = torch.tensor([True, False, True, True])
    concentration = torch.tensor([1.5, 9.0, 1.0, 3.0])
    face, small = FaceDirichlet(concentration, allowed), Dirichlet(concentration[allowed])
    torch.manual_seed(4)
    draws = face.sample((4000,))
    assert (draws[:, 1] == 0).all()
    assert_equal(draws.sum(-1), torch.ones(4000))
    assert_equal(face.log_prob(draws), small.log_prob(draws[:, allowed]))
    assert_equal(face.mean[allowed], small.mean)
    assert stats.kstest(draws[:, 0].numpy(), stats.beta(1.5, 4.0).cdf).pvalue > FALSE_ALARM_RATE
    assert face.log_prob(torch.tensor([0.25, 0.25, 0.25, 0.25])) == -torch.inf
    assert face.expand((3,)).batch_shape == (3,)
    flat = FaceDirichlet(torch.ones(3), torch.tensor([True, True, False]))
    assert_equal(flat.log_prob(torch.tensor([1.0, 0.0, 0.0])), torch.tensor(0.0))


def test_gradient_reaches_the_concentration():
    concentration = torch.tensor([1.5, 2.0, 3.0], requires_grad=True)
    draw = FaceDirichlet(concentration, torch.tensor([True, True, False])).rsample()
    draw[0].backward()
    assert torch.isfinite(concentration.grad).all() and concentration.grad[2] == 0
