"""Annealed importance sampling of the log partition: against enumeration, on both sides, and at lengths that no sum reaches."""

import oracles_crf
import pytest
import torch
from strategies import crf_lists, crf_problem, crf_with_evidence, generator
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


def sandwiched(crf, given, table, runs, seed, **options):
    """Log Z by the sum over a table of all labellings, and ``±(log Ẑ - log Z)`` of independent runs upwards, and downwards from exact draws.

    table: labels (M, N), the root's (M,), ``log φ`` (M,). Each sentence of a batch is a run of its own.
    """
    labels, root, logs = table
    chains, log_z, found = options["num_chains"], logs.logsumexp(0), []
    drawn = torch.multinomial(logs.softmax(0), chains * runs, replacement=True, generator=generator(seed))
    exact = {"label": labels[drawn].reshape(chains, runs, -1), "root_label": root[drawn].reshape(chains, runs)}
    if crf.root_ternary is None:
        del exact["root_label"]
    mask = None if crf.mask is None else crf.mask.expand(runs, -1)
    many = crf.replace(unary=crf.unary.expand(runs, -1, -1), mask=mask)
    for sign, draws in ((1, None), (-1, exact)):
        estimate = inference.annealed_log_partition(many, **given, seed=seed, exact=draws, **options)
        assert estimate.reverse == (sign < 0) and estimate.log_partition.shape == (runs,)
        assert ((estimate.effective_chains >= 1) & (estimate.effective_chains <= chains + 1e-9)).all()
        found.append(sign * (estimate.log_partition - log_z))
    return log_z, *found


def mean_and_error(x):
    return float(x.mean()), float(x.std() / len(x) ** 0.5)


@pytest.mark.parametrize("known", [False, True])
def test_the_weights_are_unbiased_and_their_logarithm_bounds_from_either_side(known):
    """400 runs of few chains and temperatures, whose weights differ much."""
    crf = crf_problem(generator(1), words=4, labels=3, distances=(2,), root=2, scale=1.5)
    given = (
        {"labels": torch.tensor([0, 2, 1, 1]), "observed": torch.tensor([False, True, False, False])} if known else {}
    )
    every = torch.cartesian_prod(*(torch.arange(3) for _ in range(4)), torch.arange(2))
    every = every[every[:, 1] == 2] if known else every
    labels, root = every[:, :4], every[:, 4]
    options = {"num_chains": 4, "temperatures": [0.0, 0.3, 1.0]}
    log_z, *gaps = sandwiched(crf, given, (labels, root, crf.log_joint(labels, root_label=root)), 400, 3, **options)
    assert abs(log_z - crf.log_partition(**given)) <= rounding(log_z, operations=4096)
    for gap in gaps:
        (ratio, error), (mean, spread) = mean_and_error(gap.exp()), mean_and_error(gap)
        assert abs(ratio - 1) < 5 * error  # unbiased
        assert mean < -3 * spread  # and its logarithm is not: Jensen, by far more than its error


@pytest.mark.slow
def test_a_hundred_problems_lie_between_both_sides():
    """100 runs of each, of few chains and temperatures; log Z and exact draws by loops over scalars.

    4.5 errors are 7e-6 of a normal mean, two-sided, for each of 400 comparisons; where all weights are alike there is rounding only.
    """
    gaps, errors = [], []
    for seed in range(100):
        crf, given = crf_with_evidence(seed)
        rows = oracles_crf.labellings(crf_lists(crf), **{name: x.tolist() for name, x in given.items()})
        table = [torch.tensor(x) for x in zip(*rows, strict=True)]
        options = {"num_chains": 2, "temperatures": torch.linspace(0, 1, 6)}
        log_z, *found = sandwiched(crf, given, table, 100, seed, **options)
        slack = rounding(log_z, *table[2:], operations=4096)
        for gap in found:
            (ratio, error), (mean, spread) = mean_and_error(gap.exp()), mean_and_error(gap)
            assert abs(ratio - 1) <= 4.5 * error + slack, seed  # unbiased
            assert mean <= 4.5 * spread + slack, seed  # never on the other side of log Z
            gaps.append(mean)
            errors.append(spread)
    for mean, spread in zip(torch.tensor(gaps).reshape(100, 2).T, torch.tensor(errors).reshape(100, 2).T, strict=True):
        assert (
            mean.sum() < -10 * spread.square().sum().sqrt()
        )  # all together they have power: the bias of the logarithm shows


def test_a_sentence_with_all_labels_known_but_a_few_is_bounded_from_both_sides():
    """The length of a sentence; what is not known can be summed over and drawn exactly."""
    words, labels, free = 20, 3, [2, 9, 10, 17]
    crf = crf_problem(generator(3), words=words, labels=labels, distances=(2, 3, 4))
    known = torch.randint(labels, (words,), generator=generator(4))
    observed = torch.ones(words, dtype=torch.bool).index_fill(0, torch.tensor(free), False)
    every = known.repeat(labels ** len(free), 1)
    every[:, free] = torch.cartesian_prod(*(torch.arange(labels) for _ in free))
    given = {"labels": known, "observed": observed}
    table = every, torch.zeros(len(every), dtype=torch.long), crf.log_joint(every)
    log_z, *gaps = sandwiched(crf, given, table, 60, 5, num_chains=2, temperatures=[0.0, 0.3, 1.0])
    assert abs(log_z - crf.log_partition(**given)) <= rounding(log_z, operations=4096)
    for gap in gaps:
        (ratio, error), (mean, spread) = mean_and_error(gap.exp()), mean_and_error(gap)
        assert abs(ratio - 1) < 5 * error and mean < -2 * spread


@pytest.mark.slow
def test_downwards_from_long_chains_agrees_at_the_length_of_a_sentence():
    """A check of the one by the other, no bound: draws of Gibbs chains are nearly exact, not exact."""
    crf = crf_problem(generator(7), words=20, labels=17, scale=0.5, distances=(2, 3, 4), dtype=torch.float32)
    up = inference.annealed_log_partition(crf, seed=0)
    drawn = inference.gibbs(crf, num_samples=1, num_chains=64, num_warmup=200, seed=1).samples["label"][:, 0]
    down = inference.annealed_log_partition(crf, seed=2, exact={"label": drawn}, temperatures=up.temperatures)
    error = (up.standard_error.square() + down.standard_error.square()).sqrt()
    assert up.effective_chains > 32 and down.effective_chains > 32  # so that the errors can be believed
    assert abs(down.log_partition - up.log_partition) < 4.5 * error
    assert error < 0.1 and crf.mean_field(100, "sequential", tol=1e-6).elbo < up.log_partition - 1


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
    assert "high in expectation if its draws were exact" in repr(estimate._replace(reverse=True))


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
    "draws of other labels": ({"exact": {"label": torch.full((3,), 7), "root_label": torch.tensor(0)}}, "label must be from 0 to 2, not 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_options_that_mean_nothing_are_refused(name):
    options, said = BAD[name]
    with pytest.raises(ValueError, match=said):
        inference.annealed_log_partition(crf_problem(generator(8), words=3, root=2), **{"seed": 0, **options})
