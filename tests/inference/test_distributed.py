"""ECM over processes: shares of the queries give the result of all the queries at once, the same bits on every process.

Two processes (gloo, a file as meeting place) run every case in one go; the tests read what they found.
"""

import sys

import pytest
import torch
import torch.distributed as dist
from pyro.distributions import Dirichlet, Gamma, Normal, Wishart
from strategies import generator, problem
from tolerances import assert_equal
from two_processes import found_by, meeting

from probtx_pyro import inference, models

NAMES = ("keys", "key_precision", "values", "value_precision", "shift", "metric", "log_prior")


def shared_priors(mixture, rows=1):
    return dict(keys=Normal(mixture.keys, 1.2), key_precision=Gamma(2.0, 1.5), values=Normal(mixture.values, 0.9), value_precision=Gamma(2.0, 1.5), weights=Dirichlet(torch.full((rows, mixture.num_units), 1.7)))  # fmt: skip


# what is drawn, how many of the 11 queries the first process holds, and options of adapt
CASES = {
    "even": ({}, 5, {"num_steps": 8}),
    "uneven": ({}, 1, {"num_steps": 8}),
    "batch": ({"batch": (2,)}, 4, {"num_steps": 8}),
    "some answers": ({"parts": 3}, 7, {"num_steps": 8}),
    "weighted": ({"weighted": True, "parts": 3}, 7, {"num_steps": 8}),
    "tolerance": ({"batch": (3,)}, 2, {"num_steps": 300, "tol": 1e-7}),
    "weights of each query": ({"rows": 11}, 4, {"num_steps": 300, "tol": 1e-6}),
    "fixed prior of each query": ({"rows": 11, "fixed": True}, 1, {"num_steps": 8}),
    "metric and shift": ({"metric": "full"}, 4, {"num_steps": 8}),
    "float32": ({"dtype": torch.float32}, 5, {"num_steps": 8}),
}


def drawn(name, share=slice(None)):
    """A case's mixture, priors, data and options; the data of all the queries, or of a share of them."""
    how, _, options = CASES[name]
    how = dict(how)
    fixed, parts, weighted, rows = (
        how.pop("fixed", False),
        how.pop("parts", 2),
        how.pop("weighted", False),
        how.get("rows", 1),
    )
    mixture, queries, outputs, observed = problem(generator(3), queries=11, **how)
    weights = torch.rand(queries.shape[:-1], generator=generator(4)).to(queries) * (torch.arange(11) != 3)
    if rows > 1:
        mixture = mixture.replace(log_prior=mixture.log_prior[..., share, :])
        rows = mixture.log_prior.shape[-2]
    data = [queries[..., share, :], outputs[..., share, :], observed[..., share]][:parts]
    priors = shared_priors(mixture, rows)
    if how.get("metric"):
        priors |= dict(shift=Normal(0.0, 1.0), metric=Wishart(torch.tensor(6.0), torch.eye(3) / 6))
    if fixed or queries.dtype == torch.float32:
        priors = dict(keys=Normal(mixture.keys, 1.2), key_precision=Gamma(2.0, 1.5))
    return mixture, priors, data, {**options, **({"query_weights": weights[..., share]} if weighted else {})}


def gradients(group=None, share=slice(None), processes=1):
    """Gradients of a loss of all queries, of which each process computes its own share, through the steps."""
    mixture, priors, (queries, _), _ = drawn("even", share)
    queries, keys = queries.clone().requires_grad_(), mixture.keys.clone().requires_grad_()
    mixture = mixture.with_parameters({"keys": keys})
    priors = dict(keys=Normal(keys, 1.2), key_precision=Gamma(2.0, 1.5))
    fit = inference.adapt(models.bayesian(mixture, **priors), queries, num_steps=4, process_group=group)
    own = fit.formulation.expected_outputs(queries).square().sum() + fit.objective[-1] / processes
    return torch.autograd.grad(own, (queries, keys))


def refused(call):
    with pytest.raises(ValueError) as error:
        call()
    return str(error.value)


def process(rank, folder):
    """The part of one of the two processes."""
    with meeting(rank, folder) as (group, found):
        for name, (_, first, _) in CASES.items():
            mixture, priors, data, options = drawn(name, slice(0, first) if rank == 0 else slice(first, 11))
            fit = inference.adapt(
                models.bayesian(mixture, **priors), data[0], *data[1:], **options, process_group=group
            )
            found[name] = {n: getattr(fit.formulation, n) for n in NAMES} | {n: getattr(fit, n) for n in ("objective", "converged", "num_steps")}  # fmt: skip
        found["gradients"] = gradients(group, slice(0, 4) if rank == 0 else slice(4, 11), 2)
        mixture, priors, data, _ = drawn("even")

        def adapt(mixture=mixture, priors=priors, answers=(), **options):
            return inference.adapt(
                models.bayesian(mixture, **priors), data[0], *answers, **options, process_group=group
            )

        moved = mixture.replace(keys=mixture.keys + rank)
        other = dict(keys=Normal(mixture.keys, 1.0 + rank))
        found["errors"] = {
            "keys": refused(lambda: adapt(moved)),
            "prior on keys": refused(lambda: adapt(priors=other)),
            "num_steps": refused(lambda: adapt(num_steps=2 + rank)),
            "outputs": refused(lambda: adapt(answers=data[1:] if rank else ())),
        }


@pytest.fixture(autouse=True)
def _on_each_device():
    """The processes meet on the CPU, whatever else this machine has."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return found_by(__file__, tmp_path_factory.mktemp("processes"), 120)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_shares_are_the_whole(name, found):
    mixture, priors, data, options = drawn(name)
    whole = inference.adapt(models.bayesian(mixture, **priors), data[0], *data[1:], **options)
    for share in found:
        assert torch.equal(share[name]["num_steps"], whole.num_steps)
        assert torch.equal(share[name]["converged"], whole.converged)
        # every step may round its sums in another order; magnitudes of a log joint of 11 queries
        assert_equal(share[name]["objective"], whole.objective, operations=64 * 8)
        for parameter in (n for n in NAMES[:-1] if getattr(mixture, n) is not None):
            assert_equal(share[name][parameter], getattr(whole.formulation, parameter), operations=64 * 8)
    rows = [share[name]["log_prior"] for share in found]
    if CASES[name][0].get("rows"):
        assert_equal(torch.cat(rows, -2), whole.formulation.log_prior, operations=64 * 8)
    else:
        assert_equal(rows[0], whole.formulation.log_prior, operations=64 * 8)
        assert torch.equal(*rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("what", [*NAMES[:-1], "objective", "num_steps"])
def test_every_process_holds_the_same_bits(name, what, found):
    first, second = (each[name][what] for each in found)
    assert torch.equal(first, second) if first is not None else second is None


@pytest.mark.slow
def test_tolerance_is_met_before_the_last_step(found):
    assert found[0]["tolerance"]["converged"].all()
    assert len(found[0]["tolerance"]["num_steps"].unique()) > 1  # the problems of the batch stop one by one


@pytest.mark.slow
def test_gradients_through_the_sums(found):
    queries, keys = gradients()
    shares = [share["gradients"] for share in found]
    scale = keys.abs().max()
    assert_equal(torch.cat([share[0] for share in shares]), queries, scale, operations=512)
    assert_equal(shares[0][1] + shares[1][1], keys, scale, operations=512)


@pytest.mark.slow
def test_processes_that_differ_are_refused_on_each(found):
    for share in found:
        for name, message in share["errors"].items():
            assert "processes differ in" in message and name in message and "\n" not in message


def test_bad_input_is_one_clear_error():
    mixture, priors, data, _ = drawn("even")

    def adapt(group, **options):
        return refused(
            lambda: inference.adapt(models.bayesian(mixture, **priors), data[0], process_group=group, **options)
        )

    assert "torch.distributed is not initialized; call" in adapt(object())


def test_what_is_not_distributed_is_refused(tmp_path):
    mixture, priors, data, _ = drawn("even")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match=r"must be a torch.distributed.ProcessGroup.*not object; use"):
            inference.adapt(models.bayesian(mixture, **priors), data[0], process_group=object())
        for options in ({"causal": True}, {"implicit": True}):
            with pytest.raises(ValueError, match=r"process_group needs plain ECM.*choose conjugate priors"):
                inference.adapt(models.bayesian(mixture, **priors), data[0], process_group=dist.group.WORLD, **options)
        one = inference.adapt(models.bayesian(mixture, **priors), data[0], process_group=dist.group.WORLD)
        assert torch.equal(one.objective, inference.adapt(models.bayesian(mixture, **priors), data[0]).objective)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    process(int(sys.argv[1]), sys.argv[2])
