"""Gradients through adaptation: unrolled, implicit, finite differences; the priors' own parameters are learnable."""

import pytest
import torch
from pyro.distributions import Dirichlet, Gamma, Normal
from strategies import generator, problem

from probtx_pyro import inference, models

TIGHT = {"num_steps": 5000, "tol": 1e-14}


def adapted_loss(mixture, args, theta, shape, concentration, means, **options):
    priors = dict(keys=Normal(means, theta.rsqrt()), key_precision=Gamma(shape, torch.tensor(1.5)), values=Normal(mixture.values, 1.0), value_precision=Gamma(shape, torch.tensor(0.7)), weights=Dirichlet(concentration))  # fmt: skip
    fit = inference.adapt(models.bayesian(mixture, **priors), args[0], *args[1:], **options)
    return fit.formulation.expected_outputs(args[0] * 0.7).square().sum() + fit.formulation.log_evidence(
        args[0]
    ).sum(), fit


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (2,)])
def test_implicit_is_unrolled_at_convergence(batch):
    mixture, *args = problem(generator(1), batch=batch, queries=6, units=3)
    leaves = [torch.tensor(0.9), torch.tensor(2.5), torch.full((1, 3), 2.0), mixture.keys.clone(), args[0].clone()]
    gradients, values = [], []
    for implicit in (False, True):
        theta, shape, concentration, means, queries = (x.clone().requires_grad_() for x in leaves)
        loss, fit = adapted_loss(
            mixture, [queries, *args[1:]], theta, shape, concentration, means, implicit=implicit, **TIGHT
        )
        assert fit.converged.all()
        gradients.append(torch.autograd.grad(loss, [theta, shape, concentration, means, queries]))
        values.append(loss.detach())
    assert (values[0] - values[1]).abs() < 1e-10
    for unrolled, implicit in zip(*gradients, strict=True):
        # the iteration stops at 1e-14 of the parameters; its contraction (here above 0.9) and the loss amplify that
        assert (unrolled - implicit).abs().max() < 1e-8 * max(1.0, float(unrolled.abs().max()))


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.slow
def test_gradcheck_through_adaptation(implicit):
    mixture, *args = problem(generator(2), queries=5, units=2, features=2, answers=1)
    mixture = mixture.replace(keys=2 * mixture.keys)

    def loss(theta, shape, means):
        return adapted_loss(mixture, args, theta, shape, torch.full((1, 2), 2.0), means, implicit=implicit, **TIGHT)[0]

    inputs = [
        torch.tensor(1.5, requires_grad=True),
        torch.tensor(2.5, requires_grad=True),
        mixture.keys.clone().requires_grad_(),
    ]
    assert torch.autograd.gradcheck(loss, inputs, eps=1e-5, atol=1e-5)


def test_few_unrolled_steps_are_differentiable_where_they_stand():
    mixture, *args = problem(generator(3), queries=5, units=2, features=2)

    def loss(theta):
        return adapted_loss(
            mixture, args, theta, torch.tensor(2.5), torch.full((1, 2), 2.0), mixture.keys, num_steps=3
        )[0]

    assert torch.autograd.gradcheck(loss, [torch.tensor(1.5, requires_grad=True)])


def test_implicit_away_from_the_fixed_point_warns():
    mixture, *args = problem(generator(4))
    with pytest.warns(UserWarning, match="raise num_steps"):
        adapted_loss(
            mixture,
            args,
            torch.tensor(1.0, requires_grad=True),
            torch.tensor(2.0),
            torch.full((1, 4), 2.0),
            mixture.keys,
            num_steps=1,
            implicit=True,
        )


def test_flat_prior_forgets_the_start():
    mixture, queries, *_ = problem(generator(5), queries=8, units=2)
    start = mixture.keys.clone().requires_grad_()
    fit = inference.adapt(
        models.bayesian(mixture.with_parameters({"keys": start}), keys=models.FLAT), queries, num_steps=5000, tol=1e-14
    )
    (gradient,) = torch.autograd.grad(fit.formulation.keys.sum(), start)
    assert gradient.abs().max() < 1e-6  # contracted once a step, stopped at 1e-14


def test_a_flat_direction_is_refused_in_the_backward_pass():
    from probtx_pyro.ops import fixed_point

    theta = torch.tensor(1.0, requires_grad=True)
    found = fixed_point(
        lambda s: ({"x": s["x"] + 0 * theta}, None), {"x": torch.tensor([1.0])}, num_steps=3, implicit=True
    )
    with pytest.raises(RuntimeError, match="singular"):
        found.state["x"].sum().backward()


@pytest.mark.slow
def test_prior_strength_is_learned_through_adaptation():
    """Queries move by a shift that keys should follow: gradient descent on held-out evidence finds a weaker prior."""
    mixture, queries, *_ = problem(generator(6), queries=40, units=3)
    shifted, held_out = queries[:20] + 1.0, queries[20:] + 1.0
    log_theta = torch.tensor(5.0, requires_grad=True)
    optimizer = torch.optim.Adam([log_theta], lr=0.2)
    losses = []
    for _ in range(40):
        fit = inference.adapt(
            models.bayesian(mixture, keys=Normal(mixture.keys, (-log_theta / 2).exp())),
            shifted,
            num_steps=100,
            tol=1e-9,
            implicit=True,
        )
        loss = -fit.formulation.log_evidence(held_out).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.1 and log_theta < 4.0
