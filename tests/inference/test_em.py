"""ECM against the one-unit-at-a-time oracle, against the Pyro program's log density, and never falling in 1,000 problems."""

import oracles
import pytest
import torch
from chosen_cases import seeds
from pyro import poutine
from pyro.distributions import Dirichlet, Gamma, Normal
from strategies import generator, lists, problem
from tolerances import assert_equal, assert_never_falls

from probtx_pyro import inference, models

SUBSETS = [
    "keys",
    "key_precision",
    "values",
    "value_precision",
    "weights",
    "keys key_precision",
    "keys values weights",
    "keys key_precision values value_precision weights",
]


def some_priors(mixture, names, shape=2.0, rate=1.5, theta=0.8, concentration=1.7):
    """Conjugate priors centred on the mixture's own parameters."""
    every = {
        "keys": Normal(mixture.keys, theta**-0.5),
        "key_precision": Gamma(shape, rate),
        "values": None if mixture.values is None else Normal(mixture.values, theta**-0.5),
        "value_precision": Gamma(shape, rate),
        "weights": Dirichlet(torch.full((1, mixture.num_units), concentration)),
        "answer_probs": None
        if mixture.answer_probs is None
        else Dirichlet(torch.full_like(mixture.answer_probs, concentration)),
    }
    return dict(**{name: every[name] for name in names.split()})


def log_density(mixture, priors, fitted, args, collapsed=True):
    """The log density of the Pyro program at the fitted parameters."""
    program = models.bayesian(mixture, **priors, collapsed=collapsed)
    at = poutine.condition(program, {name: fitted.parameter(name) for name in priors})
    return poutine.trace(poutine.block(at, hide=["outputs"]) if len(args) == 1 else at).get_trace(*args).log_prob_sum()


@pytest.mark.parametrize("names", SUBSETS)
@pytest.mark.parametrize("parts", [2, 3], ids=["all answers", "some answers"])
def test_one_step_is_the_oracle(names, parts):
    mixture, *args = problem(generator(1))
    args = args[:parts]
    fit = inference.adapt(models.bayesian(mixture, **some_priors(mixture, names)), args[0], *args[1:], num_steps=1)
    state = lists(mixture, *args)
    hyper = {
        "keys": (state["keys"], 0.8),
        "key_precision": (2.0, 1.5),
        "values": (state["values"], 0.8),
        "value_precision": (2.0, 1.5),
        "weights": [1.7] * 4,
    }
    expected = oracles.ecm_step(state, {name: hyper[name] for name in names.split()})
    for name in ("keys", "key_precision", "values", "value_precision", "log_prior"):
        assert_equal(getattr(fit.formulation, name), torch.tensor(expected[name]), operations=256)


def test_one_step_with_labels_is_the_oracle():
    mixture, *args = problem(generator(2), answer="categorical")
    fit = inference.adapt(
        models.bayesian(mixture, **some_priors(mixture, "keys weights answer_probs")), args[0], *args[1:], num_steps=1
    )
    state = lists(mixture, *args)
    expected = oracles.ecm_step(
        state, {"keys": (state["keys"], 0.8), "weights": [1.7] * 4, "answer_probs": [[1.7] * 3] * 4}
    )
    for name in ("keys", "log_prior", "answer_probs"):
        assert_equal(getattr(fit.formulation, name), torch.tensor(expected[name]))


@pytest.mark.parametrize("names", SUBSETS)
@pytest.mark.parametrize("collapsed", [True, False])
def test_objective_is_the_log_density_of_the_program(names, collapsed):
    mixture, *args = problem(generator(3), batch=(2,), queries=4)
    priors = some_priors(mixture, names)
    fit = inference.adapt(models.bayesian(mixture, **priors), args[0], *args[1:], num_steps=3)
    if collapsed:
        assert_equal(fit.objective[-1].sum(), log_density(mixture, priors, fit.formulation, args))
        return
    from pyro.infer import TraceEnum_ELBO

    program = models.bayesian(mixture, **priors, collapsed=False)
    at = poutine.condition(program, {name: fit.formulation.parameter(name) for name in priors})
    elbo = -TraceEnum_ELBO(max_plate_nesting=2).loss(at, fit.formulation.guide, *args)
    assert_equal(torch.tensor(elbo), fit.objective[-1].sum())


def test_labels_objective_is_the_log_density_of_the_program():
    mixture, *args = problem(generator(4), answer="categorical")
    priors = some_priors(mixture, "keys answer_probs weights")
    fit = inference.adapt(models.bayesian(mixture, **priors), args[0], *args[1:], num_steps=3)
    assert_equal(fit.objective[-1], log_density(mixture, priors, fit.formulation, args))


@pytest.mark.parametrize("seed", seeds(40, often=10))
def test_the_objective_never_falls(seed):
    """25 random problems a seed, 1,000 in all: unequal precisions, extreme scales, empty units, partial annotations."""
    g = generator(seed)
    names = SUBSETS[seed % len(SUBSETS)]
    scale = 10.0 ** float(torch.randint(-3, 4, (), generator=g))
    mixture, queries, outputs, observed = problem(
        g,
        batch=(25,),
        queries=int(torch.randint(1, 12, (), generator=g)),
        units=int(torch.randint(1, 9, (), generator=g)),
        scale=scale,
        rows=1,
    )
    keys = mixture.keys.clone()
    keys[:, -1] += 50 * scale  # a unit that nobody attends to
    mixture = mixture.replace(keys=keys, key_precision=mixture.key_precision * torch.logspace(-2, 2, mixture.num_units))
    shape, rate = (
        1 + float(torch.rand((), generator=g)),
        float(torch.rand((), generator=g)) * scale**2 + 1e-3 * scale**2,
    )
    priors = some_priors(
        mixture, names, shape=shape, rate=rate, theta=float(torch.rand((), generator=g)) / scale**2 + 1e-6
    )
    fit = inference.adapt(models.bayesian(mixture, **priors), queries, outputs, observed, num_steps=25)
    assert torch.isfinite(fit.objective).all()
    # terms of the log density are as large as precision x squared distance before they cancel
    magnitude = [
        m.key_precision.amax() * (m.keys.square().amax() + queries.square().amax()) for m in (mixture, fit.formulation)
    ]
    magnitude += [
        m.value_precision.amax() * (m.values.square().amax() + outputs.square().amax())
        for m in (mixture, fit.formulation)
    ]
    assert_never_falls(fit.objective, *magnitude)


def test_the_old_location_in_the_precision_step_would_fall():
    """docs/mathematics.md, section 2.4: why the *new* key enters the precision update."""
    queries = (1.0 + 0.05 * torch.randn(100, 1, generator=generator(5))).tolist()
    prior = {"keys": ([[0.0]], 1.0), "key_precision": (1.0, 1e-12)}
    start = {"queries": queries, "keys": [[0.98]], "key_precision": [0.001], "log_prior": [[0.0]], "outputs": None}

    def joint(p):
        return sum(oracles.evidence(p)) + oracles.normal(p["keys"][0], [0.0], 1.0)

    right = oracles.ecm_step(start, prior)
    alpha = 50.0 / (0.5 * sum((q[0] - 0.98) ** 2 for q in queries))
    wrong = {**right, "key_precision": [alpha]}
    assert joint(wrong) < joint(start) - 1000 < joint(right) - 1000
    mixture = models.GaussianMixture(torch.tensor([[0.98]]), key_precision=torch.tensor([0.001]))
    fit = inference.adapt(
        models.bayesian(mixture, keys=Normal(torch.zeros(1, 1), 1.0), key_precision=Gamma(1.0, 1e-12)),
        torch.tensor(queries),
        num_steps=1,
    )
    assert_equal(fit.formulation.keys, torch.tensor(right["keys"]))
    assert_equal(
        fit.formulation.key_precision, torch.tensor(right["key_precision"]), operations=4096
    )  # scatter cancels to 1/1000 of its terms


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tol", [None, 1e-6])
def test_batch_is_the_stack_of_its_singles(causal, tol, device):
    mixture, *args = problem(generator(6), batch=(2, 3), queries=4)
    names = "keys key_precision values value_precision weights"
    fit = inference.adapt(
        models.bayesian(mixture.to(device), **some_priors(mixture.to(device), names)),
        args[0].to(device),
        *(x.to(device) for x in args[1:]),
        num_steps=40,
        tol=tol,
        causal=causal,
    )
    for index in ((0, 0), (1, 2)):
        alone = mixture.with_parameters({k: x[index] for k, x in vars(mixture).items() if isinstance(x, torch.Tensor)})
        one = inference.adapt(
            models.bayesian(alone, **some_priors(alone, names)),
            args[0][index],
            *(x[index] for x in args[1:]),
            num_steps=40,
            tol=tol,
            causal=causal,
        )
        for name in ("keys", "key_precision", "values", "value_precision", "log_prior"):
            # 40 steps of an iteration that does not contract to rounding at once: each step may add its own 64 operations
            assert_equal(getattr(fit.formulation, name)[index], getattr(one.formulation, name), operations=64 * 40)
        assert (fit.num_steps[index].cpu() == one.num_steps.cpu()).all()


def test_parameters_shared_over_a_batch_sum_their_statistics():
    mixture, queries, *_ = problem(generator(7))
    batch = torch.stack([queries, queries + 0.3])
    priors = some_priors(mixture, "keys key_precision weights")
    shared = inference.adapt(models.bayesian(mixture, **priors), batch, num_steps=5)
    pooled = inference.adapt(models.bayesian(mixture, **priors), batch.flatten(0, 1), num_steps=5)
    assert shared.formulation.keys.shape == mixture.keys.shape
    assert shared.objective.shape[1:] == (1,)
    assert_equal(shared.formulation.keys, pooled.formulation.keys, operations=512)
    assert_equal(shared.objective[:, 0], pooled.objective)


@pytest.mark.parametrize("tol", [None, 1e-8])
def test_parameters_shared_along_different_axes_are_one_problem(tol):
    mixture, queries, *_ = problem(generator(18), batch=(2,))
    mixture = mixture.with_parameters({"keys": mixture.keys[0], "log_prior": None})
    priors = some_priors(mixture, "keys key_precision weights")
    fit = inference.adapt(models.bayesian(mixture, **priors), queries, num_steps=200, tol=tol)
    assert fit.formulation.keys.shape == (4, 3) and fit.formulation.key_precision.shape == (2, 4)
    assert (
        fit.formulation.log_prior.shape == (2, 1, 4) and fit.objective.shape[1:] == (1,) and fit.converged.shape == (1,)
    )
    assert_never_falls(fit.objective)
    assert_equal(fit.objective[-1].sum(), log_density(mixture, priors, fit.formulation, [queries]))


def test_one_precision_shared_by_all_units():
    mixture, queries, *_ = problem(generator(8))
    mixture = mixture.replace(key_precision=torch.tensor(1.3))
    fit = inference.adapt(models.bayesian(mixture, key_precision=Gamma(2.0, 1.5)), queries, num_steps=1)
    w = mixture.attention(queries)
    scatter = (w * (queries[:, None] - mixture.keys).square().sum(-1)).sum()
    assert fit.formulation.key_precision.shape == ()
    assert_equal(fit.formulation.key_precision, (2.0 - 1 + 1.5 * len(queries)) / (1.5 + 0.5 * scatter))


def test_a_weight_vector_for_each_query():
    mixture, queries, *_ = problem(generator(9), rows=5)
    fit = inference.adapt(models.bayesian(mixture, weights=Dirichlet(torch.full((5, 4), 1.4))), queries, num_steps=1)
    mass = mixture.attention(queries) + 0.4
    assert_equal(fit.formulation.log_prior.exp(), mass / mass.sum(-1, keepdim=True))
    assert_equal(fit.formulation.log_prior.exp().sum(-1), torch.ones(5))


def test_masked_units_stay_outside_the_simplex():
    mixture, queries, *_ = problem(generator(10), masked=True)
    fit = inference.adapt(models.bayesian(mixture, **some_priors(mixture, "keys weights")), queries, num_steps=10)
    assert ((fit.formulation.log_prior == -torch.inf) == (mixture.log_prior == -torch.inf)).all()
    keep = (mixture.log_prior[0] > -torch.inf).nonzero().squeeze(-1)
    absent = mixture.with_parameters({"keys": mixture.keys[keep], "values": mixture.values[keep], "key_precision": mixture.key_precision[keep],
                                      "value_precision": mixture.value_precision[keep], "log_prior": mixture.log_prior[:, keep]})  # fmt: skip
    fewer = inference.adapt(models.bayesian(absent, **some_priors(absent, "keys weights")), queries, num_steps=10)
    assert_equal(fit.formulation.log_prior.exp()[..., keep], fewer.formulation.log_prior.exp(), operations=512)
    priors = some_priors(mixture, "weights")
    fit = inference.adapt(models.bayesian(mixture, **priors), queries, num_steps=3)
    assert_equal(fit.objective[-1], log_density(mixture, priors, fit.formulation, [queries]))


@pytest.mark.parametrize("flat", ["keys", "values", "weights"])
def test_nobody_attends_keeps_the_old_value(flat):
    mixture, queries, outputs, _ = problem(generator(11))
    absent = torch.zeros(len(queries))
    fit = inference.adapt(
        models.bayesian(mixture, **{flat: models.FLAT}), queries, outputs, query_weights=absent, num_steps=3
    )
    before, after = (
        (mixture.log_prior, fit.formulation.log_prior)
        if flat == "weights"
        else (getattr(mixture, flat), getattr(fit.formulation, flat))
    )
    assert_equal(after, before)


@pytest.mark.slow
def test_strong_priors_freeze_and_flat_ones_are_maximum_likelihood():
    mixture, queries, *_ = problem(generator(12), queries=30, units=2)
    frozen = inference.adapt(models.bayesian(mixture, keys=Normal(mixture.keys, 1e-9)), queries, num_steps=5)
    assert (frozen.formulation.keys - mixture.keys).abs().max() < 1e-6
    flat = inference.adapt(
        models.bayesian(mixture, keys=models.FLAT, weights=models.FLAT), queries, num_steps=2000, tol=1e-12
    )
    assert flat.converged
    keys = flat.formulation.keys.clone().requires_grad_()
    (score,) = torch.autograd.grad(flat.formulation.with_parameters({"keys": keys}).log_evidence(queries).sum(), keys)
    assert score.abs().max() < 1e-8  # at a maximum to 1e-12 of the keys the score is that times a curvature of order 30
    w = flat.formulation.attention(queries)
    assert_equal(
        flat.formulation.log_prior.exp().squeeze(0), w.mean(0), operations=2**14
    )  # converged to 1e-12, not to eps


@pytest.mark.parametrize("parts", [1, 3])
def test_an_absent_query_is_not_there(parts):
    mixture, *args = problem(generator(13), queries=6)
    weights = torch.tensor([1.0, 1, 0, 1, 0, 1])
    keep = weights > 0
    priors = some_priors(mixture, "keys key_precision weights")
    ragged = inference.adapt(
        models.bayesian(mixture, **priors), args[0], *args[1:parts], query_weights=weights, num_steps=5
    )
    short = inference.adapt(
        models.bayesian(mixture, **priors), args[0][keep], *(x[keep] for x in args[1:parts]), num_steps=5
    )
    assert_equal(ragged.formulation.keys, short.formulation.keys, operations=512)
    assert_equal(ragged.objective, short.objective)
    program = models.bayesian(mixture, **priors)
    at = poutine.condition(program, {name: ragged.formulation.parameter(name) for name in priors})
    full = (*args[:parts], None, None)[:3]
    trace = poutine.trace(poutine.block(at, hide=["outputs"]) if parts == 1 else at).get_trace(*full, weights)
    assert_equal(trace.log_prob_sum(), ragged.objective[-1])


def test_fractional_query_weights_multiply_the_log_density():
    mixture, queries, *_ = problem(generator(14), queries=4)
    weights = torch.tensor([1.0, 2.0, 0.0, 0.5])
    priors = some_priors(mixture, "keys")
    fit = inference.adapt(models.bayesian(mixture, **priors), queries, query_weights=weights, num_steps=4)
    at = poutine.block(
        poutine.condition(models.bayesian(mixture, **priors), {"keys": fit.formulation.keys}), hide=["outputs"]
    )
    assert_equal(poutine.trace(at).get_trace(queries, query_weights=weights).log_prob_sum(), fit.objective[-1])


def test_chunks_change_nothing(monkeypatch):
    mixture, *args = problem(generator(15), queries=9)
    priors = some_priors(mixture, "keys key_precision values value_precision weights")
    whole = inference.adapt(models.bayesian(mixture, **priors), args[0], *args[1:], num_steps=3)
    monkeypatch.setattr("probtx_pyro.ops._chunks.CHUNK_ELEMENTS", 8)
    pieces = inference.adapt(models.bayesian(mixture, **priors), args[0], *args[1:], num_steps=3)
    assert_equal(pieces.formulation.keys, whole.formulation.keys, operations=256)
    assert_equal(pieces.objective, whole.objective)


def test_no_steps_is_the_mixture_itself():
    mixture, queries, *_ = problem(generator(16))
    fit = inference.adapt(models.bayesian(mixture, **some_priors(mixture, "keys")), queries, num_steps=0)
    assert_equal(fit.formulation.keys, mixture.keys)
    assert fit.objective.shape == (1,)


def test_a_prior_may_bring_its_own_batch():
    mixture, queries, *_ = problem(generator(17))
    strengths = torch.tensor([0.1, 10.0])
    fit = inference.adapt(
        models.bayesian(mixture, keys=Normal(mixture.keys, strengths[:, None, None].rsqrt())), queries, num_steps=5
    )
    for i, theta in enumerate(strengths):
        one = inference.adapt(models.bayesian(mixture, keys=Normal(mixture.keys, theta.rsqrt())), queries, num_steps=5)
        assert_equal(fit.formulation.keys[i], one.formulation.keys, operations=512)


def test_float32_is_close_to_float64_and_never_falls(device):
    mixture, *args = problem(generator(19), queries=40, dtype=torch.float32)
    double = mixture.to(torch.float64)
    names = "keys key_precision values value_precision weights"
    low = inference.adapt(
        models.bayesian(mixture, **cast(some_priors(mixture, names))), args[0], *args[1:], num_steps=25
    )
    high = inference.adapt(
        models.bayesian(double, **some_priors(double, names)), args[0].double(), args[1].double(), args[2], num_steps=25
    )
    assert low.formulation.keys.dtype == low.objective.dtype == torch.float32
    assert_never_falls(low.objective)
    assert (
        low.formulation.keys - high.formulation.keys
    ).abs().max() < 1e-5  # some 100 roundings of 6e-8 on numbers of order 1


def cast(priors):
    """Weights' concentrations in single precision; the scalars of the others follow the data."""
    return priors | {"weights": Dirichlet(priors["weights"].concentration.float())}


def test_other_weights_than_0_and_1_scale_the_enumerated_program_too():
    from pyro.infer import TraceEnum_ELBO

    mixture, *args = problem(generator(20))
    weights = torch.tensor([1.0, 2.0, 0.5, 0.0, 1.0])
    elbo = -TraceEnum_ELBO(max_plate_nesting=1).loss(mixture.model, mixture.guide, *args, query_weights=weights)
    assert_equal(torch.tensor(elbo), (mixture.log_evidence(*args) * weights).sum())


@pytest.mark.parametrize("answer", ["gaussian", "categorical"])
def test_without_answers_their_parameters_go_to_the_mode_of_the_prior(answer):
    mixture, queries, *_ = problem(generator(21), answer=answer)
    names = "keys answer_probs" if answer == "categorical" else "keys values value_precision"
    every = some_priors(mixture, names)
    if answer == "gaussian":
        every["values"] = Normal(mixture.values + 1.0, 0.5)
    else:
        every["answer_probs"] = Dirichlet(mixture.answer_probs * 10 + 1)
    priors = dict(**every)
    fit = inference.adapt(models.bayesian(mixture, **priors), queries, num_steps=3)
    assert_never_falls(fit.objective)
    assert_equal(fit.objective[-1], log_density(mixture, priors, fit.formulation, [queries]))
    if answer == "gaussian":
        assert_equal(fit.formulation.values, mixture.values + 1.0)
        assert_equal(fit.formulation.value_precision, torch.full((4,), (2.0 - 1) / 1.5))
    else:
        assert_equal(fit.formulation.answer_probs, mixture.answer_probs)
