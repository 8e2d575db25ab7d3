"""The one iteration loop: tolerance, freezing, the trace, the progress bar."""

import pytest
import torch
from tolerances import assert_equal

from probtx_pyro.ops import fixed_point


def halve(state):
    return {"x": state["x"] / 2}, state["x"].square().sum(-1)


def test_each_problem_stops_by_itself():
    rate = torch.tensor([0.5, 0.9])
    start = {"x": torch.ones(2, 3)}
    found = fixed_point(
        lambda s: ({"x": 1 + rate[:, None] * (s["x"] - 1) + 0 * s["x"]}, None),
        {"x": start["x"] + 1},
        problems=(2,),
        num_steps=500,
        tol=1e-6,
    )
    assert found.converged.all() and found.num_steps[0] < 25 < found.num_steps[1] < 200
    for i in range(2):
        alone = fixed_point(
            lambda s, i=i: ({"x": 1 + rate[i] * (s["x"] - 1)}, None), {"x": start["x"][i] + 1}, num_steps=500, tol=1e-6
        )
        assert alone.num_steps == found.num_steps[i]
        assert_equal(found.state["x"][i], alone.state["x"])


def test_trace_has_every_state_the_last_included():
    found = fixed_point(halve, {"x": torch.ones(2)}, num_steps=3, objective=lambda s: s["x"].square().sum(-1))
    assert_equal(found.objective, torch.tensor([2.0, 0.5, 0.125, 0.03125]))
    assert not found.converged and found.num_steps == 3


def test_a_run_towards_zero_converges():
    found = fixed_point(halve, {"x": torch.ones(2)}, num_steps=100, tol=1e-6)
    assert found.converged and found.num_steps < 30


def test_one_problem_of_several_tensors_waits_for_the_slowest():
    found = fixed_point(
        lambda s: ({"x": s["x"], "y": s["y"] * 0.5}, None),
        {"x": torch.ones(3), "y": torch.ones(())},
        num_steps=100,
        tol=1e-3,
    )
    assert found.num_steps == 10  # step k moves by 2^-k, and 2^-10 is the first below 1e-3 of the largest value, 1


def test_the_order_of_the_tensors_does_not_matter():
    """A tolerance is a share of the largest magnitude that the tensor itself has shown, not another one's."""

    def step(state, order):
        new = {"large": state["large"], "small": state["small"] * 0.5}
        return {name: new[name] for name in order}, None

    taken = []
    for order in (("large", "small"), ("small", "large")):
        start = {"large": torch.tensor(1e6), "small": torch.ones(())}
        found = fixed_point(lambda state, order=order: step(state, order), start, num_steps=100, tol=1e-3)
        taken.append(found.num_steps)
    assert taken[0] == taken[1] == 10  # step k moves by 2^-k, and 2^-10 is the first below 1e-3


def test_progress_bar_can_be_shown_and_hidden(capfd):
    fixed_point(halve, {"x": torch.ones(2)}, num_steps=3, progress=True, label="halving")
    assert "halving" in capfd.readouterr().err
    fixed_point(halve, {"x": torch.ones(2)}, num_steps=3, progress=False)
    fixed_point(halve, {"x": torch.ones(2)}, num_steps=3)
    assert capfd.readouterr().err == ""


def test_implicit_gradient_of_a_contraction():
    theta = torch.tensor(0.3, requires_grad=True)
    found = fixed_point(
        lambda s: ({"x": torch.cos(theta * s["x"])}, None),
        {"x": torch.ones(1)},
        num_steps=200,
        implicit=True,
        objective=lambda s: s["x"].sum(),
    )
    x = found.state["x"]
    slope = torch.sin(theta * x)
    (gradient,) = torch.autograd.grad(x.sum(), theta)
    assert_equal(gradient, (-x * slope / (1 + theta * slope)).sum())  # differentiate x = cos(θx)


def test_implicit_gradients_of_gradients_are_refused():
    """A derivative with respect to theta would else leave out what passes through the fixed point: 2 here, from θ² alone."""
    theta = torch.tensor(0.3, requires_grad=True)
    found = fixed_point(
        lambda s: ({"x": torch.cos(theta * s["x"])}, None), {"x": torch.ones(1)}, num_steps=200, implicit=True
    )
    with pytest.raises(RuntimeError, match="use implicit=False"):
        torch.autograd.grad(found.state["x"].sum() + theta**2, theta, create_graph=True)


@pytest.mark.parametrize("steps", [2000, 4000])
def test_implicit_memory_does_not_grow_with_the_number_of_steps(steps):
    theta = torch.tensor(0.99, requires_grad=True)
    recorded = []

    def step(state):
        recorded.append(torch.is_grad_enabled())
        return {"x": theta * state["x"] + 1}, None

    found = fixed_point(step, {"x": torch.zeros(1)}, num_steps=steps, implicit=True)
    assert found.num_steps == steps and sum(recorded) == 2


def test_implicit_far_from_the_fixed_point_warns():
    theta = torch.tensor(0.99, requires_grad=True)
    with pytest.warns(UserWarning, match="raise num_steps"):
        fixed_point(lambda s: ({"x": theta * s["x"] + 1}, None), {"x": torch.zeros(1)}, num_steps=50, implicit=True)


def test_each_problem_of_vmap_stops_by_itself():
    """The loop cannot see when all have stopped; those that have stand still."""
    rate = torch.tensor([0.5, 0.9])

    def run(rate):
        start = {"x": torch.full((3,), 2.0)}
        found = fixed_point(lambda s: ({"x": 1 + rate * (s["x"] - 1)}, None), start, num_steps=500, tol=1e-6)
        return found.state["x"], found.num_steps, found.converged

    found, alone = torch.func.vmap(run)(rate), [run(each) for each in rate]
    assert_equal(found[0], torch.stack([state for state, *_ in alone]))
    for i, (_, num_steps, converged) in enumerate(alone):
        assert found[1][i] == num_steps and found[2][i] and converged
