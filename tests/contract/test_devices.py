"""Formulations, verbs and layers on an accelerator, moved there as a user moves them: torch's default device stays the CPU.

A GPU adds up in another order. ``operations`` counts the roundings of that: some thousand of one closed form, some ten thousand after a few
steps of EM or through a layer and its backward pass, each of which begins with the roundings of the one before.
"""

import functools
import warnings

import pytest
import torch
from formulations import MEMORIES, ROWS, priors_of
from samplers import Checkpoint
from strategies import crf_problem, generator
from tolerances import assert_equal

from probtx_pyro import inference, models, nn, ops, results

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = "cuda"
DENSITIES = {name: row for name, row in ROWS.items() if row.density}
densities = pytest.mark.parametrize("row", DENSITIES.values(), ids=DENSITIES)
DRAWS = {"num_samples": 4, "num_warmup": 2, "num_chains": 2, "seed": 0, "progress": False}


def moved(formulation, data):
    return formulation.to(DEVICE), [x.to(DEVICE) for x in data]


def posteriors(row, **options):
    """The same problem here and there."""
    formulation, *data = row.draw(generator(31), **options)
    data = data[: max(row.parts)]
    there, others = moved(formulation, data)
    return (models.bayesian(formulation, **priors_of(formulation)), data), (
        models.bayesian(there, **priors_of(there)),
        others,
    )


def assert_there(x):
    assert x.device.type == DEVICE


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one problem", "two problems"])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_closed_forms_are_those_of_the_processor(row, batch):
    formulation, *everything = row.draw(generator(1), batch=batch)
    for parts in row.parts:
        data = everything[:parts]
        there, others = moved(formulation, data)
        calls = ["attention"] + ["log_evidence", "log_joint"] * row.dense(parts) * (parts > 0)
        for name in calls:
            found, expected = getattr(there, name)(*others), getattr(formulation, name)(*data)
            assert_there(found)
            assert_equal(found, expected, operations=1024)
    if everything:
        assert_equal(there.expected_outputs(others[0]), formulation.expected_outputs(everything[0]), operations=1024)


@pytest.mark.parametrize("name", MEMORIES)
def test_memories_are_those_of_the_processor_and_are_adapted_and_drawn_there(name):
    memory, *pairs = MEMORIES[name](generator(1))
    there, others = moved(memory, pairs)
    assert_there(there.log_evidence(*others))
    assert_equal(there.log_evidence(*others), memory.log_evidence(*pairs), operations=1024)
    assert_equal(there.attention(others[0], others[0]), memory.attention(pairs[0], pairs[0]), operations=1024)
    posterior = models.bayesian(there, **priors_of(there))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_there(inference.adapt(posterior, *others, num_steps=2, progress=False).objective)
    assert_there(inference.nuts(posterior, *others, **DRAWS, max_tree_depth=2).samples["noise_precision"])


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("gradient", [False, True])
def test_far_apart_in_single_precision(scale, gradient):
    """Products, products in double precision, differences: each against double precision on the processor."""
    g = generator(2)
    keys, values, queries = (torch.randn(2, n, 8, generator=g).float() for n in (50, 50, 70))
    queries = scale * (keys[:, :1] + 1e-3 * queries / scale)
    keys = scale * keys
    expected = models.GaussianMixture(keys.double(), values.double(), 0.5).expected_outputs(queries.double())
    there = [x.to(DEVICE).requires_grad_(gradient) for x in (keys, values, queries)]
    found = models.GaussianMixture(there[0], there[1], 0.5).expected_outputs(there[2])
    assert_there(found)
    torch.testing.assert_close(
        found.detach().cpu().double(), expected, atol=2e-2, rtol=0.0
    )  # (D + 4) 2^10 roundings, at most
    if gradient:
        assert all(torch.isfinite(x).all() for x in torch.autograd.grad(found.sum(), there))


@densities
def test_adapt_takes_the_steps_of_the_processor(row):
    (posterior, data), (there, others) = posteriors(row, batch=(2,))
    fits = []
    for each, given in ((posterior, data), (there, others)):
        context = pytest.warns(UserWarning, match="gradient MAP") if not row.conjugate else None
        run = functools.partial(inference.adapt, each, *given, num_steps=3, progress=False)
        if context is None:
            fits.append(run())
        else:
            with context:
                fits.append(run())
    assert_there(fits[1].objective)
    assert_equal(fits[1].objective, fits[0].objective, operations=2**14)
    for name, x in fits[1].formulation.parameters().items():
        assert_there(x)
        assert torch.isfinite(x[~torch.isinf(x)]).all(), name


@pytest.mark.slow
@densities
@pytest.mark.parametrize("verb", ["gibbs", "nuts", "variational"])
def test_verbs_draw_there_and_repeat_themselves(row, verb):
    if verb == "gibbs" and not row.conjugate:
        pytest.skip("has no conditionals")
    _, (there, others) = posteriors(row)
    runs = []
    for _ in range(2):
        if verb == "variational":
            runs.append(inference.variational(there, *others, num_steps=3, num_samples=4, seed=0, progress=False).draws)
        else:
            more = {"max_tree_depth": 2} if verb == "nuts" else {}
            runs.append(getattr(inference, verb)(there, *others, **DRAWS, **more))
    for name, x in runs[0].samples.items():
        assert_there(x)
        assert torch.equal(x, runs[1].samples[name])
    idata = results.to_inference_data(runs[0], relabel=False)
    assert set(there.priors) <= set(idata["posterior"].data_vars)
    assert results.diagnose(idata) is not None
    if there.formulation.offers("expected_outputs"):
        assert_there(results.predict(runs[0], others[0]).expected_outputs)


@pytest.mark.parametrize("verb", ["gibbs", "nuts"])
def test_an_interrupted_run_goes_on_there(verb, tmp_path, monkeypatch):
    _, (there, others) = posteriors(ROWS["gaussian mixture"])
    more = {"max_tree_depth": 2} if verb == "nuts" else {}
    run = functools.partial(getattr(inference, verb), there, *others, **DRAWS, **more)
    whole, saved = run(), []

    def killed(self, state, save=Checkpoint.save):
        save(self, state)
        saved.append(1)
        if len(saved) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", killed)
    monkeypatch.setattr("probtx_pyro.inference._gibbs.SAVED_EVERY", -1.0)
    monkeypatch.setattr("probtx_pyro.inference._nuts.SAVE_SECONDS", -1.0)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=tmp_path / "run")
    resumed = run(checkpoint=tmp_path / "run")
    for name, x in whole.samples.items():
        assert_there(resumed.samples[name])
        assert torch.equal(resumed.samples[name], x)


def test_calibration_ranks_draws_made_there():
    _, (there, others) = posteriors(ROWS["gaussian mixture"])
    sampler = functools.partial(inference.gibbs, num_chains=1, num_samples=3, num_warmup=1, progress=False)
    found = results.calibrate(there, *others, sampler=sampler, num_simulations=2, num_draws=3, seed=0, progress=False)
    assert set(there.priors) <= set(found.ranks)


def test_a_dependency_crf_there():
    crf = crf_problem(generator(3), batch=(2,), words=4, labels=3, channels=2, distances=(2,), root=2)
    there = crf.to(DEVICE)
    for name in ("log_partition", "attention"):
        assert_equal(getattr(there, name)(), getattr(crf, name)(), operations=1024)
    found, expected = there.mean_field(5), crf.mean_field(5)
    assert_equal(found.head_marginals, expected.head_marginals, operations=1024)
    assert_there(inference.gibbs(there, **DRAWS).samples["label"])
    estimate = inference.annealed_log_partition(there, num_temperatures=4, num_chains=3, seed=0, progress=False)
    assert torch.isfinite(estimate.log_partition).all()
    arcs = torch.randn(2, 4, 5, generator=generator(4))
    assert_equal(ops.tree_marginals(arcs.to(DEVICE)), ops.tree_marginals(arcs), operations=1024)
    assert_there(ops.draw_trees(arcs.to(DEVICE), 3))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        nn.SoftmaxAttention,
        nn.GaussianMixtureAttention,
        nn.GaussianKeysAttention,
        nn.LinearKeysAttention,
        nn.HopfieldAttention,
        nn.RegressionMemoryAttention,
        functools.partial(nn.RegressionMemoryAttention, gates=True),
    ],
)
def test_layers_answer_as_on_the_processor(kind, causal):
    torch.manual_seed(0)
    layer = kind(16, 2, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 7, 16, generator=generator(5)).requires_grad_()
    expected = layer(x, x, x, is_causal=causal, need_weights=False)[0]
    (slope,) = torch.autograd.grad(expected.square().sum(), x)
    layer, x = layer.to(DEVICE), x.detach().to(DEVICE).requires_grad_()
    found = layer(x, x, x, is_causal=causal, need_weights=False)[0]
    assert_equal(found, expected, operations=4096)
    assert_equal(torch.autograd.grad(found.square().sum(), x)[0], slope, operations=2**16)
    with torch.autocast(DEVICE, torch.bfloat16):
        half = layer.float()(x.float(), x.float(), x.float(), is_causal=causal, need_weights=False)[0]
    torch.testing.assert_close(half.float(), found.float(), atol=0.1, rtol=0.1)  # eight bits through three products


@pytest.mark.parametrize("metric", [None, "full"])
def test_mixtures_are_found_from_points_there(metric):
    x = torch.randn(60, 2, generator=generator(6)) + 6 * torch.arange(3).repeat(20).unsqueeze(-1)
    here, there = (models.from_points(y, 3, metric=metric, num_steps=5, tol=None, seed=0) for y in (x, x.to(DEVICE)))
    assert_there(there.keys)
    assert_equal(there.keys, here.keys, operations=2**14)
    clusters = models.SoftKMeans(x[:3], 1.0)
    assert_equal(
        models.SoftKMeans(x[:3].to(DEVICE), 1.0).em(x.to(DEVICE), 4).objective,
        clusters.em(x, 4).objective,
        operations=4096,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_answers_by_em_there(dtype):
    keys, values, queries = (torch.randn(2, n, 4, generator=generator(7)).to(dtype) for n in (6, 6, 9))
    here, there = (
        models.GaussianMixture(keys.to(device), values.to(device), 0.5, 0.7).map_outputs(
            queries.to(device), init=values.to(device).mean(-2, keepdim=True).expand(2, 9, 4), num_steps=3
        )
        for device in ("cpu", DEVICE)
    )
    tolerance = 64 * torch.finfo(dtype).eps * float(values.abs().max())
    torch.testing.assert_close(there.cpu(), here, atol=tolerance, rtol=0.0)
