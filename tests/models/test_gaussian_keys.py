"""Gaussian keys beyond the contract: hard and soft assignment, shifted and linked keys, the flat view, and Pyro's own tools."""

import math

import oracles
import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Dirichlet, Gamma, Normal
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceEnum_ELBO, infer_discrete
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.optim import Adam, ClippedAdam
from strategies import generator, keys_problem, lists
from tolerances import assert_equal, assert_frequency, rounding

from probtx_pyro import inference, models

VARIANTS = [
    {},
    {"masked": True, "rows": 5},
    {"precision": "shared", "weights": None},
    {"weights": "shared", "units": 1},
    {"answer": "gaussian", "metric": "full"},
]


@pytest.mark.parametrize("options", VARIANTS)
def test_hard_assignment_is_the_loop(options, device):
    model, queries, *answers = keys_problem(generator(1), components=3, **options)
    attention, objective = map(torch.tensor, oracles.hard_attention(lists(model, queries)))
    there, asked = model.to(device), queries.to(device)
    assert_equal(there.attention(asked, assignment="hard").cpu(), attention)
    assert_equal(there.log_evidence(asked, assignment="hard").cpu(), objective)
    assert_equal(there.expected_outputs(asked, "hard").cpu(), attention @ model.values)
    output, weights, evidence = model.explicit_outputs(queries, "hard")
    assert_equal(torch.cat([output, weights, evidence[:, None]], -1),
                 torch.cat([attention @ model.values, attention, objective[:, None]], -1))  # fmt: skip
    if answers:
        attention, objective = map(torch.tensor, oracles.hard_attention(lists(model, queries, *answers)))
        assert_equal(model.attention(queries, *answers, assignment="hard"), attention)
        assert_equal(model.log_evidence(queries, *answers, assignment="hard"), objective)


def test_the_hard_objective_is_never_above_the_evidence():
    """500 problems; the largest of R terms is at least their R-th part, so that it is no more than log R below, either."""
    for seed in range(100):
        model, queries = keys_problem(
            generator(seed), batch=(5,), components=1 + seed % 4, scale=10.0 ** (seed % 5 - 2)
        )
        soft, hard = model.log_evidence(queries), model.log_evidence(queries, assignment="hard")
        # terms of the log joint: precision x squared distance, some |keys|²/scale² before they cancel
        slack = rounding(soft, hard, model.key_precision * model.keys.square().sum(-1))
        assert (hard <= soft + slack).all()
        assert (hard >= soft - math.log(model.num_components) - slack).all()


def test_a_callable_reduces_the_components():
    model, queries = keys_problem(generator(2))
    assert_equal(model.attention(queries, assignment=lambda x: x.logsumexp(-1)), model.attention(queries))
    first = model.attention(queries, assignment=lambda x: x[..., 0])
    alone = model.mixture.log_joint(queries)[..., ::2].softmax(-1)
    assert_equal(first, alone)
    assert_equal(model.expected_outputs(queries, lambda x: x[..., 0]), alone @ model.values)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("batch", [(), (3, 2)])
def test_chunks_change_nothing_and_stay_small(train, batch, monkeypatch):
    model, queries = keys_problem(generator(3), batch=batch, queries=9, rows=9)
    queries = queries.requires_grad_(train)
    whole = model.explicit_outputs(queries, "hard")
    monkeypatch.setattr("probtx_pyro.ops._chunks.CHUNK_ELEMENTS", 24)
    seen = []

    def largest(scores):
        seen.append(scores.numel())
        return scores.amax(-1)

    output, evidence = model.expected_outputs(queries, largest), model.log_evidence(queries, assignment=largest)
    assert max(seen) <= 24
    assert_equal(output, whole[0])
    assert_equal(evidence, whole[2])
    if train:
        gradients = [
            torch.autograd.grad(x.square().sum() + y.sum(), queries)[0]
            for x, y in ((output, evidence), (whole[0], whole[2]))
        ]
        assert_equal(*gradients, operations=256)


def test_gradients_of_the_hard_step():
    model, queries = keys_problem(generator(4), queries=3, units=3)
    leaves = [x.clone().requires_grad_() for x in (queries, model.keys, model.key_precision, model.values)]

    def at(q, keys, precision, values):
        moved = model.with_parameters({"keys": keys, "key_precision": precision, "values": values})
        return moved.expected_outputs(q, "hard"), moved.log_evidence(q, assignment="hard")

    assert torch.autograd.gradcheck(at, leaves)


@pytest.mark.parametrize("assignment", ["soft", "hard"])
@pytest.mark.parametrize("rows", [1, 5])
def test_gradients_reach_the_weights_through_masks(assignment, rows):
    model, queries = keys_problem(generator(2), components=3, masked=True, rows=rows)
    assert (model.component_weights == 0).any() and (model.log_prior == -torch.inf).any()
    leaves = [model.component_weights.requires_grad_(), model.log_prior.requires_grad_()]
    output, _, evidence = model.explicit_outputs(queries, assignment)
    explicit = torch.autograd.grad(output.square().sum() + evidence.sum(), leaves)
    total = (
        model.expected_outputs(queries, assignment).square().sum()
        + model.log_evidence(queries, assignment=assignment).sum()
    )
    for ours, reference in zip(torch.autograd.grad(total, leaves), explicit, strict=True):
        assert_equal(ours, reference, operations=256)


@pytest.mark.parametrize("shape", [(2, 3), (4, 2, 3), (1, 2, 3)])
def test_shifted_is_explicit(shape):
    g = generator(5)
    keys, shifts, values, queries = (torch.randn(*s, generator=g) for s in ((4, 3), shape, (4, 2), (5, 3)))
    model = models.GaussianKeys.shifted(keys, shifts, values, 1.3)
    every = torch.stack([torch.stack([keys[j] + shifts.expand(4, 2, 3)[j, r] for r in range(2)]) for j in range(4)])
    assert_equal(model.expected_outputs(queries), models.GaussianKeys(every, values, 1.3).expected_outputs(queries))
    heads = models.GaussianKeys.shifted(keys.expand(6, 3, 4, 3), torch.randn(3, 2, 3, generator=g), values)
    assert heads.keys.shape == (6, 3, 4, 2, 3)  # fewer axes than the keys: shifts of each head


@pytest.mark.parametrize("assignment", ["soft", "hard"])
def test_identical_components_are_one(assignment):
    model, queries = keys_problem(generator(6), components=1)
    same = model.replace(
        keys=model.keys.expand(-1, 3, -1), key_precision=model.key_precision.expand(-1, 3), component_weights=None
    )
    assert_equal(same.attention(queries, assignment=assignment), model.attention(queries))
    assert_equal(same.expected_outputs(queries, assignment), model.expected_outputs(queries))
    lost = math.log(3) if assignment == "hard" else 0.0  # of three equal terms the hard step keeps one
    assert_equal(same.log_evidence(queries, assignment=assignment), model.log_evidence(queries) - lost)


def test_the_flat_mixture_is_the_same_model():
    model, queries = keys_problem(generator(7))
    flat = model.mixture
    assert isinstance(flat, models.GaussianMixture) and flat.num_units == 8
    flat.replace()  # validates
    assert_equal(flat.values[2:4], model.values[1].expand(2, 2))
    gamma = model.responsibilities(queries)
    assert_equal(flat.attention(queries), gamma.flatten(-2))
    assert_equal(gamma.sum((-1, -2)), torch.ones(5))
    assert_equal(model.component_attention(queries) * model.attention(queries).unsqueeze(-1), gamma)
    assert_equal(gamma, torch.tensor([[[math.exp(oracles.log_complete(p, i, (j, r)) - oracles.evidence(p)[i]) for r in range(2)]
                                       for j in range(4)] for p in [lists(model, queries)] for i in range(5)]))  # fmt: skip
    assert models.GaussianKeys(model.keys).mixture.log_prior is None
    assert models.GaussianKeys(model.keys, key_precision=torch.full((1, 1), 2.0)).mixture.key_precision.shape == (1,)


@pytest.mark.parametrize("weights", [None, "given"])
def test_linked_is_a_softmax_of_dot_products(weights):
    g = generator(8)
    keys, queries = torch.randn(2, 4, 3, 5, generator=g), torch.randn(2, 6, 5, generator=g)
    own = None if weights is None else torch.rand(4, 3, generator=g).softmax(-1)
    mask = torch.zeros(6, 4).masked_fill(torch.eye(6, 4).bool(), -math.inf)
    model = models.GaussianKeys.linked(keys, None, 0.7, own, mask)
    logits = 0.7 * torch.einsum("bqd,burd->bqur", queries, keys) + mask[..., None] + (0 if own is None else own.log())
    assert_equal(model.responsibilities(queries), logits.flatten(-2).softmax(-1).unflatten(-1, (4, 3)))
    model.replace()  # normalised: validates


def test_stable_where_the_plain_exponential_underflows(device):
    """Erratum 17's setting and beyond: inputs of scale 20 in 16 dimensions, float32."""
    g = generator(9)
    keys, queries, values = (20 * torch.randn(*s, generator=g) for s in ((7, 3, 16), (11, 16), (7, 2)))
    low = models.GaussianKeys(keys.float(), values.float()).to(device)
    asked = queries.float().to(device).requires_grad_()
    plain = torch.exp(-0.5 * torch.cdist(asked, low.keys.flatten(0, 1)).square()).unflatten(-1, (7, 3)).sum(-1)
    assert (plain / plain.sum(-1, keepdim=True)).isnan().all()
    high = low.to(torch.float64)
    for assignment in ("soft", "hard"):
        output, evidence = low.expected_outputs(asked, assignment), low.log_evidence(asked, assignment=assignment)
        (gradient,) = torch.autograd.grad(output.sum() + evidence.sum(), asked)
        assert torch.isfinite(output).all() and torch.isfinite(evidence).all() and torch.isfinite(gradient).all()
        # the terms of the log joint, as large as |q|² + |k|², carry float32's rounding into it; attention of units follows,
        # and an output the spread of the values times that
        error = rounding(low.keys.square().sum(-1), asked.square().sum(-1), operations=4)
        truth = high.log_evidence(asked.detach().double(), assignment=assignment)
        assert (evidence.double() - truth).abs().max() < error
        exact = high.expected_outputs(asked.detach().double(), assignment)
        assert (output.double() - exact).abs().max() < 2 * error * float(low.values.abs().max())


@pytest.mark.parametrize("assignment", ["soft", "hard"])
def test_half_precision_is_close_to_float64(assignment, device):
    model, queries = keys_problem(generator(10), batch=(2,), queries=30, units=20, features=16, dtype=torch.float32)
    low, asked = model.to(device, torch.bfloat16), queries.to(device, torch.bfloat16)
    output = low.expected_outputs(asked, assignment)
    assert output.dtype == torch.bfloat16
    exact = low.to(torch.float64).expected_outputs(asked.double(), assignment)
    # logits of order |q||k|α = 16 times a rounding of 2^-9 in statistics and in parameters: attention to some 2^-4 at most
    assert (output.double() - exact).abs().max() < 2**-4 * float(model.values.abs().max())


def test_every_tensor_moves_and_every_field_can_be_replaced():
    model, queries = keys_problem(generator(11))
    assert model.to(torch.float32).component_weights.dtype == torch.float32
    assert model.replace(values=None).values is None
    changed = model.with_parameters({"weights": torch.tensor([[0.0, 0.5, 0.25, 0.25]])})
    assert (changed.attention(queries)[:, 0] == 0).all()
    assert model.batch_shape == () and model.replace(keys=model.keys.expand(2, 4, 2, 3)).batch_shape == (2,)
    bare = models.GaussianKeys(model.keys)
    assert_equal(bare.parameter("weights", (2,)), torch.full((2, 1, 4), 0.25))
    assert_equal(bare.parameter("component_weights", (2,)), torch.full((2, 4, 2), 0.5))


# -- Pyro ----------------------------------------------------------------------------------------------------------------


def test_marginals_of_pyro_are_the_attention():
    model, queries = keys_problem(generator(12), queries=6, units=3)
    marginals = TraceEnum_ELBO(max_plate_nesting=1).compute_marginals(model.model, lambda *a: None, queries)
    assert_equal(marginals["unit"].probs, model.attention(queries))
    assert_equal(marginals["component"].probs, model.responsibilities(queries).sum(-2))


@pytest.mark.slow
def test_infer_discrete_draws_units_and_components_together():
    model, queries = keys_problem(generator(13), queries=4, units=3)
    pyro.set_rng_seed(2)
    sampler = infer_discrete(model.model, first_available_dim=-2)
    counts = torch.zeros(4, 3, 2)
    for _ in range(400):
        nodes = poutine.trace(sampler).get_trace(queries).nodes
        counts[torch.arange(4), nodes["unit"]["value"], nodes["component"]["value"]] += 1
    gamma = model.responsibilities(queries)
    for count, probability in zip(counts.flatten(), gamma.flatten(), strict=True):
        assert_frequency(float(count), 400, float(probability))


@pytest.mark.parametrize("rendering", ["model", "collapsed"])
@pytest.mark.slow
def test_prior_predictive_draws_have_the_mixture_s_mean(rendering):
    model, queries = keys_problem(generator(14), queries=3, units=3)
    pyro.set_rng_seed(4)
    draws = Predictive(poutine.uncondition(getattr(model, rendering)), {}, num_samples=1500)(queries)["queries"]
    flat = model.mixture
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - flat.log_weights().exp() @ flat.keys).abs() < 5 * error).all()


def test_render_model_names_sites_and_plates():
    model, queries = keys_problem(generator(15))
    source = pyro.render_model(model.model, (queries,)).source
    assert all(name in source for name in ("unit", "component", "queries", "query"))


def test_do_fixes_the_unit():
    model, queries = keys_problem(generator(16), queries=4)
    unit, component = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 0, 1, 0])
    done = poutine.block(poutine.do(model.model, {"unit": unit, "component": component}), hide=["unit", "component"])
    prior = model.log_weights()[..., None] + model.component_log_weights()
    expected = (model.log_joint(queries) - prior)[torch.arange(4), unit, component].sum()
    assert_equal(poutine.trace(done).get_trace(queries).log_prob_sum(), expected)


@pytest.mark.slow
def test_svi_reaches_the_em_optimum():
    model, queries = keys_problem(generator(17), queries=40, units=2, scale=2.0)
    priors = dict(keys=Normal(model.keys, 0.3))
    best = inference.adapt(models.bayesian(model, **priors), queries, num_steps=3000, tol=1e-12)
    program = models.bayesian(model, **priors, collapsed=False)
    guide = AutoDelta(poutine.block(program, hide=["unit", "component"]), init_loc_fn=lambda site: model.keys.clone())
    svi = SVI(program, guide, ClippedAdam({"lr": 0.03, "lrd": 0.993}), TraceEnum_ELBO(max_plate_nesting=1))
    for _ in range(700):
        loss = svi.step(queries)
    assert abs(-loss - float(best.objective[-1])) < 1e-6  # Adam with a falling rate: quadratic in a distance of 1e-4
    assert (guide.median()["keys"] - best.formulation.keys).abs().max() < 1e-3


@pytest.mark.slow
def test_autonormal_and_nuts_run_on_the_collapsed_program():
    keys = torch.tensor([[[-6.0, 0.0], [-2.0, 0.0]], [[2.0, 0.0], [6.0, 0.0]]])
    model = models.GaussianKeys(keys, key_precision=2.0)
    queries = keys.flatten(0, 1)[torch.arange(40) % 4] + 0.7 * torch.randn(40, 2, generator=generator(19))
    priors = dict(keys=Normal(keys, 2.0), key_precision=Gamma(2.0, 1.0), weights=Dirichlet(torch.full((1, 2), 5.0)), component_weights=Dirichlet(torch.full((2, 2), 5.0)))  # fmt: skip
    program = models.bayesian(model, **priors)
    svi = SVI(program, AutoNormal(program), Adam({"lr": 0.03}), Trace_ELBO())
    losses = [svi.step(queries) for _ in range(100)]
    assert sum(losses[-20:]) < sum(losses[:20])
    known = models.bayesian(model, component_weights=Dirichlet(torch.full((2, 2), 5.0)))
    mcmc = MCMC(NUTS(known), num_samples=150, warmup_steps=60, disable_progbar=True)
    mcmc.run(queries)
    draws = mcmc.get_samples()["component_weights"]
    # components that do not overlap: the conjugate posterior, Dirichlet(5 + 10, 5 + 10), of mean 1/2 and variance 1/124
    assert (draws.mean(0) - 0.5).abs().max() < 5 * (1 / 124 / 30) ** 0.5  # at an effective size of 30 of 150


def test_linked_in_single_precision_at_a_large_precision():
    """The exponents are some 1e5 there, and the weights stay on the simplex that the model holds them to."""
    keys = torch.randn(20, 2, 8, generator=generator(21), dtype=torch.float32)
    keys = keys / keys.norm(dim=-1, keepdim=True)  # of one length, so that rounding alone tells the weights apart
    model = models.GaussianKeys.linked(keys, None, 2e5)
    assert torch.equal(model.attention(keys[:, 0]).sum(-1).round(decimals=4), torch.ones(20))
