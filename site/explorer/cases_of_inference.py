"""Cases for views 6, 8, 9 and 14 of the explorer, computed by the library in float64: ``python site/explorer/cases_of_inference.py``.

A case names a function of ``src/math``, its arguments, and what the library says that it returns; `tests/explorer` runs them.
"""

import json
import math
from itertools import pairwise
from pathlib import Path

import arviz
import numpy as np
import pyro
import torch
from cases import KIND, case
from pyro.distributions import Gamma, Normal
from pyro.ops.integrator import velocity_verlet
from scipy import integrate, stats

from probtx_pyro import inference, models, results
from probtx_pyro.inference._importance import log_mean
from probtx_pyro.inference._program import parameters
from probtx_pyro.models._problem import MODE, update
from probtx_pyro.models.dependency_crf._densities import log_density
from probtx_pyro.ops import dependency_crf as crf_ops
from probtx_pyro.ops._label_sweeps import Sweeps
from probtx_pyro.results._ecdf import counts_below, simultaneous_band, uniformity
from probtx_pyro.results._predict import quantiles, shares

FILE = Path(__file__).with_name("cases_of_inference.json")

# -- view 6: keys that adapt ---------------------------------------------------------------------------------------------------


def random_problem(generator, kind, queries, units, features):
    """A problem of ``adapt.js``, with its posterior and its queries in the library."""
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=KIND)  # noqa: E731
    problem = {
        "queries": draw(queries, features) * 1.5, "keys": draw(units, features) * 1.5,
        "precision": float(draw(1).exp()), "weights": draw(units).log_softmax(0),
        "keyStrength": float(draw(1).exp()), "shiftStrength": float(draw(1).exp()), "adapt": kind,
    }  # fmt: skip
    return problem, posterior_of(problem)


def posterior_of(problem):
    """`models.bayesian` of a problem."""
    keys, shifts = problem["keys"], problem["adapt"] != "own"
    mixture = models.GaussianMixture(
        keys, key_precision=problem["precision"], log_prior=problem["weights"][None],
        shift=torch.zeros(keys.shape[-1], dtype=KIND) if shifts else None,
    )  # fmt: skip
    priors = {}
    if problem["adapt"] != "shift":
        priors["keys"] = Normal(keys, torch.tensor(problem["keyStrength"], dtype=KIND) ** -0.5)
    if shifts:
        priors["shift"] = Normal(
            torch.zeros(keys.shape[-1], dtype=KIND), torch.tensor(problem["shiftStrength"], dtype=KIND) ** -0.5
        )
    return models.bayesian(mixture, **priors)


def state_of(mixture):
    """A state of ``adapt.js``."""
    shift = torch.zeros(mixture.keys.shape[-1], dtype=KIND) if mixture.shift is None else mixture.shift
    return {"keys": mixture.keys, "shift": shift}


def adapt_cases():
    """Steps of ECM, conditionals of Gibbs sampling, log joints, averages over draws, and the exact average."""
    generator, found = torch.Generator().manual_seed(6), []
    for number, (kind, queries, units, features) in enumerate(
        (kind, *size) for kind in ("own", "shift", "both") for size in ((5, 2, 1), (7, 3, 2), (12, 4, 2))
    ):
        problem, posterior = random_problem(generator, kind, queries, units, features)
        data, named = problem["queries"], f"{kind} {number}"
        states, objective = [], None
        for steps in range(6):
            fit = inference.adapt(posterior, data, num_steps=steps, progress=False)
            states.append(state_of(fit.formulation))
            objective = fit.objective
        found.append(case("adapt", "adapt", named, {"states": states, "objective": objective}, problem, 5))
        moved = posterior.formulation.replace(keys=states[2]["keys"])
        moved = moved.replace(shift=states[2]["shift"]) if moved.shift is not None else moved
        said = {"attention": moved.attention(data[:1])[0], "logEvidence": moved.log_evidence(data[:1])[0]}
        found.append(case("adapt", "explain", named, said, problem, states[2], data[0]))
        found += conditional_cases(problem, posterior, moved, named)
        draws = inference.gibbs(
            posterior, data, num_samples=15, num_chains=2, num_warmup=5, seed=number, progress=False
        )
        found.append(average_case(problem, posterior, draws, named))
    return found + exact_cases(generator)


def conditional_cases(problem, posterior, mixture, named):
    """Mean and precision of what Gibbs sampling draws from, given the expected assignments of a mixture."""
    data = posterior.bind(problem["queries"])
    joint = posterior.problem(*data)
    state = {name: getattr(mixture, name) for name in joint.start}
    seen = mixture.expect(data)
    strengths = []

    def kept(precision, pull, old):
        strengths.append(precision)
        return pull / precision

    new = update(joint.sites, mixture, state, seen, MODE._replace(normal=kept))
    attention, found = mixture.attention(problem["queries"]), []
    shift = state_of(mixture)["shift"]
    if "keys" in new:
        strength = strengths[0].expand(new["keys"].shape)[:, 0]
        expected = {"mean": new["keys"], "precision": strength}
        found.append(case("adapt", "keyConditional", named, expected, problem, attention, shift))
    if "shift" in new:
        keys = new.get("keys", mixture.keys)
        expected = {"mean": new["shift"], "precision": float(strengths[-1].flatten()[0])}
        found.append(case("adapt", "shiftConditional", named, expected, problem, attention, keys))
    here = state_of(mixture)
    return [*found, case("adapt", "logJoint", named, joint.objective(state), problem, here)]


def average_case(problem, posterior, draws, named):
    """The right and the wrong average of the attention of a new query, its band and its evidence."""
    query = torch.full((1, problem["keys"].shape[-1]), 0.3, dtype=KIND)
    said = results.predict(draws, query, relabel=False)
    many = posterior.formulation.with_parameters({name: x.flatten(0, 1) for name, x in draws.samples.items()})
    evidence, attention = many.log_evidence(query)[:, 0], many.attention(query)[:, 0]
    weights = shares(evidence[None])[0]
    ends = quantiles(attention[None], weights[None, :, None], (0.05, 0.95))
    states = [state_of(posterior.formulation.with_parameters({n: x.flatten(0, 1)[s] for n, x in draws.samples.items()}))
              for s in range(len(evidence))]  # fmt: skip
    expected = {
        "right": said.attention[0], "wrong": attention.mean(0), "lower": ends[0], "upper": ends[1],
        "logEvidence": said.log_evidence[0], "effective": 1 / weights.square().sum(),
    }  # fmt: skip
    return case("adapt", "average", named, expected, problem, states, query[0], 0.9)


def exact_cases(generator):
    """p(unit | q, D), by sums over a grid of parameters: of Gaussian tails the error falls as exp(-2 pi^2 / h^2), h in standard deviations."""
    found = []
    for number, (kind, queries, units) in enumerate(
        [("own", 3, 2), ("own", 5, 2), ("shift", 4, 3), ("shift", 6, 2), ("both", 3, 2), ("both", 4, 1)]
    ):
        problem, posterior = random_problem(generator, kind, queries, units, 1)
        problem |= {"precision": 1.0 + 0.2 * number, "keyStrength": 0.5, "shiftStrength": 0.4}
        posterior = posterior_of(problem)
        axes, joint = [], posterior.problem(problem["queries"])
        coordinates = sum(x.numel() for x in joint.start.values())
        narrowest = (0.5 + problem["precision"] * queries) ** -0.5
        centers = [*problem["keys"].flatten().tolist()] if kind != "shift" else []
        centers += [0.0] if kind != "own" else []
        for center in centers:
            reach = 8 * 0.4**-0.5 if kind == "shift" else 8 * 0.5**-0.5
            axes.append(torch.arange(-reach, reach, 0.6 * narrowest, dtype=KIND) + center)
        grid = torch.cartesian_prod(*axes).reshape(-1, coordinates)
        state = {}
        if kind != "shift":
            state["keys"] = grid[:, :units, None]
        if kind != "own":
            state["shift"] = grid[:, -1:]
        query, log_joint, evidence, attention = torch.tensor([[0.4]], dtype=KIND), [], [], []
        for rows in torch.arange(len(grid)).split(100_000):
            some = {name: x[rows] for name, x in state.items()}
            mixture = posterior.formulation.with_parameters(some)
            prior = sum(
                joint.sites[name].distribution.log_prob(x).reshape(len(rows), -1).sum(1) for name, x in some.items()
            )
            log_joint.append(mixture.log_evidence(problem["queries"]).sum(-1) + prior)
            evidence.append(mixture.log_evidence(query)[:, 0])
            attention.append(mixture.attention(query)[:, 0])
        log_joint, evidence, attention = torch.cat(log_joint), torch.cat(evidence), torch.cat(attention)
        cell = sum(float((axis[1] - axis[0]).log()) for axis in axes)
        shared = (log_joint + evidence).softmax(0)
        expected = {
            "right": shared @ attention, "logData": log_joint.logsumexp(0) + cell,
            "logEvidence": (log_joint + evidence).logsumexp(0) - log_joint.logsumexp(0),
        }  # fmt: skip
        found.append(case("adapt", "exact", f"{kind} {number}", expected, problem, query[0]))
    return found


# -- view 8: the dependency CRF ------------------------------------------------------------------------------------------------

CRFS = [  # words, labels, channels, distances, labels of the root (0: none)
    (2, 3, 1, (), 0), (4, 2, 2, (), 0), (4, 3, 1, (2,), 1), (5, 2, 2, (2, 4), 2), (3, 4, 3, (), 3), (5, 3, 2, (3,), 0),
]  # fmt: skip
OPTIONS = [
    {},
    {"schedule": "sequential"},
    {"schedule": "synchronous", "labelDamping": 0.3, "headDamping": 0.5},
    {"labelTemperature": 0.7, "headTemperature": 0.5, "labelDamping": 0.6},
]


def random_crf(generator, words, labels, channels, distances, roots):
    """A CRF of ``crf.js``, and of the library."""
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=KIND)  # noqa: E731
    ternary = draw(channels, 2 * (len(distances) + 1), labels, labels)
    root = draw(channels, labels, roots) if roots else None
    unary = draw(words, labels)
    own = {"unary": unary, "ternary": ternary, "distances": list(distances), "root": root}
    return own, models.DependencyCRF(unary, ternary, distances=distances, root_ternary=root)


def crf_cases():
    """Marginals of mean field, its objective, exact sums, conditionals of Gibbs sampling, the start of annealing."""
    generator, found = torch.Generator().manual_seed(8), []
    for number, size in enumerate(CRFS):
        own, crf = random_crf(generator, *size)
        for options in OPTIONS:
            found.append(mean_field_case(own, crf, options, f"CRF {number} {options}"))
        potentials, name = crf.potentials(), f"CRF {number}"
        exact = crf.marginals()
        expected = {"logPartition": crf.log_partition(), "labels": exact.labels, "heads": exact.heads}
        found.append(case("crf", "enumerate", name, expected, own))
        labels = torch.randint(size[1], (size[0],), generator=generator)
        root = torch.randint(size[4], (), generator=generator) if size[4] else None
        state = {"label": labels} if root is None else {"label": labels, "root_label": root}
        at = [int(x) for x in labels], 0 if root is None else int(root)
        for beta in (1.0, 0.35):
            density = crf.latents((None,) * 3).log_density({k: x[None] for k, x in state.items()}, beta)[0, 0]
            for function in ("logDensity", "sweptDensity"):
                found.append(case("crf", function, f"{name} beta {beta}", density, own, *at, beta))
        logits = Sweeps(potentials).conditional(labels[None, None], None if root is None else root[None, None], 1, 0.8)
        found.append(case("crf", "probabilities", name, logits[0, 0].softmax(0), own, *at, 1, 0.8))
        found.append(case("crf", "basePartition", name, crf.latents((None,) * 3).log_partition(), own))
        scores = crf_ops.head_scores(potentials, exact.labels[None], None if root is None else exact.root[None])[0]
        found.append(case("crf", "headScores", name, scores, own, exact.labels, exact.root))
        slots = potentials.slot_scores(labels[None], None if root is None else root[None])[0].exp()
        found.append(case("crf", "slotWeights", name, slots, own, *at))
        both = log_density(potentials, labels[None], None if root is None else root[None], slots.log()[None])
        assert torch.allclose(both, crf.log_joint(labels, root_label=root))
    weights = torch.randn(40, generator=generator, dtype=KIND)
    mean, error, _ = log_mean(weights)
    return [*found, case("crf", "logMean", "40 weights", {"mean": mean, "standardError": error}, weights)]


def mean_field_case(own, crf, options, name):
    """Seven sweeps: objective of each, and the marginals after the last."""
    names = {"schedule": "schedule", "labelTemperature": "label_temperature", "headTemperature": "head_temperature",
             "labelDamping": "label_damping", "headDamping": "head_damping"}  # fmt: skip
    field = crf.mean_field(7, history=True, progress=False, **{names[key]: x for key, x in options.items()})
    expected = {"labels": field.label_marginals, "heads": field.head_marginals, "objective": field.objective}
    return case("crf", "summary", name, expected, own, 7, options)


# -- view 9: diagnostics -------------------------------------------------------------------------------------------------------


def diagnostic_cases():
    """R-hat and effective draws by ArviZ, ranks by scipy, bands and p-values of ranks, the exact small posterior."""
    random, found = np.random.default_rng(9), []
    made = {
        "independent": random.normal(size=(4, 100)),
        "one chain elsewhere": random.normal(size=(4, 60)) + np.array([0, 0, 0, 1.0])[:, None],
        "one chain wider": random.normal(size=(4, 80)) * np.array([1, 1, 1, 4.0])[:, None],
        "odd number of draws": random.normal(size=(3, 51)),
        "ties": random.normal(size=(4, 64)).round(1),
        "two chains of four draws": random.normal(size=(2, 4)),
        "walk": random.normal(size=(4, 150)).cumsum(1),
        "autocorrelated": np.array([walk(random, 200, 0.9) for _ in range(4)]),
        "antithetic": np.array([walk(random, 200, -0.7) for _ in range(4)]),
        "heavy tails": random.standard_cauchy(size=(4, 100)),
    }
    for name, chains in made.items():
        found.append(case("diagnostics", "rhat", name, float(arviz.rhat(chains)), chains))
        found.append(case("diagnostics", "essBulk", name, float(arviz.ess(chains, method="bulk")), chains))
        found.append(case("diagnostics", "essTail", name, float(arviz.ess(chains, method="tail")), chains))
        ranks = stats.rankdata(chains.ravel()).reshape(chains.shape)
        found.append(case("diagnostics", "ranks", name, ranks.ravel(), chains.ravel()))
        bins = np.minimum(np.floor((ranks - 0.5) / ranks.size * 8), 7).astype(int)
        counts = [np.bincount(row, minlength=8) for row in bins]
        found.append(case("diagnostics", "rankCounts", name, counts, chains, 8))
    for p in (1e-300, 1e-12, 1e-4, 0.02, 0.075, 0.3, 0.5, 0.8, 0.95, 0.9999):
        found.append(case("diagnostics", "normalQuantile", str(p), stats.norm.ppf(p), p))
    for number, draws, level in ((100, 3, 0.95), (50, 19, 0.99), (200, 39, 0.99), (30, 99, 0.9), (150, 1, 0.99)):
        band = simultaneous_band(number, draws, level)._asdict()
        found.append(case("diagnostics", "simultaneousBand", f"{number} of {draws}", band, number, draws, level))
        for shape, ranks in {
            "uniform": random.integers(0, draws + 1, number),
            "bowl": np.round(stats.beta(0.6, 0.6).rvs(number, random_state=random) * draws).astype(int),
            "slope": np.round(stats.beta(1.6, 1.0).rvs(number, random_state=random) * draws).astype(int),
        }.items():  # fmt: skip
            name = f"{shape}, {number} of {draws}"
            found.append(case("diagnostics", "uniformity", name, float(uniformity(ranks, draws)), ranks, draws))
            found.append(case("diagnostics", "countsBelow", name, counts_below(ranks, draws), ranks, draws))
    return [*found, *small_posterior_cases()]


def walk(random, length, correlation):
    """An autoregressive chain."""
    x = [random.normal()]
    for _ in range(length - 1):
        x.append(correlation * x[-1] + math.sqrt(1 - correlation**2) * random.normal())
    return x


def small_posterior_cases():
    """The density of the first key given queries, by a sum over a grid of the second."""
    found, axis = [], torch.arange(-14, 14, 0.09, dtype=KIND)
    for separation in (0.0, 3.0):
        queries = [-2.1, -1.7, -0.2, 1.6, 2.4]
        keys = torch.tensor([[-separation / 2], [separation / 2]], dtype=KIND)
        half = torch.full((2,), 0.5, dtype=KIND).log()
        problem = {"queries": torch.tensor(queries, dtype=KIND)[:, None], "keys": keys, "precision": 2.0,
                   "keyStrength": 0.4, "weights": half, "adapt": "own"}  # fmt: skip
        posterior = posterior_of(problem)
        joint = posterior.problem(problem["queries"])
        at = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.9], dtype=KIND)

        def density(first, joint=joint):
            state = {"keys": torch.cartesian_prod(first, axis).unsqueeze(-1)}
            return joint.objective(state).reshape(-1, len(axis)).logsumexp(1)

        whole = density(axis).logsumexp(0) + math.log(0.09)
        options = {"queries": queries, "separation": separation, "precision": 2.0, "keyStrength": 0.4}
        name = f"separation {separation}"
        found.append(case("diagnostics", "smallDensity", name, (density(at) - whole).exp(), options, at))
    return found


# -- the funnel ----------------------------------------------------------------------------------------------------------------

SHAPE, RATE = (torch.tensor(x, dtype=KIND) for x in (0.2, 0.001))
HERE = torch.zeros(1, 2, dtype=KIND)  # the prior mean of the key, and the query


def in_units(queries):
    """The posterior of notebook 07 with z, the key over its standard deviation given the precision, in the place of the key."""
    alpha = pyro.sample("key_precision", Gamma(SHAPE, RATE).expand([1]).to_event(1))
    pyro.sample("z", Normal(torch.zeros_like(HERE), 1.0).to_event(2))
    pyro.sample("query", Normal(HERE, (1 + 1 / alpha).sqrt()).to_event(2), obs=queries)


def funnels():
    """The posterior of notebook 07 in both coordinates: whether in units, the program, and the name of the key's site."""
    mixture = models.GaussianMixture(HERE, key_precision=torch.ones(1, dtype=KIND))
    centered = models.bayesian(mixture, keys=Normal(HERE, 1.0), key_precision=Gamma(SHAPE, RATE))
    return (False, centered, "keys"), (True, in_units, "z")


def funnel_scales():
    """Standard deviations of log α and of a coordinate of the key, and the share above a precision: by adaptive quadrature."""

    def density(t):
        alpha = torch.tensor(t, dtype=KIND).exp()
        evidence = 2 * Normal(0.0, (1 + 1 / alpha).sqrt()).log_prob(torch.zeros((), dtype=KIND))
        return float((Gamma(SHAPE, RATE).log_prob(alpha) + t + evidence).exp())

    def mean(f, low=-35.0):
        ends = [low, *(x for x in (0.0, 5.0, 8.0) if x > low), 11.0]
        pieces = pairwise(ends)
        return sum(integrate.quad(lambda t: f(t) * density(t), a, b, epsabs=1e-14, epsrel=1e-13)[0] for a, b in pieces)

    whole = mean(lambda t: 1.0)
    middle = mean(lambda t: t) / whole
    log_sd = math.sqrt(mean(lambda t: (t - middle) ** 2) / whole)
    key_sd = math.sqrt(mean(lambda t: 1 / (1 + math.exp(t))) / whole)
    return log_sd, key_sd, {t: mean(lambda _: 1.0, t) / whole for t in (-2.0, 1.0, math.log(1000), 8.5)}


def funnel_cases():
    """Cases of ``funnel.js``: trajectories by Pyro's integrator on the potential that `inference.nuts` moves in.

    Large steps are few: in the narrow part each multiplies rounding errors, and after 42 of 0.6 nothing is known to 1e-10.
    """
    generator = torch.Generator().manual_seed(20261128)
    log_sd, key_sd, shares = funnel_scales()
    yield case("funnel", "scalesOf", "keys", [log_sd, key_sd, key_sd], False)
    yield case("funnel", "scalesOf", "in units", [log_sd, 1.0, 1.0], True)
    for t, share in shares.items():
        yield case("funnel", "above", f"log precision {t:.2f}", share, t)
    for units, program, name in funnels():
        potential, _ = parameters(program, (HERE,)).unconstrained()
        scales = torch.tensor([log_sd, *[1.0 if units else key_sd] * 2], dtype=KIND)
        for number in range(10):
            place, momentum = torch.randn((2, 3), generator=generator, dtype=KIND)
            place = torch.tensor([2.0, 0.0, 0.0], dtype=KIND) + scales * place
            if number % 2:  # as in the view, whose second coordinate stands still
                place[2] = momentum[2] = 0.0
            step = float(0.05 * 30 ** torch.rand((), generator=generator, dtype=KIND))
            count = min(4 + 6 * number, 4 + int(6 / step))
            sizes = {"key_precision": scales[:1], name: scales[1:].expand(1, 2)}

            def energy(at, push, potential=potential):
                return float(potential(at)) + 0.5 * float(push.square().sum())

            at = {"key_precision": place[:1], name: place[None, 1:]}
            push = {"key_precision": momentum[:1] / scales[:1], name: momentum[None, 1:] / scales[1:]}
            places, energies = [place], [energy(at, momentum)]
            while len(places) <= count and energies[-1] - energies[0] <= 1000:
                at, push, *_ = velocity_verlet(
                    at, push, potential, lambda r, sizes=sizes: {site: sizes[site] ** 2 * r[site] for site in r}, step
                )
                places.append(torch.cat([at["key_precision"], at[name][0]]))
                last = scales * torch.cat([push["key_precision"], push[name][0]])
                energies.append(energy(at, last))
            given = {"units": units, "place": place, "momentum": momentum, "step": step, "count": count}
            expected = {"places": torch.stack(places), "energies": energies, "momentum": last}
            yield case("funnel", "trajectory", f"{name} {number}", expected, given)


def cases():
    """All cases of these views."""
    return [*adapt_cases(), *crf_cases(), *diagnostic_cases(), *funnel_cases()]


if __name__ == "__main__":
    made = cases()
    FILE.write_text("[\n" + ",\n".join(json.dumps(x) for x in made) + "\n]\n")
    print(f"{len(made)} cases in {FILE}")
