"""Gibbs sampling of latent choices: labels and heads of the dependency CRF against enumeration, and what draws become."""

import sys

import pytest
import torch
from scipy import stats
from strategies import crf_problem, crf_with_evidence, generator
from tolerances import FALSE_ALARM_RATE

from probtx_pyro import inference, models, results


def assert_near(chains, exact, what):
    """Means of independent chains (chain, ...) within four of their errors, of the exact one at least, and the grain of a count."""
    mean, number = chains.mean(0), len(chains)
    error = torch.maximum(chains.var(0), exact * (1 - exact) / 200).div(number).sqrt()
    wrong = (mean - exact).abs() > 4 * error + 1e-9
    assert not wrong.any(), (
        f"{what}: {mean[wrong].tolist()}, not {exact[wrong].tolist()}, errors {error[wrong].tolist()}"
    )


def frequencies(x, number):
    """Choices (chain, draw, ...) as shares of draws, (chain, ..., number); -1 is none."""
    return torch.nn.functional.one_hot(x + 1, number + 1)[..., 1:].double().mean(1)


def check(seed):
    crf, given = crf_with_evidence(seed)
    draws = inference.gibbs(crf, **given, num_samples=50, num_chains=400, num_warmup=50, thin=2, seed=seed)
    exact, parts = crf.marginals(**given), crf.potentials().parts
    assert_near(frequencies(draws.samples["label"], crf.unary.shape[-1]), exact.labels, f"labels of {seed}")
    assert_near(frequencies(draws.samples["head"], parts[0]), exact.heads[..., : parts[0]], f"heads of {seed}")
    if crf.root_ternary is not None:
        assert_near(frequencies(draws.samples["root_label"], crf.root_ternary.shape[-1]), exact.root, f"root of {seed}")
    if crf.memory_split:
        nodes = exact.heads[: len(crf.memory), :, parts[0] :]
        assert_near(frequencies(draws.samples["node"], parts[1]), nodes, f"nodes of {seed}")


@pytest.mark.parametrize("seed", [11, 23])
def test_marginals_are_those_of_enumeration(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_marginals_of_a_hundred_problems_are_those_of_enumeration(seed):
    check(seed)


@pytest.mark.slow
def test_ranks_of_exact_draws_among_those_of_the_sampler_are_uniform():
    """Calibration: sentences drawn exactly, some of their words shown, the others drawn: the truth is one draw among them."""
    crf = crf_problem(generator(5), words=4, labels=3, distances=(2,), root=2, scale=1.5)
    every = torch.cartesian_prod(*(torch.arange(3) for _ in range(4)), torch.arange(2))
    logs = crf.log_joint(every[:, :4], root_label=every[:, 4])
    sentences, others = 1000, 19
    truth = every[torch.multinomial(logs.softmax(0), sentences, replacement=True, generator=generator(6))]
    shown, many = torch.tensor([False, True, False, False]), crf.replace(unary=crf.unary.expand(sentences, -1, -1))
    draws = inference.gibbs(many, truth[:, :4], observed=shown, num_chains=others, num_samples=1, num_warmup=30, seed=7)
    labels, root = draws.samples["label"][:, 0], draws.samples["root_label"][:, 0]
    assert (labels[..., 1] == truth[:, 1]).all()
    for drawn, true in (
        (many.log_joint(labels, root_label=root), many.log_joint(truth[:, :4], root_label=truth[:, 4])),
        (labels[..., 0] + 3.0 * labels[..., 3] + 9.0 * root, truth[:, 0] + 3.0 * truth[:, 3] + 9.0 * truth[:, 4]),
    ):
        ties = (drawn - true).abs() < 1e-9  # the same state but for rounding; different ones lie apart by far more
        share = torch.rand(sentences, generator=generator(8)) * (ties.sum(0) + 1)
        ranks = ((drawn < true) & ~ties).sum(0) + share.long()
        counts = torch.bincount(ranks, minlength=others + 1)
        assert stats.chisquare(counts.cpu().numpy()).pvalue > FALSE_ALARM_RATE


def gibbs_module():
    return sys.modules["probtx_pyro.inference._gibbs"]


class Killed(Exception):
    """The process dies."""


def test_a_killed_run_goes_on_to_the_same_draws(tmp_path, monkeypatch):
    crf = crf_problem(generator(9), batch=(2,), words=3, root=2, rank=2)
    run = {"num_samples": 6, "num_chains": 3, "num_warmup": 4, "thin": 2, "seed": 1}
    whole = inference.gibbs(crf, **run)
    monkeypatch.setattr(gibbs_module(), "SAVED_EVERY", 0.0)
    kind, count = type(crf.latents((None, None, None))), []
    sweep = kind.sweep

    def dies(*args):
        count.append(1)
        if len(count) == 9:
            raise Killed
        return sweep(*args)

    monkeypatch.setattr(kind, "sweep", dies)
    with pytest.raises(Killed):
        inference.gibbs(crf, **run, checkpoint=tmp_path / "run")
    resumed = inference.gibbs(crf, **run, checkpoint=tmp_path / "run")
    assert len(count) == 9 + 16 - 8  # nothing was drawn twice
    assert whole.samples.keys() == {"label", "head", "root_label"}
    for name, x in whole.samples.items():
        assert x.equal(resumed.samples[name])
    assert whole.statistics["lp"].equal(resumed.statistics["lp"])
    sharper = models.LowRank(2 * crf.ternary.left, crf.ternary.right)
    with pytest.raises(ValueError, match="another run"):
        inference.gibbs(crf.replace(ternary=sharper), **run, checkpoint=tmp_path / "run")


def test_draws_convert_with_the_posterior_of_heads_as_attention():
    crf = crf_problem(generator(10), batch=(2,), words=3, labels=3, root=2, nodes=2, node_channels=1, split=True)
    labels, observed = torch.tensor([[0, 1, 2], [2, 2, 1]]), torch.tensor([True, False, False])
    draws = inference.gibbs(crf, labels, observed=observed, num_samples=100, num_chains=20, num_warmup=50, seed=2)
    idata = results.to_inference_data(draws, coords={"word": ["a", "cat", "sat"]})
    sizes = {"chain": 20, "draw": 100, "sentence": 2, "channel": 2, "node_channel": 1, "word": 3, "slot": 6}
    assert dict(idata["posterior"].sizes) == sizes
    dims = {name: x.dims[2:] for name, x in idata["posterior"].data_vars.items()}
    heads = ("sentence", "channel", "word")
    assert dims == {"label": ("sentence", "word"), "head": heads, "node": ("sentence", "node_channel", "word"),
                    "root_label": ("sentence",), "attention": (*heads, "slot")}  # fmt: skip
    exact = crf.marginals(labels, observed=observed)
    attention = torch.as_tensor(idata["posterior"]["attention"].values)
    assert_near(attention.mean(1), exact.heads.cpu(), "attention")
    assert list(idata["observed_data"]) == ["labels"] and "observed" in idata["constant_data"]
    assert results.diagnose(idata).ok
    thinned = results.to_inference_data(draws, attention=40)
    assert thinned["attention"]["attention"].sizes["draw"] == 3 and "attention" not in thinned["posterior"]
    assert draws.formulation() is crf


def test_lp_is_the_log_density_of_the_labels():
    crf = crf_problem(generator(11), batch=(3,), words=4, masked=True)
    draws = inference.gibbs(crf, num_samples=5, num_chains=2, num_warmup=0, seed=4)
    expected = crf.log_joint(draws.samples["label"]).sum(-1)
    assert torch.equal(draws.statistics["lp"], expected)
    assert (draws.samples["label"] == -1).equal(~crf.mask.expand(2, 5, 3, 4))
    assert torch.isfinite(crf.log_joint(draws.samples["label"], draws.samples["head"])).all()
    start = {"label": torch.zeros(3, 4, dtype=torch.long)}
    begun = inference.gibbs(crf, num_samples=1, num_chains=2, num_warmup=0, seed=4, start=start)
    assert (begun.samples["label"][:, 0] == torch.where(crf.mask, 0, -1)).all()


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("map", r"start must be None or a mapping of 'label', 'root_label', not 'map'"),
        ({"label": torch.zeros(3)}, r"not a mapping of 'label'"),
        ({"label": torch.zeros(3), "root_label": torch.tensor(0)}, r"start of label is torch.float\d+ of shape \(3,\); it must be torch.int64 \(3,\)"),
        ({"label": torch.zeros(3, dtype=torch.long), "root_label": torch.tensor(0)}, r"start has no density: it differs from what is known"),
    ],
)  # fmt: skip
def test_a_start_that_does_not_fit_is_refused(start, said):
    crf = crf_problem(generator(12), words=3, root=2)
    with pytest.raises(ValueError, match=said):
        inference.gibbs(crf, torch.ones(3, dtype=torch.long), start=start, seed=0)


def test_options_of_draws_of_parameters_are_refused():
    draws = inference.gibbs(crf_problem(generator(13), words=2), num_samples=2, num_chains=1, num_warmup=0, seed=0)
    with pytest.raises(ValueError, match="draws of latent choices alone explain no data; drop them"):
        results.to_inference_data(draws, seed=0)
