"""The two distributions of our own: densities against torch's, draws by goodness of fit."""

import pytest
import torch
from pyro.distributions import Categorical, Dirichlet, MixtureSameFamily, Normal
from scipy import stats
from strategies import generator, problem
from tolerances import FALSE_ALARM_RATE, assert_equal
from torch.distributions import biject_to, constraints, transform_to

from probtx_pyro.models import GaussianMixture
from probtx_pyro.models._distributions import Face, FaceDirichlet, FaceStickBreaking, MixtureDensity


@pytest.mark.parametrize("precision", ["unit", "shared"])
def test_density_of_a_gaussian_mixture_is_torchs_mixture(precision):
    mixture, queries, *_ = problem(generator(1), batch=(2,), rows=5, precision=precision)
    ours = MixtureDensity(mixture, 5)
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


def test_draws_of_a_mixture_fit_its_density():
    log_prior = torch.tensor([[0.2, 0.8]]).log()
    mixture = MixtureDensity(
        GaussianMixture(torch.tensor([[-1.0], [2.0]]), None, torch.tensor([4.0, 0.5]), log_prior=log_prior), 1
    )
    torch.manual_seed(3)
    draws = mixture.sample((5000,)).flatten().cpu().numpy()

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
    assert stats.kstest(draws[:, 0].cpu().numpy(), stats.beta(1.5, 4.0).cdf).pvalue > FALSE_ALARM_RATE
    assert face.log_prob(torch.tensor([0.25, 0.25, 0.25, 0.25])) == -torch.inf
    assert face.expand((3,)).batch_shape == (3,)
    flat = FaceDirichlet(torch.ones(3), torch.tensor([True, True, False]))
    assert_equal(flat.log_prob(torch.tensor([1.0, 0.0, 0.0])), torch.tensor(0.0))


def test_gradient_reaches_the_concentration():
    concentration = torch.tensor([1.5, 2.0, 3.0], requires_grad=True)
    draw = FaceDirichlet(concentration, torch.tensor([True, True, False])).rsample()
    draw[0].backward()
    assert torch.isfinite(concentration.grad).all() and concentration.grad[2] == 0


MASKS = {
    "one row": torch.tensor([True, False, True, True]),
    "rows that differ": torch.tensor(
        [[True, True, False, True], [False, True, False, True], [False, False, True, False]]
    ),
    "one point": torch.tensor([False, True]),
    "nothing masked": torch.tensor([True, True, True]),
}


@pytest.mark.parametrize("case", MASKS)
def test_unconstrained_coordinates_of_a_face_go_there_and_back(case):
    allowed = MASKS[case]
    face = FaceDirichlet(torch.linspace(0.5, 2.0, allowed.shape[-1]), allowed)
    transform = biject_to(face.support)
    x = torch.randn(5, *allowed.shape[:-1], int(allowed.sum(-1).max()) - 1, generator=generator(5))
    y = transform(x)
    assert face.support.check(y).all() and ((y == 0) | allowed).all()
    used = torch.arange(x.shape[-1]) < allowed.sum(-1, keepdim=True) - 1
    assert_equal(transform.inv(y), torch.where(used, x, 0.0), y, operations=1024)  # logarithms of sums of exponentials
    assert transform.inverse_shape(y.shape) == x.shape and transform.forward_shape(x.shape) == y.shape
    uniform = allowed / allowed.sum(-1, keepdim=True)
    assert_equal(transform(torch.zeros_like(x)), uniform.expand_as(y))
    off = (~allowed).double()
    assert not face.support.check(off / off.sum(-1, keepdim=True).clamp_min(1.0)).any()


def test_where_nothing_is_masked_it_is_torchs_stick_breaking():
    ours, theirs = biject_to(Face(torch.ones(4, dtype=torch.bool))), biject_to(constraints.simplex)
    x = 3 * torch.randn(20, 3, generator=generator(6))
    y = theirs(x)
    assert_equal(ours(x), y)
    assert_equal(ours.log_abs_det_jacobian(x, y), theirs.log_abs_det_jacobian(x, y), operations=256)
    assert_equal(ours.inv(y), theirs.inv(y), operations=4096)  # theirs subtracts from 1


def test_jacobian_of_a_face_is_the_derivative_of_the_allowed_coordinates():
    transform = biject_to(Face(MASKS["rows that differ"]))
    x = torch.randn(3, 2, generator=generator(7))
    log_density = transform.log_abs_det_jacobian(x, transform(x))
    for row, allowed in enumerate(MASKS["rows that differ"]):
        free = int(allowed.sum()) - 1
        columns = allowed.nonzero().flatten()[:free]
        jacobian = torch.autograd.functional.jacobian(lambda z, row=row: transform(z)[row], x)[:, row, :]
        volume = jacobian[columns][:, :free].det().abs().log() if free else torch.tensor(0.0)
        idle = Normal(0.0, 1.0).log_prob(x[row, free:]).sum()  # coordinates that move nothing
        assert_equal(log_density[row], volume + idle)


@pytest.mark.slow
def test_density_of_a_face_integrates_to_one_over_unconstrained_coordinates():
    allowed = MASKS["rows that differ"]
    face = FaceDirichlet(torch.tensor([0.7, 1.5, 3.0, 2.0]), allowed)
    transform = biject_to(face.support)
    grid = torch.linspace(-40, 40, 801)  # the heaviest tail decays as exp(-0.7 |x|): e^-28 is left out
    x = torch.cartesian_prod(grid, grid).unsqueeze(1).expand(-1, 3, 2)
    y = transform(x)
    density = (face.log_prob(y) + transform.log_abs_det_jacobian(x, y)).exp()
    total = density.sum(0) * (grid[1] - grid[0]) ** 2
    # the trapezium rule on a smooth, decaying function; its error at spacing 0.1 is below rounding of 640,000 terms
    assert_equal(total, torch.ones(3), operations=640_000)


def test_a_face_serves_optimisers_too():
    face = Face(MASKS["one row"])
    assert isinstance(transform_to(face), FaceStickBreaking) and transform_to(face) == biject_to(face)
    assert biject_to(face) != biject_to(Face(MASKS["nothing masked"]))
    x = torch.zeros(2, requires_grad=True)
    transform_to(face)(x)[0].backward()
    assert torch.isfinite(x.grad).all() and x.grad.abs().sum() > 0
