"""Wind tunnels: exact predictive distributions against enumeration, contexts, what a position sees, scores, and runs that were killed."""

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from tolerances import FALSE_ALARM_RATE, assert_equal
from torch.distributions import Categorical, Normal
from torch.nn import functional as F

from benchmarks import wind_tunnel_tasks as tasks
from benchmarks import wind_tunnels as tunnels
from benchmarks.wind_tunnel_tasks import TUNNELS, Contexts


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def _as_trained():
    """Contexts and networks are made in single precision, as in training."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


# -- exact predictive distributions ----------------------------------------------------------------------------------------


def test_flips_by_the_integral():
    """``∫ c^(h+1) (1-c)^(n-h) dc / ∫ c^h (1-c)^(n-h) dc``, Beta integrals by factorials."""
    for flips in itertools.product((0, 1), repeat=5):
        found = tasks.laplace_rule(tasks._alone(torch.tensor([flips]))).probs[0, :, 1]
        for place, p in enumerate(found.tolist()):
            heads, tails = sum(flips[:place]), place - sum(flips[:place])

            def beta(a, b):
                return Fraction(math.factorial(a) * math.factorial(b), math.factorial(a + b + 1))

            assert p == pytest.approx(float(beta(heads + 1, tails) / beta(heads, tails)), abs=1e-15)  # a few roundings


def test_bijections_by_listing_them(monkeypatch):
    monkeypatch.setattr(tasks, "VALUES", 4)
    every = list(itertools.permutations(range(4)))
    given = tasks.draw_bijections(generator(), 20, 7)
    found = tasks.revealed(given).probs
    keys = given.inputs.argmax(-1)
    for context, place in itertools.product(range(20), range(7)):
        pairs = list(zip(keys[context].tolist(), given.observed[context].tolist(), strict=True))[:place]
        left = [x for x in every if all(x[key] == value for key, value in pairs)]
        wanted = [Fraction(sum(x[keys[context, place]] == value for x in left), len(left)) for value in range(4)]
        assert found[context, place].tolist() == pytest.approx([float(p) for p in wanted], abs=1e-15)


def test_regressions_by_solving_for_the_weights():
    given = tasks.draw_regressions(generator(), 5, 9)
    found = tasks.regression(given)
    for context, place in itertools.product(range(5), range(9)):
        x, y = given.inputs[context, :place].double(), given.observed[context, :place].double()
        asked = given.inputs[context, place].double()
        covariance = torch.linalg.inv(torch.eye(2).double() + x.mT @ x)
        assert_equal(found.mean[context, place], asked @ covariance @ x.mT @ y)
        assert_equal(found.variance[context, place], asked @ covariance @ asked + 1.0)


def of_paths(symbols):
    """Exact chances of all paths of states together with the symbols."""
    transition = [[Fraction(round(100 * x), 100) for x in row] for row in tasks.TRANSITION.tolist()]
    emission = [[Fraction(round(10 * x), 10) for x in row] for row in tasks.EMISSION.tolist()]
    joint = {}
    for path in itertools.product(range(3), repeat=len(symbols)):
        p = Fraction(1, 3) * math.prod(transition[a][b] for a, b in itertools.pairwise(path))
        joint[path] = p * math.prod(emission[state][symbol] for state, symbol in zip(path, symbols, strict=True))
    return joint


def test_symbols_and_states_by_listing_paths():
    for symbols in ([0, 3, 1, 1], [2, 2, 0, 3]):
        filtered = tasks.filtered(tasks._alone(torch.tensor([symbols]))).probs[0]
        for place, symbol in itertools.product(range(4), range(4)):
            longer, before = (sum(of_paths(x).values()) for x in ([*symbols[:place], symbol], symbols[:place] or [0]))
            before = before if place else 1
            assert float(filtered[place, symbol]) == pytest.approx(float(longer / before), abs=1e-14)
        smoothed = tasks.smoothed(Contexts(torch.zeros(1, 4).long(), F.one_hot(torch.tensor([symbols]), 4))).probs[0]
        joint = of_paths(symbols)
        for place, state in itertools.product(range(4), range(3)):
            wanted = sum(p for path, p in joint.items() if path[place] == state) / sum(joint.values())
            assert float(smoothed[place, state]) == pytest.approx(float(wanted), abs=1e-14)


def test_the_recursions_are_those_of_dynamax():
    hmm = pytest.importorskip("dynamax.hidden_markov_model", reason="dynamax is missing: pip install dynamax")
    symbols = tasks.draw_symbols(generator(), 1, 30).observed
    likelihoods = tasks.EMISSION.T[symbols[0]].log().numpy()
    model = np.full(3, 1 / 3), tasks.TRANSITION.numpy(), likelihoods
    found = hmm.hmm_smoother(*model)
    before, after = tasks.forward(symbols)
    smoothed = tasks.smoothed(Contexts(symbols, F.one_hot(symbols, 4))).probs
    near = 64 * 30 * np.finfo(np.float32).eps  # JAX computes in single precision: rounding of 30 steps
    np.testing.assert_allclose(hmm.hmm_filter(*model).predicted_probs, before[0].numpy(), atol=near)
    np.testing.assert_allclose(found.filtered_probs, after[0].numpy(), atol=near)
    np.testing.assert_allclose(found.smoothed_probs, smoothed[0].numpy(), atol=near)


# -- their programs --------------------------------------------------------------------------------------------------------


def log_evidence(program, *data):
    """Log evidence of data under a program whose latent sites are discrete: Pyro sums them out."""
    pyro.clear_param_store()
    enumerated = config_enumerate(program, "parallel")
    return -TraceEnum_ELBO(max_plate_nesting=1).loss(enumerated, lambda *data: None, *data)


def chances_of(exact, observed):
    return float(exact.log_prob(observed).sum())


def test_the_program_of_symbols_has_their_evidence():
    given = tasks.draw_symbols(generator(), 3, 5)
    assert log_evidence(tasks.hidden_markov, given.observed) == pytest.approx(chances_of(tasks.filtered(given), given.observed), rel=1e-6)  # fmt: skip


def test_the_program_of_bijections_has_their_evidence(monkeypatch):
    monkeypatch.setattr(tasks, "VALUES", 3)
    given = tasks.draw_bijections(generator(1), 4, 5)
    for keys, values, exact in zip(given.inputs.argmax(-1), given.observed, tasks.revealed(given).probs, strict=True):
        found = log_evidence(lambda k, v: tasks.bijection(k, v, 3), keys, values)
        assert found == pytest.approx(chances_of(Categorical(exact), values), rel=1e-6)


def test_the_program_of_flips_has_their_evidence():
    """By Gauss-Legendre quadrature, exact for polynomials of degree 7."""
    points, weights = np.polynomial.legendre.leggauss(8)
    flips, total = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0]), 0.0
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        conditioned = poutine.condition(tasks.coin_flips, {"chance": torch.tensor(point, dtype=torch.float32)})
        total += weight * math.exp(float(poutine.trace(conditioned).get_trace(flips).log_prob_sum()))
    given = tasks._alone(flips.long().unsqueeze(0))
    assert math.log(total) == pytest.approx(chances_of(tasks.laplace_rule(given), given.observed), rel=1e-6)


def test_the_program_of_regressions_is_a_model_of_the_library():
    given = tasks.draw_regressions(generator(), 1, 6)
    keys, values = given.inputs[0].double(), given.observed[0].double().unsqueeze(-1)
    covariance = keys @ keys.mT + torch.eye(6).double()
    wanted = torch.distributions.MultivariateNormal(torch.zeros(6).double(), covariance).log_prob(values[:, 0])
    assert_equal(TUNNELS["regression"].program.log_evidence(keys, values).sum(), wanted)
    assert_equal(tasks.regression(given).log_prob(given.observed.double()).sum(), wanted)


# -- contexts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TUNNELS)
def test_contexts_are_drawn_from_what_is_said_to_be_exact(name):
    """Mean log loss less mean entropy is 0 on average; by the central limit theorem within 5 standard errors (false alarm 6e-7)."""
    given = TUNNELS[name].draw(generator(), 4000, 12)
    exact = TUNNELS[name].exact(given)
    excess = (-exact.log_prob(given.observed) - exact.entropy()).mean(-1).double()
    error = float(excess.std()) / math.sqrt(len(excess))
    rounding = 1e-12  # of a bijection nothing else is left: all draws from a uniform distribution are equally likely
    assert abs(float(excess.mean())) < 5 * error + rounding


@pytest.mark.parametrize("name", TUNNELS)
def test_equal_seeds_give_equal_contexts(name):
    first, again, other = (TUNNELS[name].draw(generator(seed), 8, 6) for seed in (0, 0, 1))
    assert first.observed.equal(again.observed) and first.inputs.equal(again.inputs)
    assert not first.observed.equal(other.observed)


@pytest.mark.parametrize("name", [name for name, of in TUNNELS.items() if of.causal])
def test_a_position_sees_nothing_of_what_it_predicts(name):
    """Tokens up to a position have all pairs before it, and nothing of the observations from it on."""
    given = TUNNELS[name].draw(generator(), 6, 8)
    seen = tunnels.tokens_of(given, name)
    changed = given.observed.clone()
    changed[:, 4:] = TUNNELS[name].draw(generator(1), 6, 8).observed[:, 4:]
    others = tunnels.tokens_of(Contexts(changed, given.inputs), name)
    assert seen[:, :5].equal(others[:, :5]) and not seen[:, 5:].equal(others[:, 5:])
    outcomes, inputs = TUNNELS[name].outcomes, given.inputs.shape[-1]
    before = seen[:, 1:, : outcomes or 1]
    told = before.argmax(-1) if outcomes else before.squeeze(-1)
    assert told.equal(given.observed[:, :-1])
    assert seen[:, 1:, (outcomes or 1) : (outcomes or 1) + inputs].equal(given.inputs[:, :-1])
    assert seen[..., seen.shape[-1] - inputs :].equal(given.inputs)
    assert not seen[:, 0, : seen.shape[-1] - inputs].any()


@pytest.mark.parametrize("layer", tunnels.LAYERS)
def test_networks_are_causal_and_small(layer):
    torch.manual_seed(0)
    name = "smoothing" if layer == "dependency CRF" else "bijection"
    model = tunnels.Network(tunnels.Settings(tunnel=name, layer=layer)).eval()
    assert sum(x.numel() for x in model.parameters()) < 500_000
    given = TUNNELS[name].draw(generator(), 4, 10)
    with torch.no_grad():
        found, shorter = (model.predict(Contexts(*(x[:, :n] for x in given))).logits[:, :6] for n in (10, 6))
    if TUNNELS[name].causal:
        # rounding of two blocks: sums over 32 channels, and solves of 8 by 8 in the memory
        torch.testing.assert_close(found, shorter, atol=2e-5, rtol=0)
    else:
        assert (found - shorter).abs().max() > 1e-4


def test_the_control_sees_itself_alone():
    torch.manual_seed(0)
    model = tunnels.Network(tunnels.Settings(tunnel="coin flips", layer="no attention"))
    flips = torch.randint(2, (1, 9))
    changed = torch.cat([1 - flips[:, :5], flips[:, 5:]], 1)
    first, second = (model.predict(tasks._alone(x)).logits[:, 6:] for x in (flips, changed))
    assert first.equal(second)


# -- scores ----------------------------------------------------------------------------------------------------------------


def test_distances_are_those_of_the_definition():
    p, q = (
        torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).double(),
        torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]).double(),
    )
    kl, entropy = tunnels.distances(Categorical(p), Categorical(q))
    assert kl.tolist() == pytest.approx([0.5, 1.0], abs=1e-12)
    assert entropy.tolist() == pytest.approx([0.5, 1.5], abs=1e-12)
    kl, entropy = tunnels.distances(Normal(torch.zeros(1), torch.ones(1)), Normal(torch.ones(1), 2 * torch.ones(1)))
    assert float(kl) == pytest.approx((math.log(2) + 2 / 8 - 1 / 2) / math.log(2), rel=1e-6)  # single precision
    assert float(entropy) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("name", [name for name, of in TUNNELS.items() if of.exchangeable])
def test_exact_predictions_pass_the_check_and_sharper_ones_do_not(name):
    """A correct check of fixed draws fails once in 100,000 runs; orders are of no account but for rounding."""
    exact = TUNNELS[name].exact
    found = tunnels.exchangeable_scores(exact, name, 128)
    assert found["p"] > FALSE_ALARM_RATE and found["spread"] < 1e-6
    if found["distance"] is not None:
        assert found["distance"] < 1e-6

    def sharper(given):
        """A temperature of a half; of a bijection, whose predictions are uniform, a little of every value; deviations that shrink."""
        now = exact(given)
        if name == "bijection":
            return Categorical(0.9 * now.probs + 0.1 / tasks.VALUES)
        if TUNNELS[name].outcomes:
            return Categorical(logits=now.logits / 0.5)
        return Normal(now.mean, now.stddev / torch.arange(1, given.observed.shape[1] + 1).sqrt())

    assert tunnels.exchangeable_scores(sharper, name, 128)["p"] < FALSE_ALARM_RATE


def test_rows_and_claims():
    assert len(tunnels.ROWS) == len(set(tunnels.ROWS)) == 4 * 7 + 3 * 6 + 3
    assert len(tunnels.CLAIMS) == 4 * 6 + 2 and all(row in tunnels.ROWS for claim in tunnels.CLAIMS for row in claim)
    names = [tunnels.file_of(tunnels.settings_of(row, quick)) for row in tunnels.ROWS for quick in (False, True)]
    assert len(set(names)) == len(names)


def test_a_task_without_its_anchor_has_no_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr(tunnels, "FOLDER", tmp_path)
    draw = np.random.default_rng(0)

    def write(layer, mean):
        for seed in range(5):
            blocks = mean * (1 + 0.01 * draw.normal(size=8))
            run = {
                "trained": {"kl": [float(blocks.mean())]},
                "blocks": blocks.tolist(),
                "validation": [[1, 1.0], [10, 1.0]],
            }
            tunnels.file_of(tunnels.settings_of(tunnels.Row("coin flips", layer), False, seed)).write_text(
                json.dumps(run)
            )

    write("softmax", 0.001)
    write("linear", 0.002)
    (line,) = tunnels.verdicts_table()[2:]
    assert "softmax is nearer than linear" in line and "| holds |" in line
    write("linear", 0.0005)
    assert "| does not hold |" in tunnels.verdicts_table()[2]
    write("softmax", 0.02)
    assert "| undertrained |" in tunnels.verdicts_table()[2]


# -- runs ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_and_ends_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(tunnels, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(tunnels, "TESTED", 32)
    settings = tunnels.Settings(tunnel="coin flips", num_steps=6, validate_every=3, width=8, heads=2, length=6, batch=4)
    whole = tunnels.result(settings, tmp_path / "whole.json")
    out = tunnels.CACHE / "wind-tunnels-stopped"
    tunnels.train_task(
        tunnels.task_of(settings), out, progress=False, stop_after=4
    )  # the checkpoint that a kill leaves
    stopped = tunnels.result(settings, tmp_path / "stopped.json")
    assert not out.exists()
    for same in ("settings", "validation", "trained", "twice", "blocks", "exchangeable"):
        assert stopped[same] == whole[same]
    monkeypatch.setattr(tunnels, "task_of", None)  # what is there is read
    assert tunnels.result(settings, tmp_path / "whole.json") == json.loads((tmp_path / "whole.json").read_text())
    with pytest.raises(ValueError, match="was run with another lr; remove it to run again"):
        tunnels.result(replace(settings, lr=1.0), tmp_path / "whole.json")


def test_trials_go_on_beyond_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tunnels, "FOLDER", tmp_path)
    asked = []

    def made(settings, path, trial):
        asked.append((settings.lr, settings.num_steps, settings.seed, trial))
        return {"validation": [[1, abs(math.log(settings.lr / 0.03))]]}

    monkeypatch.setattr(tunnels, "result", made)
    assert tunnels.best_rate(tunnels.Settings(tunnel="coin flips")) == 0.03
    half = tunnels.STEPS // 2, tunnels.TUNING_SEED, True
    assert asked == [(rate, *half) for rate in (1e-3, 3e-3, 1e-2, 3e-2, 0.1)]
