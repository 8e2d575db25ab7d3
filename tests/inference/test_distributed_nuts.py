"""NUTS over processes: chains and simulations that are spread give the draws of one process.

Two processes (gloo, a file as meeting place) run every case in one go; the tests read what they found.
"""

import functools
import sys

import pytest
import torch
from pyro.distributions import LogNormal, Normal
from strategies import generator, problem
from two_processes import found_by, meeting

from probtx_pyro import inference, models, results

OPTIONS = {"num_samples": 15, "num_warmup": 40, "num_chains": 5, "seed": 0, "progress": False}
CASES = {"shared": (), "chain": (), "shared, a batch": (2,)}


def drawn(name, **options):
    """Draws of a small posterior; a group spreads five chains unevenly over two processes."""
    mixture, queries, *_ = problem(generator(3), queries=7, units=3, features=2, batch=CASES[name])
    posterior = models.bayesian(mixture, keys=Normal(mixture.keys, 0.5), key_precision=LogNormal(0.0, 0.5))
    return inference.nuts(posterior, queries, adaptation=name.split(",")[0], **{**OPTIONS, **options})


def calibrated(**options):
    """Ranks of three calls of two simulations each."""
    posterior = models.bayesian(models.GaussianMixture(torch.zeros(2, 1)), keys=Normal(torch.zeros(2, 1), 1.0))
    sampler = functools.partial(inference.nuts, **{**OPTIONS, "num_samples": 2, "num_warmup": 20}, start="prior")
    sampler.keywords.pop("seed")
    return results.calibrate(
        posterior, (5, 1), sampler=sampler, num_simulations=6, num_draws=9, batch_size=2, seed=0, **options
    )


def refused(call):
    with pytest.raises(ValueError) as error:
        call()
    return str(error.value)


def process(rank, folder):
    """The part of one of the two processes."""
    with meeting(rank, folder) as (group, found):
        for name in CASES:
            draws = drawn(name, process_group=group)
            found[name] = (dict(draws.samples), dict(draws.statistics))
        found["ranks"] = {name: torch.from_numpy(x) for name, x in calibrated(process_group=group).ranks.items()}
        found["errors"] = [
            refused(lambda: drawn("chain", process_group=group, num_chains=1)),
            refused(lambda: drawn("chain", process_group=group, checkpoint=f"{folder}/run")),
            refused(lambda: drawn("chain", process_group=group, seed=rank)),
        ]


@pytest.fixture(autouse=True)
def _on_each_device():
    """The processes meet on the CPU, whatever else this machine has."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return found_by(__file__, tmp_path_factory.mktemp("processes"), 300)


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_processes_draw_what_one_draws(name, found, one_thread):
    whole = drawn(name)
    for samples, statistics in (each[name] for each in found):
        for site, x in whole.samples.items():
            assert torch.equal(samples[site], x), site
        for site, x in whole.statistics.items():
            assert torch.equal(statistics[site], x), site


@pytest.mark.slow
def test_two_processes_calibrate_what_one_calibrates(found, one_thread):
    whole = calibrated().ranks
    for each in found:
        assert each["ranks"].keys() == whole.keys()
        for name, x in whole.items():
            assert torch.equal(each["ranks"][name], torch.from_numpy(x)), name


@pytest.mark.slow
def test_what_a_group_cannot_do_is_refused_by_every_process(found):
    for each in found:
        few, kept, other = each["errors"]
        assert "process_group has 2 processes for 1 chains" in few
        assert "checkpoint: chains spread over processes are not kept" in kept
        assert "processes differ in program, data, options or seed" in other


if __name__ == "__main__":
    process(int(sys.argv[1]), sys.argv[2])
