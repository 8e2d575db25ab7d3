"""Annealed importance sampling of the log partition: against enumeration, on both sides, and at lengths that no sum reaches."""

import pytest
import torch
from strategies import crf_problem, crf_with_evidence, generator
from tolerances import rounding

from probtx_pyro import inference


def errors(seed):
    """How many of its own standard errors an estimate is off, on a random problem with what is known of it."""
    crf, given = crf_with_evidence(seed)
    exact = crf.log_partition(**given)
    estimate = inference.annealed_log_partition(crf, **given, seed=seed)
    off = (estimate.log_partition - exact).abs() - rounding(exact, operations=4096)
    return float(off.clamp(min=0.0) / estimate.standard_error.clamp(min=1e-300))


def test_the_estimate_is_within_its_errors_of_enumeration():
    assert all(errors(seed) < 4 for seed in (11, 23))


@pytest.mark.slow
def test_the_estimate_is_within_its_errors_of_enumeration_on_95_of_a_hundred_problems():
    assert sum(errors(seed) < 4 for seed in range(100)) >= 95


@pytest.mark.parametrize("known", [False, True])
def test_the_weights_are_unbiased_and_their_logarithm_bounds_from_either_side(known):
    """Each sentence of the batch is a run of its own: 400 of few chains and temperatures, whose weights differ much."""
    crf = crf_problem(generator(1), words=4, labels=3, distances=(2,), root=2, scale=1.5)
    given = (
        {"labels": torch.tensor([0, 2, 1, 1]), "observed": torch.tensor([False, True, False, False])} if known else {}
    )
    exact, runs = crf.log_partition(**given), 400
    many, g = crf.replace(unary=crf.unary.expand(runs, -1, -1)), generator(2)
    options = {"num_chains": 4, "temperatures": [0.0, 0.3, 1.0], **given}
    low = inference.annealed_log_partition(many, seed=3, **options)
    every = torch.cartesian_prod(*(torch.arange(3) for _ in range(4)), torch.arange(2))
    logs = crf.log_joint(every[:, :4], root_label=every[:, 4])
    logs = logs.masked_fill(every[:, 1] != 2, -torch.inf) if known else logs
    drawn = every[torch.multinomial(logs.softmax(0), 4 * runs, replacement=True, generator=g)].reshape(4, runs, 5)
    truth = {"label": drawn[..., :4], "root_label": drawn[..., 4]}
    high = inference.annealed_log_partition(many, seed=4, exact=truth, **options)
    for estimate, sign in ((low, 1), (high, -1)):
        ratio, gap = (sign * (estimate.log_partition - exact)).exp(), sign * (estimate.log_partition - exact)
        assert abs(ratio.mean() - 1) < 5 * ratio.std() / runs**0.5  # unbiased
        assert gap.mean() < -3 * gap.std() / runs**0.5  # and its logarithm is not: Jensen, by far more than its error
    assert low.log_weights.shape == (4, runs) and low.log_partition.shape == (runs,)
    assert ((low.effective_chains >= 1) & (low.effective_chains <= 4)).all()


def test_temperatures_lie_where_the_weights_change():
    crf = crf_problem(generator(5), words=5, labels=4, channels=3, scale=3.0)
    placed = inference.annealed_log_partition(crf, num_temperatures=20, seed=0)
    even = inference.annealed_log_partition(crf, temperatures=torch.linspace(0, 1, 21), seed=0)
    assert len(placed.temperatures) == 21 and (placed.temperatures.diff() > 0).all()
    assert placed.temperatures[[0, -1]].tolist() == [0.0, 1.0]
    assert placed.temperatures.diff().max() > 2 * placed.temperatures.diff().min()
    assert placed.log_weights.var() < even.log_weights.var()


def test_without_arcs_the_estimate_is_exact():
    crf = crf_problem(generator(6), words=1, labels=4)
    estimate = inference.annealed_log_partition(crf, num_temperatures=3, num_chains=2, seed=0)
    assert abs(estimate.log_partition - crf.log_partition()) <= rounding(crf.log_partition())
    assert estimate.standard_error == 0 and estimate.effective_chains == 2
    assert "2 chains, 4 temperatures, low in expectation" in repr(estimate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "labels", "channels", "scale"), [(20, 17, 2, 1.0), (30, 17, 4, 1.0), (40, 32, 8, 0.5)]
)
def test_two_schedules_agree_at_the_length_of_sentences(words, labels, channels, scale):
    crf = crf_problem(
        generator(7), words=words, labels=labels, channels=channels, distances=(2, 3, 4), dtype=torch.float32
    )
    crf = crf.replace(ternary=scale * crf.ternary)
    first, second = (inference.annealed_log_partition(crf, num_temperatures=n, seed=n) for n in (100, 300))
    assert abs(first.log_partition - second.log_partition) < 0.2
    assert crf.mean_field(100, "sequential", tol=1e-6).elbo < second.log_partition - 5


BAD = {
    "temperatures that fall": ({"temperatures": [0.0, 0.6, 0.5, 1.0]}, r"temperatures must rise from 0 to 1, not \[0\.0, 0\.6, 0\.5, 1\.0\]"),
    "temperatures that end early": ({"temperatures": torch.linspace(0, 0.9, 10)}, r"temperatures must rise from 0 to 1, not \[0\.0.*; give torch\.linspace"),
    "one chain": ({"num_chains": 1}, "num_chains must be 2 or more, because the standard error is that of their weights"),
    "no temperatures": ({"num_temperatures": 0}, "num_temperatures must be 1 or more, not 0"),
    "no seed": ({"seed": None}, "seed must be a non-negative integer"),
    "draws without the root": ({"exact": {"label": torch.zeros(3, dtype=torch.long)}}, "exact must be None or a mapping of 'label', 'root_label'"),
    "draws of other labels": ({"exact": {"label": torch.full((3,), 7), "root_label": torch.tensor(0)}}, "label must be from 0 to 2, but one is 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_options_that_mean_nothing_are_refused(name):
    options, said = BAD[name]
    with pytest.raises(ValueError, match=said):
        inference.annealed_log_partition(crf_problem(generator(8), words=3, root=2), **{"seed": 0, **options})
