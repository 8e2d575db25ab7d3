"""ECM on a mixture of Gaussian keys is the same code as on a mixture of units: oracle, program, monotonicity, every option."""

import oracles
import pytest
import torch
from chosen_cases import seeds
from formulations import single
from pyro import poutine
from pyro.distributions import Dirichlet, Gamma, Normal, StudentT, Wishart
from pyro.infer import TraceEnum_ELBO
from strategies import generator, keys_problem, lists
from tolerances import assert_equal, assert_never_falls

from probtx_pyro import inference, models
from probtx_pyro.inference.em import gradient_map
from probtx_pyro.models import _problem

EVERY = "keys key_precision weights component_weights"
SUBSETS = [*EVERY.split(), "keys key_precision", "weights component_weights", EVERY]
FIELDS = ("keys", "key_precision", "component_weights", "log_prior")


def some_priors(model, names=EVERY, shape=2.0, rate=1.5, theta=0.8, concentration=1.7):
    """Conjugate priors centred on the model's own parameters."""
    units, components = model.unit_shape
    every = {
        "keys": Normal(model.keys, theta**-0.5),
        "key_precision": Gamma(shape, rate),
        "weights": Dirichlet(torch.full((1, units), concentration)),
        "component_weights": Dirichlet(torch.full((components,), concentration)),
    }
    return dict(**{name: every[name] for name in names.split()})


def program_at(model, priors, fitted, collapsed=True):
    program = models.bayesian(model, **priors, collapsed=collapsed)
    return poutine.condition(program, {name: fitted.parameter(name) for name in priors})


@pytest.mark.parametrize("names", SUBSETS)
def test_one_step_is_the_oracle(names):
    model, queries = keys_problem(generator(1))
    fit = inference.adapt(models.bayesian(model, **some_priors(model, names)), queries, num_steps=1)
    state = lists(model, queries)
    hyper = {
        "keys": (state["keys"], 0.8),
        "key_precision": (2.0, 1.5),
        "weights": [1.7] * 4,
        "component_weights": [1.7] * 2,
    }
    expected = oracles.keys_ecm_step(state, {name: hyper[name] for name in names.split()})
    for name in FIELDS:
        assert_equal(getattr(fit.formulation, name), torch.tensor(expected[name]), operations=256)


@pytest.mark.parametrize("names", SUBSETS)
@pytest.mark.parametrize("collapsed", [True, False])
def test_objective_is_the_log_density_of_the_program(names, collapsed):
    model, queries = keys_problem(generator(2), batch=(2,), queries=4)
    priors = some_priors(model, names)
    fit = inference.adapt(models.bayesian(model, **priors), queries, num_steps=3)
    at = program_at(model, priors, fit.formulation, collapsed)
    if collapsed:
        density = poutine.trace(at).get_trace(queries).log_prob_sum()
    else:
        density = torch.tensor(-TraceEnum_ELBO(max_plate_nesting=2).loss(at, fit.formulation.guide, queries))
    assert_equal(fit.objective[-1].sum(), density)


@pytest.mark.parametrize("seed", seeds(20, often=8))
def test_the_objective_never_falls(seed):
    """20 random problems a seed, 400 in all: unequal precisions, extreme scales, units and components that nobody attends to."""
    g = generator(seed)
    scale = 10.0 ** float(torch.randint(-3, 4, (), generator=g))
    sizes = {
        name: int(torch.randint(1, top, (), generator=g))
        for name, top in (("queries", 12), ("units", 6), ("components", 4))
    }
    model, queries = keys_problem(g, batch=(20,), scale=scale, **sizes)
    keys = model.keys.clone()
    keys[:, -1] += 50 * scale
    spread = torch.logspace(-2, 2, sizes["units"] * sizes["components"]).reshape(model.unit_shape)
    model = model.replace(keys=keys, key_precision=model.key_precision * spread)
    shape, rate, theta = (float(torch.rand((), generator=g)) for _ in range(3))
    priors = some_priors(
        model, SUBSETS[seed % len(SUBSETS)], 1 + shape, (rate + 1e-3) * scale**2, theta / scale**2 + 1e-6, 1 + shape
    )
    fit = inference.adapt(models.bayesian(model, **priors), queries, num_steps=25)
    assert torch.isfinite(fit.objective).all()
    # terms of the log density are as large as precision x squared distance before they cancel
    magnitude = [
        m.key_precision.amax() * (m.keys.square().amax() + queries.square().amax()) for m in (model, fit.formulation)
    ]
    assert_never_falls(fit.objective, *magnitude)


def test_a_wrong_step_is_seen(monkeypatch):
    """What `test_the_objective_never_falls` must catch: component weights from counts that are normalised over all units (erratum 11)."""
    model, queries = keys_problem(generator(3), batch=(20,), queries=12)

    def printed(concentration, allowed, old):
        counts = concentration - 1
        mass = counts / counts.sum((-1, -2), keepdim=True)  # N_jr / N, made a simplex by giving the rest to the first
        return torch.cat([1 - mass[..., 1:].sum(-1, keepdim=True), mass[..., 1:]], -1)

    monkeypatch.setattr(_problem, "MODE", _problem.MODE._replace(dirichlet=printed))
    fit = inference.adapt(
        models.bayesian(model, **some_priors(model, "component_weights", concentration=1.0)), queries, num_steps=10
    )
    with pytest.raises(AssertionError, match="fell by"):
        assert_never_falls(fit.objective)


@pytest.mark.parametrize(
    "options", [{}, {"answer": "gaussian", "metric": "full"}, {"answer": "categorical", "metric": "diagonal"}]
)
def test_one_component_is_the_gaussian_mixture(options):
    model, *data = keys_problem(generator(4), components=1, queries=9, **options)
    flat = model.mixture
    mine = some_priors(model, "keys key_precision weights")
    shared = {
        "shift": Normal(0.0, 1.0),
        "values": Normal(0.0, 1.0),
        "value_precision": Gamma(2.0, 1.0),
        "answer_probs": Dirichlet(torch.full((3,), 1.5)),
    }
    shared["metric"] = Gamma(2.0, 1.0) if model.diagonal_metric else Wishart(torch.tensor(6.0), torch.eye(3) / 6)
    for name in options and shared:
        if model.held(name) is not None and (name != "value_precision" or model.values is not None):
            mine[name] = shared[name]
    theirs = mine | dict(keys=Normal(flat.keys, 0.8**-0.5))
    ours, fit = (
        inference.adapt(models.bayesian(m, **p), *data, num_steps=20) for m, p in ((model, mine), (flat, theirs))
    )
    assert_equal(ours.formulation.keys.squeeze(-2), fit.formulation.keys, operations=64 * 20)
    for name in mine.keys() & shared.keys():
        assert_equal(ours.formulation.held(name), fit.formulation.held(name), operations=64 * 20)
    assert_equal(ours.objective, fit.objective, operations=64 * 20)


def test_the_optimum_is_the_mode_of_the_program():
    """The gradient of the Pyro trace's log density vanishes there, along the simplex for weights."""
    model, queries = keys_problem(generator(5), queries=12, units=3)
    priors = some_priors(model)
    fit = inference.adapt(models.bayesian(model, **priors), queries, num_steps=20000, tol=1e-13)
    assert fit.converged.all()
    best = {name: fit.formulation.parameter(name) for name in priors}
    free = {n: (x.log() if "weights" in n else x.clone()).requires_grad_() for n, x in best.items()}
    state = {n: x.softmax(-1) if "weights" in n else x for n, x in free.items()}
    density = (
        poutine.trace(poutine.condition(models.bayesian(model, **priors), state)).get_trace(queries).log_prob_sum()
    )
    gradients = torch.autograd.grad(density, list(free.values()))
    # the iteration stops at 1e-13 of the parameters; its contraction (below 0.999 here) and curvatures of order 100 amplify
    assert max(float(x.abs().max()) for x in gradients) < 1e-7
    moved = inference.adapt(models.bayesian(model, **priors), queries, num_steps=3).formulation
    state = {"keys": moved.keys.clone().requires_grad_(), **{n: moved.parameter(n) for n in list(best)[1:]}}
    density = (
        poutine.trace(poutine.condition(models.bayesian(model, **priors), state)).get_trace(queries).log_prob_sum()
    )
    assert torch.autograd.grad(density, state["keys"])[0].abs().max() > 1e-3  # elsewhere it does not


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tol", [None, 1e-6])
def test_batch_is_the_stack_of_its_singles(causal, tol, device):
    model, queries = keys_problem(generator(6), batch=(2, 3), queries=4)
    options = {"num_steps": 40, "tol": tol, "causal": causal}
    there = model.to(device)
    fit = inference.adapt(models.bayesian(there, **some_priors(there)), queries.to(device), **options)
    for index in ((0, 0), (1, 2)):
        alone = single(model, index)
        one = inference.adapt(models.bayesian(alone, **some_priors(alone)), queries[index], **options)
        for name in FIELDS:  # each of the 40 steps may add its own 64 operations
            assert_equal(
                getattr(fit.formulation, name)[index].cpu(), getattr(one.formulation, name), operations=64 * 40
            )
        assert (fit.num_steps[index].cpu() == one.num_steps.cpu()).all()


def test_every_prefix_is_its_own_adaptation():
    model, queries = keys_problem(generator(7))
    for precision in (model.key_precision, torch.tensor(1.1), torch.full((4, 1), 1.1)):
        start = model.replace(key_precision=precision, component_weights=None, log_prior=None)
        fit = inference.adapt(models.bayesian(start, **some_priors(start)), queries, num_steps=4, causal=True)
        answers = fit.formulation.expected_outputs(queries.unsqueeze(-2)).squeeze(-2)
        hard = fit.formulation.attention(queries.unsqueeze(-2), assignment="hard").squeeze(-2)
        assert fit.formulation.keys.shape == (5, 4, 2, 3) and fit.objective.shape == (5, 5)
        for i in range(5):
            prefix = inference.adapt(
                models.bayesian(start, **some_priors(start)), queries[: i + 1], num_steps=4
            ).formulation
            assert_equal(fit.formulation.keys[i], prefix.keys, operations=512)
            assert_equal(fit.formulation.component_weights[i], prefix.component_weights, operations=512)
            assert_equal(answers[i], prefix.expected_outputs(queries[: i + 1])[i], operations=512)
            assert_equal(hard[i], prefix.attention(queries[: i + 1], assignment="hard")[i], operations=512)


def test_parameters_shared_over_a_batch_or_over_units_sum_their_statistics():
    model, queries = keys_problem(generator(8), weights="shared")
    batch = torch.stack([queries, queries + 0.3])
    shared = inference.adapt(models.bayesian(model, **some_priors(model)), batch, num_steps=5)
    pooled = inference.adapt(models.bayesian(model, **some_priors(model)), batch.flatten(0, 1), num_steps=5)
    assert shared.formulation.keys.shape == model.keys.shape and shared.objective.shape[1:] == (1,)
    assert shared.formulation.component_weights.shape == (1, 2)
    for name in FIELDS:
        assert_equal(getattr(shared.formulation, name), getattr(pooled.formulation, name), operations=512)
    step = inference.adapt(
        models.bayesian(model, **some_priors(model, "component_weights")), queries, num_steps=1
    ).formulation
    mass = model.responsibilities(queries).sum((0, 1)) + 0.7
    assert_equal(step.component_weights, (mass / mass.sum())[None])


@pytest.mark.parametrize("shape", [(), (1, 1), (4, 1), (1, 2)])
def test_a_precision_shared_by_units_or_components(shape):
    model, queries = keys_problem(generator(9))
    model = model.replace(key_precision=torch.full(shape, 1.3))
    fit = inference.adapt(models.bayesian(model, key_precision=Gamma(2.0, 1.5)), queries, num_steps=1)
    gamma = model.responsibilities(queries)
    scatter = (gamma * (queries[:, None, None] - model.keys).square().sum(-1)).sum(0)
    over = [i for i in (0, 1) if not shape or shape[i] == 1]
    counts, scatter = ((x.sum(over, keepdim=True) if over else x) for x in (gamma.sum(0), scatter))
    assert fit.formulation.key_precision.shape == shape
    assert_equal(fit.formulation.key_precision.expand_as(counts), (1.0 + 1.5 * counts) / (1.5 + 0.5 * scatter))


def test_a_weight_vector_for_each_query():
    model, queries = keys_problem(generator(10), rows=5)
    fit = inference.adapt(models.bayesian(model, weights=Dirichlet(torch.full((5, 4), 1.4))), queries, num_steps=1)
    mass = model.attention(queries) + 0.4
    assert_equal(fit.formulation.log_prior.exp(), mass / mass.sum(-1, keepdim=True))


def test_masked_units_and_components_stay_absent():
    model, queries = keys_problem(generator(0), components=3, masked=True)
    assert (model.component_weights == 0).any() and (model.log_prior == -torch.inf).any()
    priors = some_priors(model, "keys weights component_weights")
    fit = inference.adapt(models.bayesian(model, **priors), queries, num_steps=10)
    assert ((fit.formulation.component_weights == 0) == (model.component_weights == 0)).all()
    assert ((fit.formulation.log_prior == -torch.inf) == (model.log_prior == -torch.inf)).all()
    assert_never_falls(fit.objective)
    density = poutine.trace(program_at(model, priors, fit.formulation)).get_trace(queries).log_prob_sum()
    assert_equal(fit.objective[-1], density)


@pytest.mark.parametrize("flat", ["keys", "weights", "component_weights"])
def test_nobody_attends_keeps_the_old_value(flat):
    model, queries = keys_problem(generator(12))
    fit = inference.adapt(
        models.bayesian(model, **{flat: models.FLAT}), queries, query_weights=torch.zeros(5), num_steps=3
    )
    assert_equal(fit.formulation.parameter(flat), model.parameter(flat))


def test_an_absent_query_is_not_there_and_weights_multiply():
    model, queries = keys_problem(generator(13), queries=6)
    weights = torch.tensor([1.0, 1, 0, 2, 0, 1])
    repeated = queries[[0, 1, 3, 3, 5]]
    ragged = inference.adapt(models.bayesian(model, **some_priors(model)), queries, query_weights=weights, num_steps=5)
    short = inference.adapt(models.bayesian(model, **some_priors(model)), repeated, num_steps=5)
    assert_equal(ragged.formulation.keys, short.formulation.keys, operations=512)
    assert_equal(ragged.objective, short.objective)
    at = program_at(model, some_priors(model), ragged.formulation)
    density = poutine.trace(at).get_trace(queries, query_weights=weights).log_prob_sum()
    assert_equal(density, ragged.objective[-1])
    elbo = -TraceEnum_ELBO(max_plate_nesting=1).loss(model.model, model.guide, queries, query_weights=weights)
    assert_equal(torch.tensor(elbo), (model.log_evidence(queries) * weights).sum())


def test_implicit_is_unrolled_at_convergence():
    model, queries = keys_problem(generator(14), queries=6, units=2)
    gradients = []
    for implicit in (False, True):
        means, asked = model.keys.clone().requires_grad_(), queries.clone().requires_grad_()
        priors = dict(keys=Normal(means, 0.7), component_weights=Dirichlet(torch.full((2,), 3.0)))
        fit = inference.adapt(models.bayesian(model, **priors), asked, num_steps=5000, tol=1e-14, implicit=implicit)
        assert fit.converged.all()
        loss = fit.formulation.expected_outputs(asked * 0.7).square().sum()
        gradients.append(torch.autograd.grad(loss, [means, asked]))
    for unrolled, implicit in zip(*gradients, strict=True):
        # the iteration stops at 1e-14 of the parameters; its contraction and the loss amplify that
        assert (unrolled - implicit).abs().max() < 1e-8 * max(1.0, float(unrolled.abs().max()))


@pytest.mark.slow
def test_gradient_map_is_the_ecm_optimum_and_serves_other_priors():
    model, queries = keys_problem(generator(15), queries=12, units=3, masked=True)
    priors = some_priors(model, concentration=3.0)
    best = inference.adapt(models.bayesian(model, **priors), queries, num_steps=20000, tol=1e-13)
    posterior = models.bayesian(model, **priors).problem(queries)
    found = gradient_map(
        posterior.objective,
        posterior.start,
        posterior.sites,
        posterior.count,
        problems=posterior.problems,
        num_steps=300,
        tol=1e-9,
    )
    assert found.converged.all()
    assert (found.objective[-1] - best.objective[-1]).abs() < 1e-8  # second order in a distance of 1e-5
    assert (found.state["component_weights"] - best.formulation.component_weights).abs().max() < 1e-4
    other = dict(keys=StudentT(4.0, model.keys, 0.5))
    with pytest.warns(UserWarning, match="gradient MAP"):
        fit = inference.adapt(models.bayesian(model, **other), queries, num_steps=200, tol=1e-8)
    assert fit.converged.all() and fit.objective[-1] > fit.objective[0]
    density = poutine.trace(program_at(model, other, fit.formulation)).get_trace(queries).log_prob_sum()
    assert_equal(density, fit.objective[-1])


def test_float32_is_close_to_float64_far_from_the_origin():
    model, queries = keys_problem(generator(16), queries=40, dtype=torch.float32)
    model, queries = model.replace(keys=model.keys + 1000), queries + 1000
    high = model.to(torch.float64)
    low = inference.adapt(
        models.bayesian(model, keys=models.FLAT, component_weights=models.FLAT), queries, num_steps=25
    )
    fit = inference.adapt(
        models.bayesian(high, keys=models.FLAT, component_weights=models.FLAT), queries.double(), num_steps=25
    )
    # a key near 1000 is stored to 6e-5; 25 steps of an iteration that forgets its past amplify that by some 10
    assert (low.formulation.keys.double() - fit.formulation.keys).abs().max() < 1e-3
    assert (low.formulation.component_weights.double() - fit.formulation.component_weights).abs().max() < 1e-3


def test_plates_and_sites_have_the_names_of_the_axes():
    model, queries = keys_problem(generator(17), batch=(2, 3))
    nodes = poutine.trace(models.bayesian(model, **some_priors(model), collapsed=False)).get_trace(queries).nodes
    plates = {
        name: [f.name for f in sorted(nodes[name]["cond_indep_stack"], key=lambda f: f.dim)]
        for name in (*EVERY.split(), "unit", "component", "queries")
    }
    assert plates == {
        **{name: ["batch", "head", "units"] for name in ("keys", "key_precision", "component_weights")},
        "weights": ["batch", "head"],
        **{site: ["batch", "head", "query"] for site in ("unit", "component", "queries")},
    }
    assert nodes["keys"]["value"].shape == (2, 3, 4, 2, 3)
    each = dict(weights=Dirichlet(torch.full((5, 4), 1.4)))
    model, queries = keys_problem(generator(17), rows=5)
    node = poutine.trace(models.bayesian(model, **each)).get_trace(queries).nodes["weights"]
    assert [f.name for f in node["cond_indep_stack"]] == ["query"]


def test_a_prior_with_one_entry_leaves_a_precision_that_the_model_takes():
    model, queries = keys_problem(generator(21))
    model = model.replace(key_precision=1.5)
    one = Gamma(torch.tensor([2.0]), torch.tensor([1.5]))
    fit = inference.adapt(models.bayesian(model, key_precision=one), queries, num_steps=3)
    scalar = inference.adapt(models.bayesian(model, key_precision=Gamma(2.0, 1.5)), queries, num_steps=3)
    assert_equal(fit.formulation.replace().key_precision.reshape(()), scalar.formulation.key_precision)
