"""Maps onto the simplex against their definition, found by bisection, and against autograd of their conjugates."""

import entmax as authors
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import generator
from tolerances import assert_equal

from probtx_pyro.ops.entmax import ENTMAX

POWERS = {"entmax15": 1.5, "sparsemax": 2.0}


def by_bisection(scores, alpha):
    """``p = [(α-1) z - τ]_+^(1/(α-1))`` with τ such that it sums to 1."""
    z = (alpha - 1) * scores
    low, high = z.max() - 1.0, z.max()
    for _ in range(200):
        middle = (low + high) / 2
        total = (z - middle).clamp_min(0).pow(1 / (alpha - 1)).sum()
        low, high = (middle, high) if total > 1 else (low, middle)
    return (z - low).clamp_min(0).pow(1 / (alpha - 1))


@pytest.mark.parametrize("name", POWERS)
@settings(max_examples=40, deadline=None)
@given(scores=st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.3, 0.31, 1.0, 2.0, 50.0]), min_size=1, max_size=7))
def test_each_map_maximises_score_plus_entropy(name, scores):
    z = torch.tensor(scores, dtype=torch.float64)
    assert (ENTMAX[name].function(z) - by_bisection(z, POWERS[name])).abs().max() < 1e-9  # bisection ends at 1e-15 in τ


@pytest.mark.parametrize("name", POWERS)
def test_maps_and_gradients_are_those_of_the_authors(name):
    """The package ``entmax``, in whose place ours stands: a row without units and `torch.func` fail there."""
    z = (3 * torch.randn(200, 9, generator=generator(3))).requires_grad_()
    z.data[::2, 4] = -torch.inf
    weight = torch.randn(200, 9, generator=generator(4))
    ours, theirs = ENTMAX[name].function(z), getattr(authors, name)(z, dim=-1)
    assert_equal(ours, theirs)
    assert_equal(*(torch.autograd.grad((p * weight).sum(), z)[0] for p in (ours, theirs)), operations=512)


@pytest.mark.parametrize("name", ENTMAX)
def test_the_map_is_the_gradient_of_its_conjugate_and_no_other_point_is_higher(name):
    z = 1.5 * torch.randn(50, 6, generator=generator(0))
    z.requires_grad_()
    value = ENTMAX[name].conjugate(z)
    p = ENTMAX[name].function(z).detach()
    (slope,) = torch.autograd.grad(value.sum(), z)
    assert_equal(slope, p, operations=512)
    assert_equal(p.sum(-1), torch.ones(50))
    other = torch.rand(50, 6, generator=generator(1)).pow(3)
    other = other / other.sum(-1, keepdim=True)
    assert (value.detach() - (other * z.detach()).sum(-1) - ENTMAX[name].entropy(other) >= -1e-12).all()
    if name == "softmax":
        assert_equal(value.detach(), z.detach().logsumexp(-1))
    else:
        assert (p == 0).any()


@pytest.mark.parametrize("name", ENTMAX)
def test_masks_translations_and_derivatives(name):
    function = ENTMAX[name].function
    z = torch.randn(20, 5, generator=generator(2))
    masked = torch.cat([z[:, :2], torch.full((20, 1), -torch.inf), z[:, 2:]], 1)
    assert_equal(function(masked), torch.cat([function(z)[:, :2], torch.zeros(20, 1), function(z)[:, 2:]], 1))
    assert_equal(function(z + 1000.0), function(z), torch.tensor(1000.0))
    assert_equal(ENTMAX[name].conjugate(masked), ENTMAX[name].conjugate(z))
    assert torch.autograd.gradcheck(function, z[:3].requires_grad_())


def test_the_gradient_of_sparsemax_stays_on_the_simplex_where_a_score_meets_the_threshold():
    scores = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert torch.autograd.functional.jacobian(ENTMAX["sparsemax"].function, scores).sum(0).tolist() == [0.0, 0.0]
