"""The contract that every formulation keeps: its Pyro programs, and its conditionals against their log density.

Program = closed form = enumeration; the ELBO gap is the KL to the exact attention; a conditional is the likelihood of its parameter;
what ECM climbs is the log density of the posterior program.
"""

import itertools

import oracles
import pytest
import torch
from formulations import ROWS, priors_of, single
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import models
from probtx_pyro.models import CorrelatedTerms, DirichletTerms, GammaTerms, NormalTerms, WishartTerms

pytestmark = pytest.mark.usefixtures("device")

PLATES = 3  # query and up to two leading axes


def of_rows(where, *lists):
    """Rows that have a capability, and numbers of their data."""
    return [pytest.param(row, n, id=f"{n}-{name}") for name, row in ROWS.items() if where(row) for n in row.parts]


def evidence(row, formulation, args, batch):
    """The log normaliser, summed over the problems of a batch."""
    if row.dense(len(args)) or not batch:
        return row.evidence(formulation, *args)
    every = itertools.product(*map(range, batch))
    return sum(row.evidence(single(formulation, i), *(x[i] for x in args)) for i in every)


@pytest.mark.parametrize(("row", "parts"), of_rows(lambda row: True))
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_program_is_enumeration_is_closed_form(row, parts, batch):
    formulation, *everything = row.draw(generator(2), batch=batch)
    if batch and row.given is None:
        with pytest.raises(ValueError, match=r"takes one (sentence|problem)"):
            formulation.enumerated()
        return
    args = everything[:parts]
    expected, (model, guide) = evidence(row, formulation, args, batch), row.programs(formulation, parts)
    elbo = -TraceEnum_ELBO(max_plate_nesting=PLATES if row.given else 0).loss(model, guide, *args)
    # the guide of a tilted Gaussian draws x, whose log densities are of order 100 and cancel
    scale = {} if row.dense(parts) else {"operations": 1024}
    assert_equal(torch.tensor(elbo), expected, torch.tensor(1.0 if row.dense(parts) else 100.0), **scale)
    if row.dense(parts):
        hidden = poutine.block(formulation.collapsed, hide=["outputs"]) if parts == 1 else formulation.collapsed
        assert_equal(poutine.trace(hidden).get_trace(*args).log_prob_sum(), expected)
        if not batch and row.lists:
            assert_equal(torch.tensor(oracles.evidence_by_enumeration(row.lists(formulation, *args))), expected)


@pytest.mark.parametrize(("row", "parts"), of_rows(lambda row: row.given))
def test_elbo_gap_is_the_kl_to_the_attention(row, parts):
    formulation, *everything = row.draw(generator(3))
    args = everything[:parts]
    exact = formulation.attention(*args)
    other = torch.rand(exact.shape, generator=generator(4)) * (exact > 0)
    other = other / other.sum(-1, keepdim=True)
    expected, (model, guide) = row.evidence(formulation, *args), row.programs(formulation, parts)
    loss = TraceEnum_ELBO(max_plate_nesting=PLATES).loss
    elbo = -loss(model, lambda *data: guide(*data, **{row.given: other}), *args)
    gap = torch.xlogy(other, other / exact).nan_to_num(0.0).sum()
    assert gap > 0.05
    scale = {} if row.dense(parts) else {"operations": 1024}
    assert_equal(expected - elbo, gap, expected, torch.tensor(1.0 if row.dense(parts) else 100.0), **scale)


def test_elbo_of_a_mean_field_falls_short_by_its_divergence():
    (crf,) = ROWS["dependency CRF"].draw(generator(3))
    field = crf.mean_field(2)
    elbo = -TraceEnum_ELBO(max_plate_nesting=0).loss(crf.enumerated, lambda: crf.enumerated_guide(field=field))
    assert_equal(torch.tensor(elbo), field.elbo)
    assert field.elbo < crf.log_partition() - 1e-3


CONDITIONALS = [
    pytest.param(row, name, id=f"{name}-{label}")
    for label, row in ROWS.items()
    if row.conjugate
    for name in priors_of(row.draw(generator(0))[0])
]


@pytest.mark.parametrize(("row", "name"), CONDITIONALS)
def test_a_conditional_is_the_likelihood_of_its_parameter(row, name):
    """Against the expected complete log density, by loops, at four other values: equal but for a constant."""
    formulation, *data = row.draw(generator(21))
    data = data[: max(row.parts)]
    given = formulation.bind(*data)
    terms = formulation.conditional(name, formulation.expect(given))
    p, present = row.lists(formulation, *data), formulation.parameter(name)
    every = [(i, state) for i in range(len(p["queries"])) for state in oracles.states(p)]
    total = oracles.evidence(p)

    weights = {(i, state): torch.tensor(oracles.log_complete(p, i, state) - total[i]).exp() for i, state in every}
    found, expected = [], []
    for x in others(terms, present, 5):
        moved = row.lists(formulation.with_parameters({name: x}), *data)
        expected.append(sum(w * oracles.log_complete(moved, *place) for place, w in weights.items() if w > 0))
        found.append(log_likelihood(terms, x))
    found, expected = torch.stack(found), torch.stack(expected)
    assert (expected[1:] - expected[0]).abs().max() > 1e-3
    assert_equal(found[1:] - found[0], expected[1:] - expected[0], expected, found, operations=256)


@pytest.mark.parametrize(
    ("row", "name"), [case for case in CONDITIONALS if "keys, " in case.id and "metric" in case.id]
)
def test_a_conditional_is_the_density_of_the_program_given_units_and_components(row, name):
    """Of Gaussian keys with all that they have: the program at each unit and component, weighted by their posterior."""
    formulation, *data = row.draw(generator(21))
    terms = formulation.conditional(name, formulation.expect(formulation.bind(*data)))
    weights, found, expected = formulation.responsibilities(*data), [], []
    for x in others(terms, formulation.parameter(name), 3):
        program, total = formulation.with_parameters({name: x}).model, 0.0
        for place in itertools.product(*map(range, formulation.unit_shape)):
            at = dict(zip(("unit", "component"), (torch.tensor(index).expand(5) for index in place), strict=True))
            trace = poutine.trace(poutine.condition(program, at)).get_trace(*data)
            trace.compute_log_prob()
            density = sum(trace.nodes[site]["log_prob"] for site in ("unit", "component", "queries", "outputs"))
            total = total + (weights[(..., *place)] * density).sum()
        expected.append(total)
        found.append(log_likelihood(terms, x))
    found, expected = torch.stack(found), torch.stack(expected)
    assert (expected[1:] - expected[0]).abs().max() > 1e-3
    assert_equal(found[1:] - found[0], expected[1:] - expected[0], expected, found, operations=256)


def others(terms, present, count):
    """So many values of a parameter, away from the present one."""
    g, kind = generator(22), KINDS[type(terms)]
    for _ in range(count):
        noise = 0.5 * torch.randn(present.shape, generator=g)
        yield {
            "real": present + noise,
            "positive": present * noise.exp(),
            "simplex": (present.log() + noise).softmax(-1),
            "matrix": present + (noise.mT @ noise if kind == "matrix" else 0),
        }[kind]


KINDS = {
    DirichletTerms: "simplex",
    GammaTerms: "positive",
    WishartTerms: "matrix",
    NormalTerms: "real",
    CorrelatedTerms: "real",
}


def log_likelihood(terms, x):
    """What the terms say, by their documented formulas."""
    if isinstance(terms, NormalTerms):
        centered = x - terms.center
        return (-0.5 * terms.precision * centered.square() + terms.pull * centered).sum()
    if isinstance(terms, CorrelatedTerms):
        centered = (x - terms.center).unsqueeze(-1)
        return (-0.5 * centered.mT @ terms.precision @ centered).sum() + (terms.pull.unsqueeze(-1) * centered).sum()
    if isinstance(terms, WishartTerms):
        inverse = torch.linalg.inv(terms.root)
        scatter = inverse.mT @ terms.scatter @ inverse
        return 0.5 * terms.degrees * torch.logdet(x) - 0.5 * (x @ scatter).diagonal().sum()
    if isinstance(terms, GammaTerms):
        return (terms.shape * x.log() - terms.rate * x).sum()
    return torch.xlogy(terms.counts, x).sum()


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if row.density], ids=[n for n, r in ROWS.items() if r.density]
)
def test_what_adapt_climbs_is_the_log_density_of_the_posterior_program(row, batch):
    formulation, *data = row.draw(generator(23), batch=batch)
    data = data[: max(row.parts)]
    posterior = models.bayesian(formulation, **priors_of(formulation))
    joint = posterior.problem(*data)
    present = {name: site.initial for name, site in joint.sites.items()}
    program = poutine.condition(posterior, present)
    program = program if max(row.parts) > 1 else poutine.block(program, hide=["outputs"])
    trace = poutine.trace(program).get_trace(*data)
    assert joint.objective(joint.start).shape == batch
    assert_equal(joint.objective(joint.start).sum(), trace.log_prob_sum())


@pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if row.lists], ids=[n for n, r in ROWS.items() if r.lists]
)
def test_a_sample_has_the_moments_of_the_program_and_leaves_the_generator_alone(row):
    """Against the weights of the units: the share of each unit in 4,000 draws, within 5 standard errors."""
    formulation, *_ = row.draw(generator(24))
    if formulation.log_weights().shape[-2] > 1:
        formulation = formulation.with_parameters({"log_prior": formulation.log_prior[..., :1, :].log_softmax(-1)})
    state = torch.get_rng_state()
    drawn, again = (formulation.sample(4000, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(drawn[name], again[name]) for name in drawn)
    assert torch.isfinite(formulation.log_evidence(drawn["queries"])).all()
    chances = formulation.log_weights().exp().squeeze(-2)
    share = torch.nn.functional.one_hot(drawn["unit"].reshape(-1), len(chances)).double().mean(0)
    assert (share - chances).abs().max() <= 5 * (0.25 / 4000) ** 0.5
    assert ("outputs" in drawn) == formulation.answer_density
    with pytest.raises(ValueError, match="num_queries must be a whole number from 1, not 0"):
        formulation.sample(0, seed=0)
