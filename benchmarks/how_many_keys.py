"""How many keys does a unit of a head want? A posterior over R = 1 to 4 for heads of trained transformers, recovery first.

    python -m benchmarks.how_many_keys [--quick] [--table] [--only planted | text transformer | SmolLM2-135M-Instruct ...]

Protocol, written before any figure of a trained head was seen.

**Model.** What is captured of a head is told in the gauge of its best equivalent (docs/mathematics.md 2.10; P a matrix): locations
ξ_j and prior π_ij of the units that query i may attend to. A unit has R keys, shifts of its location that all units share, as in shifted
MGK:

    p(q_i) = Σ_j π_ij Σ_r w_r N(q_i; ξ_j + d_r, Λ⁻¹),   w ~ Dirichlet(1),  d_r | Λ ~ N(0, Λ⁻¹),  Λ ~ Wishart(2D + 1, P / D)

so that R = 1 at d = 0, Λ = P is the best equivalent itself, where the prior of Λ has its mode. ξ and π stay as R = 1 has them: another
R has no attention of the head to be equivalent to. R is uniform on 1 to 4.

**Criteria.** (1) The posterior of R, by the variational bound of the evidence (posterior of assignments times posterior of
parameters; Bishop 2006, 10.2) plus log R! for the modes that differ by numbering. It is a bound: it errs towards few keys where keys
overlap. It climbs from the best of ten k-means starts of a Gaussian mixture with one covariance (scikit-learn's) for what the queries
are away from the mean of the units that they attend to. (2) The coarsened posterior of R (Miller & Dunson 2019): the likelihood to the power
α / (α + n), α = 500, n queries: as if the model were right to a five-hundredth of a nat a query; the same bound. (3) PSIS-LOO over
queries, from 2 chains of 50 Gibbs draws each after 10, begun at the variational posterior. (4) Nats of the queries of texts that
nothing was fitted to, by the mean density over every fifth draw. (1) and (2) choose the most probable R; (3) and (4) the fewest keys that are
less than two standard errors behind the best, paired by query in (3), by text in (4).

**Recovery first.** 100 problems in each of `CASES`, 25 for each R, on locations of the eight heads of the text transformer in turn, 6 texts of
64 queries and 6 held out. Queries are drawn with weights in proportion to 1 + U(0, 1), and shifts in random orthogonal directions, any
two of them so many standard deviations apart; then the gauge is found anew from the queries, which do not come from a best
equivalent. The gate: at 4 standard deviations R is recovered by (1) in 95 problems of 100. The same at 6, which are easy. The
control of Miller & Harrison, that a misspecified unit always wants more keys: the same at 4 with noise that in one direction is
exponential (centred, variance 1) instead of Gaussian. If the gate is missed, that is the result, and what is said of real heads carries it.

What was tried before, on eleven planted problems of other seeds: starts from k-means++ in the metric P, which missed keys that were
there (those above had the higher bound in all five that were compared); and α = 100, by which one key was chosen always. The case at 6
took the place of one at 3 when nine problems at 4 had been seen, of which eight were recovered; the gate was not moved.

**Real heads.** The text transformer of the library: eight heads, D = 16, 12 texts of 64 characters of the last tenth of its text, and the
next 12 held out. SmolLM2-135M-Instruct: heads 0, 4 and 8 (one of each group that shares keys) of layers 5, 12, 20 and 29, D = 64, the
texts of `benchmarks.real_transformers`, 4 of 256 tokens and 4 held out. Queries of one text depend on each other, so (1) to (3) claim
more than they know; (4) does not. A control, added when the eight heads of the text transformer had been seen: the same of the queries
alone, one unit at their mean, which knows no key of the head; what the head's own keys are worth is the difference held out.

Every problem and head is an entry of a file in ``results/how_many_keys``, written as it is done, and not measured again. ``--quick``:
four planted problems, not kept.
"""

import argparse
import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import arviz
import numpy as np
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor
from torch.distributions import Chi2, Dirichlet, Wishart, kl_divergence

from benchmarks.reports import Tables, rows_of, write_tables
from benchmarks.timing import RESULTS, as_json
from probtx_pyro import inspection, results
from probtx_pyro.data import load_text, text_transformer
from probtx_pyro.inspection import Captured

FOLDER = RESULTS / "how_many_keys"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "how_many_keys.png"
KEYS, ALPHA, STARTS, SWEEPS, SETTLED = (1, 2, 3, 4), 500.0, 10, 100, 1e-2
CHAINS, WARMUP, DRAWS, EVERY = 2, 10, 50, 5
PROBLEMS, PIECE, GATE, PLANTED_SEED = 100, 64, 95, 1000
LARGE, LAYERS, HEADS = "SmolLM2-135M-Instruct", (5, 12, 20, 29), (0, 4, 8)
SMALL, ALONE = "text transformer", "queries alone"
CRITERIA = ("posterior", "coarsened", "PSIS-LOO", "held out")


class Case(NamedTuple):
    """Planted problems: standard deviations between shifts, and whether one direction of the noise is exponential."""

    apart: float
    exponential: bool = False


CASES = {
    "4 sd apart": Case(4.0),
    "6 sd apart": Case(6.0),
    "4 sd apart, exponential in one direction": Case(4.0, True),
}


# -- the model -------------------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """Queries (text, Q, D), locations of units (text, U, D), and their log prior (text, Q, U)."""

    queries: Tensor
    locations: Tensor
    log_prior: Tensor


class Belief(NamedTuple):
    """``w ~ Dirichlet(concentration)``, ``d_r | Λ ~ N(shifts_r, (strength_r Λ)⁻¹)``, ``Λ ~ Wishart(degrees, rate⁻¹)``.

    concentration, strength: (R,). shifts: (R, D). degrees: (). rate: (D, D).
    """

    concentration: Tensor
    strength: Tensor
    shifts: Tensor
    degrees: Tensor
    rate: Tensor

    @classmethod
    def prior(cls, keys: int, precision: Tensor) -> "Belief":
        """The prior for R keys about a precision (D, D), which is its mode."""
        ones, features = precision.new_ones(keys), precision.shape[-1]
        rate = features * torch.linalg.inv(precision)
        return cls(ones, ones, precision.new_zeros(keys, features), precision.new_tensor(2.0 * features + 1), rate)

    def mean_metric(self) -> Tensor:
        """``E[Λ]``."""
        return self.degrees * torch.linalg.inv((self.rate + self.rate.mT) / 2)

    def log_det(self) -> Tensor:
        """``E log|Λ|``."""
        features = self.rate.shape[-1]
        places = (self.degrees - torch.arange(features)) / 2
        return places.digamma().sum() + features * math.log(2) - self.rate.logdet()

    def log_normalizer(self) -> Tensor:
        """Of the Wishart density, ``log ∫ |Λ|^((degrees - D - 1)/2) exp(-tr(rate Λ)/2)``."""
        features = self.rate.shape[-1]
        half = 0.5 * self.degrees
        return half * (features * math.log(2) - self.rate.logdet()) + torch.mvlgamma(half, features)

    def point(self) -> tuple[Tensor, Tensor, Tensor]:
        """Shifts, root and log weights whose `scores` are the expected ones."""
        mean = self.mean_metric()
        log_weights = self.concentration.digamma() - self.concentration.sum().digamma()
        lost = 0.5 * (self.log_det() - mean.logdet()) - 0.5 * len(mean) / self.strength
        return self.shifts, torch.linalg.cholesky(mean), log_weights + lost

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """Shifts, root and log weights drawn."""
        features = self.rate.shape[-1]
        squares = Chi2(self.degrees - torch.arange(features)).sample()
        bartlett = torch.randn_like(self.rate).tril(-1) + squares.sqrt().diag()
        root = torch.linalg.cholesky(torch.linalg.inv((self.rate + self.rate.mT) / 2)) @ bartlett
        noise = torch.linalg.solve_triangular(root.mT, torch.randn_like(self.shifts).mT, upper=True).mT
        return (
            self.shifts + noise / self.strength.sqrt().unsqueeze(-1),
            root,
            Dirichlet(self.concentration).sample().log(),
        )

    def divergence(self, prior: "Belief") -> Tensor:
        """KL from a prior."""
        away, mean = self.shifts - prior.shifts, self.mean_metric()
        ratio = prior.strength / self.strength
        of_shifts = len(mean) * (ratio - 1 - ratio.log()) + prior.strength * ((away @ mean) * away).sum(-1)
        of_weights = kl_divergence(Dirichlet(self.concentration), Dirichlet(prior.concentration))
        tilted = (self.degrees - prior.degrees) * self.log_det() + ((prior.rate - self.rate) * mean).sum()
        of_metric = 0.5 * tilted - self.log_normalizer() + prior.log_normalizer()
        return of_weights + of_metric + 0.5 * of_shifts.sum()

    def given(self, asked: Asked, joint: Tensor, power: float = 1.0) -> "Belief":
        """The belief after queries whose assignments to key and unit are ``joint`` (text, Q, R, U), to a power."""
        queries, locations, _ = asked
        number = power * joint.sum((0, 1, 3))
        of_units = (joint.flatten(1, 2) @ locations).unflatten(1, joint.shape[1:3])
        first = power * (torch.einsum("bqr,bqd->rd", joint.sum(-1), queries) - of_units.sum((0, 1)))
        cross = torch.einsum("bqd,bqe->de", queries, of_units.sum(2))
        square = torch.einsum("bqd,bqe->de", queries, queries)
        square = square + torch.einsum("bu,bud,bue->de", joint.sum((1, 2)), locations, locations) - cross - cross.mT
        strength = self.strength + number
        shifts = (self.strength.unsqueeze(-1) * self.shifts + first) / strength.unsqueeze(-1)
        before, after = ((s.unsqueeze(-1) * x).mT @ x for s, x in ((self.strength, self.shifts), (strength, shifts)))
        rate = self.rate + power * square + before - after
        return Belief(self.concentration + number, strength, shifts, self.degrees + number.sum(), rate)


def scores(asked: Asked, shifts: Tensor, root: Tensor, log_weights: Tensor) -> Tensor:
    """``log π_ij w_r N(q_i; ξ_j + d_r, (root root')⁻¹)``, (text, Q, R, U)."""
    away = (asked.queries @ root).unsqueeze(-2) - shifts @ root
    units = asked.locations @ root
    inner = (away.flatten(1, 2) @ units.mT).unflatten(1, away.shape[1:3])
    norm = root.diagonal().log().sum() - 0.5 * root.shape[-1] * math.log(2 * math.pi)
    of_keys = norm + log_weights - 0.5 * away.square().sum(-1)
    of_units = asked.log_prior - 0.5 * units.square().sum(-1).unsqueeze(-2)
    return inner + of_keys.unsqueeze(-1) + of_units.unsqueeze(-2)


def density(found: Tensor) -> Tensor:
    """Log density of each query, (text, Q), from its `scores`."""
    return found.flatten(-2).logsumexp(-1)


# -- fits ------------------------------------------------------------------------------------------------------------------


class Fit(NamedTuple):
    """A variational posterior, and its bound of the log evidence."""

    belief: Belief
    bound: float


def climb(asked: Asked, prior: Belief, belief: Belief, power: float) -> Fit:
    """Coordinate ascent of the bound from a belief, until a sweep gains less than `SETTLED` nats, or `SWEEPS`."""
    before = -math.inf
    for _ in range(SWEEPS):
        found = scores(asked, *belief.point())
        each = density(found)
        bound = float(power * each.sum() - belief.divergence(prior))
        if bound - before < SETTLED:
            break
        before, kept = bound, belief
        belief = prior.given(asked, (found - each[..., None, None]).exp(), power)
    return Fit(kept, before)


def fits(asked: Asked, keys: int, precision: Tensor, powers: Sequence[float], seed: int) -> list[Fit]:
    """A fit of R keys for each power of the likelihood."""
    prior = Belief.prior(keys, precision)
    root = torch.linalg.cholesky(precision)
    alone = scores(asked, precision.new_zeros(1, len(precision)), root, precision.new_zeros(1)).softmax(-1)
    away = ((asked.queries - alone.squeeze(2) @ asked.locations) @ root).flatten(0, 1).numpy()
    mixture = GaussianMixture(keys, covariance_type="tied", n_init=STARTS, reg_covar=1e-3, random_state=seed)
    shares = torch.as_tensor(mixture.fit(away).predict_proba(away)).unflatten(0, asked.queries.shape[:2])
    joint = shares.unsqueeze(-1) * alone
    return [climb(asked, prior, prior.given(asked, joint, power), power) for power in powers]


def assigned(asked: Asked, found: Tensor) -> tuple[Asked, Tensor]:
    """Assignments drawn: what the queries are away from their units, as queries of one unit at 0, and their keys."""
    units = found.shape[-1]
    chosen = torch.multinomial(found.flatten(-2).flatten(0, 1).softmax(-1), 1).view(asked.queries.shape[:2])
    at = asked.locations.gather(1, (chosen % units).unsqueeze(-1).expand_as(asked.queries))
    keys = torch.nn.functional.one_hot(chosen // units, found.shape[2]).to(at)
    origin = torch.zeros_like(asked.locations[:, :1])
    return Asked(asked.queries - at, origin, torch.zeros_like(at[..., :1])), keys.unsqueeze(-1)


def draws(asked: Asked, others: Asked, prior: Belief, start: Belief) -> tuple[Tensor, Tensor]:
    """Gibbs: log densities of the queries (chain, draw, query), and log mean density of the others' (text, Q)."""
    chains, held = [], []
    for _ in range(CHAINS):
        point, each = start.draw(), []
        for sweep in range(WARMUP + DRAWS):
            found = scores(asked, *point)
            if sweep >= WARMUP:
                each.append(density(found).flatten())
                if (sweep - WARMUP) % EVERY == 0:
                    held.append(density(scores(others, *point)))
            point = prior.given(*assigned(asked, found)).draw()
        chains.append(torch.stack(each))
    return torch.stack(chains), torch.stack(held).logsumexp(0) - math.log(len(held))


def leave_one_out(log_likelihood: Tensor) -> tuple[np.ndarray, int]:
    """Expected log density of each query given the others by PSIS, (query,), and how many Pareto k are above 0.7."""
    every = {"nats": (("chain", "draw"), log_likelihood.sum(-1).numpy())}
    queries = {"queries": (("chain", "draw", "query"), log_likelihood.numpy())}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of large Pareto k, which are counted
        found = arviz.loo(results.from_arrays({"posterior": every, "log_likelihood": queries}), pointwise=True)
    return np.asarray(found.loo_i), int((np.asarray(found.pareto_k) > 0.7).sum())


def fewest(each: np.ndarray) -> int:
    """The fewest keys that are less than two standard errors behind the best, from nats (R, item)."""
    behind = each[each.mean(-1).argmax()] - each
    error = behind.std(-1, ddof=1) / each.shape[-1] ** 0.5
    return KEYS[int((behind.mean(-1) <= 2 * error).argmax())]


def gained(each: np.ndarray) -> list[list[float]]:
    """Nats an item that R keys have over one, and the standard error, [mean, error] for each R."""
    more = each - each[0]
    return [[float(x.mean()), float(x.std(ddof=1) / len(x) ** 0.5)] for x in more]


def log_posterior(bounds: list[float]) -> list[float]:
    """Log posterior of R from bounds of the log evidence."""
    counted = torch.tensor([x + math.lgamma(r + 1) for x, r in zip(bounds, KEYS, strict=True)], dtype=torch.float64)
    return counted.log_softmax(0).tolist()


@torch.no_grad()
def measured(asked: Asked, others: Asked, precision: Tensor, seed: int) -> dict[str, Any]:
    """What all criteria say of queries, and of those held out, by a prior about a precision (D, D)."""
    power = ALPHA / (ALPHA + asked.queries[..., 0].numel())
    bounds: dict[str, list[float]] = {"posterior": [], "coarsened": []}
    loo, held, doubtful, weights = [], [], [], []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for keys in KEYS:
            full, coarse = fits(asked, keys, precision, (1.0, power), seed)
            bounds["posterior"].append(full.bound)
            bounds["coarsened"].append(coarse.bound)
            likelihood, outside = draws(asked, others, Belief.prior(keys, precision), full.belief)
            each, bad = leave_one_out(likelihood)
            loo.append(each)
            held.append(outside.mean(-1).numpy())
            doubtful.append(bad)
            share = full.belief.concentration / full.belief.concentration.sum()
            weights.append([round(float(x), 4) for x in share.sort(descending=True).values])
    posterior = {name: log_posterior(x) for name, x in bounds.items()}
    chosen = {name: KEYS[int(np.argmax(x))] for name, x in posterior.items()}
    return {
        "log posterior": posterior,
        "PSIS-LOO": gained(np.stack(loo)),
        "held out": gained(np.stack(held)),
        "nats of one key": [float(loo[0].mean()), float(held[0].mean())],
        "Pareto k above 0.7": doubtful,
        "weights": weights,
        "chosen": {**chosen, "PSIS-LOO": fewest(np.stack(loo)), "held out": fewest(np.stack(held))},
    }


# -- heads -----------------------------------------------------------------------------------------------------------------


def in_gauge(one: Captured, other: Captured) -> tuple[Asked, Asked, Tensor]:
    """Both in the gauge that the first tells, and P."""
    features = one.queries.shape[-1]
    even = features * one.queries.flatten(0, 1).var(0).mean() * torch.eye(features).to(one.queries)
    prior = Wishart(one.queries.new_tensor(2.0 * features + 1), precision_matrix=even)
    best = inspection.best_equivalent(one, "full", precision=prior)
    told = [x.equivalent(best.tilt, best.precision).mixture for x in (one, other)]
    both = []
    for x, mixture in zip((one, other), told, strict=True):
        shape = (*x.queries.shape[:-1], x.keys.shape[-2])
        both.append(Asked(x.queries, mixture.keys.expand_as(x.keys), mixture.log_prior.expand(shape)))
    return both[0], both[1], best.precision


def queries_alone(one: Captured, other: Captured) -> tuple[Asked, Asked, Tensor]:
    """The queries of both about the mean of the first, as of one unit at 0, and the precision of the first."""
    queries, features = one.queries.flatten(0, 1), one.queries.shape[-1]
    mean, square = queries.mean(0), torch.cov(queries.mT, correction=0)
    even = square.diagonal().mean() * torch.eye(features).to(square)
    precision = torch.linalg.inv((len(queries) * square + features * even) / (len(queries) + features))
    both = []
    for x in (one.queries, other.queries):
        both.append(Asked(x - mean, torch.zeros_like(x[:, :1]), torch.zeros_like(x[..., :1])))
    return both[0], both[1], precision


def causal(queries: Tensor, keys: Tensor, scale: float) -> Captured:
    """A causal head that was asked in several texts, (text, Q, D)."""
    size = queries.shape[-2]
    future = torch.full((size, size), -torch.inf, dtype=torch.float64).triu(1)
    return inspection.captured(queries.double(), keys.double(), None, future, scale, dims=("batch",))


Pair = tuple[Captured, Captured]  # what is fitted, and what is held out


@cache
def of_text_transformer() -> dict[str, Pair]:
    """The eight heads, by layer and head."""
    model, text = text_transformer.load(), load_text("topics").validation
    read = [model.heads(text[i * PIECE : (i + 1) * PIECE]) for i in range(24)]
    found = {}
    for layer in range(2):
        for head in range(4):
            queries, keys = (torch.stack([getattr(x, name)[layer, head] for x in read]) for name in ("queries", "keys"))
            halves = [causal(queries[part], keys[part], 0.25) for part in (slice(0, 12), slice(12, 24))]
            found[f"{layer}.{head}"] = (halves[0], halves[1])
    return found


def of_language_model() -> Iterator[tuple[str, Callable[[], Pair]]]:
    """Heads of SmolLM2, by layer and head."""
    from benchmarks.real_transformers import NAME, language_model

    @cache
    def layer_of(number: int) -> list[Captured]:
        model, *texts = language_model()
        both = [inspection.capture(model, rows, layers=NAME.format(number), use_cache=False) for rows in texts]
        return [one for found in both for one in found.values()]

    def pair(layer: int, head: int) -> Pair:
        one, other = (causal(x.queries[:, head], x.keys[:, head], x.queries.shape[-1] ** -0.5) for x in layer_of(layer))
        return one, other

    for layer in LAYERS:
        for head in HEADS:
            yield f"{layer}.{head}", lambda layer=layer, head=head: pair(layer, head)


# -- planted problems ------------------------------------------------------------------------------------------------------


def plant(case: Case, number: int) -> tuple[Pair, int]:
    """A problem, and its R: raw keys of a real head, asked queries that come from R keys a unit."""
    keys = KEYS[number * len(KEYS) // PROBLEMS]
    heads = list(of_text_transformer().values())
    one, other = (x.select(batch=slice(0, 6)) for x in heads[number % len(heads)])
    asked, others, precision = in_gauge(one, other)
    generator = torch.Generator().manual_seed(PLANTED_SEED + number)
    features = len(precision)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    basis = torch.linalg.qr(normal(features, features)).Q
    weights = 1 + torch.rand(keys, generator=generator, dtype=torch.float64)
    shifts = case.apart / 2**0.5 * basis[:keys]
    shifts = shifts - (weights / weights.sum()) @ shifts
    root = torch.linalg.cholesky(precision)
    pair = []
    for x, told in ((one, asked), (other, others)):
        flat = told.log_prior.flatten(0, 1).exp()
        units = torch.multinomial(flat, 1, generator=generator).view(told.queries.shape[:2])
        which = torch.multinomial(weights, units.numel(), replacement=True, generator=generator).view_as(units)
        noise = normal(*told.queries.shape)
        if case.exponential:
            along = basis[-1]
            other_noise = torch.empty_like(noise[..., 0]).exponential_(generator=generator) - 1
            noise = noise + (other_noise - noise @ along).unsqueeze(-1) * along
        away = torch.linalg.solve_triangular(root.mT, (shifts[which] + noise).mT, upper=True).mT
        at = told.locations.gather(1, units.unsqueeze(-1).expand_as(noise))
        pair.append(causal(at + away, x.keys, x.scale))
    return (pair[0], pair[1]), keys


# -- runs ------------------------------------------------------------------------------------------------------------------


def file_of(name: str) -> Path:
    return FOLDER / f"{name.replace(', ', '-').replace(' ', '-')}.json"


def kept(name: str) -> dict[str, Any]:
    """Entries of a file, none where it is not there."""
    path = file_of(name)
    return json.loads(path.read_text()) if path.exists() else {}


def keep(name: str, entry: str, found: dict[str, Any]) -> None:
    """Add an entry to a file, which is there whole or not at all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = file_of(name).with_suffix(".part")
    part.write_text(as_json({**kept(name), entry: found}))
    part.replace(file_of(name))


def measure_planted(case: str, number: int) -> dict[str, Any]:
    (one, other), planted = plant(CASES[case], number)
    found = measured(*in_gauge(one, other), number)
    return {"planted": planted, **{name: found[name] for name in ("chosen", "log posterior", "Pareto k above 0.7")}}


def run_planted() -> None:
    for case in CASES:
        for number in sorted(range(PROBLEMS), key=lambda x: x % (PROBLEMS // len(KEYS))):  # each R in turn
            if str(number) not in kept(case):
                keep(case, str(number), measure_planted(case, number))
        print(case, recovered(case), flush=True)


def run_heads(model: str) -> None:
    heads = of_language_model() if model == LARGE else ((x, lambda x=x: of_text_transformer()[x]) for x in of_text_transformer())  # fmt: skip
    for number, (name, pair) in enumerate(heads):
        for file, told in ((model, in_gauge), (f"{model}, {ALONE}", queries_alone)):
            if name not in kept(file):
                keep(file, name, measured(*told(*pair()), seed=number))
                print(file, name, kept(file)[name]["chosen"], flush=True)


# -- tables ----------------------------------------------------------------------------------------------------------------


def recovered(case: str) -> dict[str, int]:
    """In how many problems each criterion chose what was planted."""
    rows = kept(case).values()
    return {name: sum(x["chosen"][name] == x["planted"] for x in rows) for name in CRITERIA}


def planted_table() -> list[str]:
    """Problems recovered, and those with too many keys, by criterion."""
    body = []
    for case in CASES:
        rows = list(kept(case).values())
        if rows:
            right, more = recovered(case), [sum(x["chosen"][name] > x["planted"] for x in rows) for name in CRITERIA]
            body.append([case, f"{len(rows)}", *(f"{right[name]} ({x})" for name, x in zip(CRITERIA, more, strict=True))])  # fmt: skip
    head = ["planted", "problems", *(f"{name}: recovered (too many)" for name in CRITERIA)]
    return rows_of(head, *(body or [["none has been run yet", *[""] * 5]]))


def chosen_table(case: str) -> list[str]:
    """How often R was chosen by the posterior and its rivals where R was planted."""
    body = []
    for planted in KEYS:
        rows = [x for x in kept(case).values() if x["planted"] == planted]
        counts = [", ".join(str(sum(x["chosen"][name] == r for x in rows)) for r in KEYS) for name in CRITERIA]
        if rows:
            body.append([str(planted), *counts])
    return rows_of(
        ["planted R", *(f"{name}: 1, 2, 3, 4 chosen" for name in CRITERIA)], *(body or [["none", *[""] * 4]])
    )


def heads_table() -> list[str]:
    """What each criterion says of each head."""
    body = []
    for model in (SMALL, LARGE):
        for name, x in kept(model).items():
            gains = [
                ", ".join(f"{mean:+.2f} ± {error:.2f}" for mean, error in x[criterion][1:])
                for criterion in CRITERIA[2:]
            ]
            probable = [
                f"{x['chosen'][criterion]} ({math.exp(max(x['log posterior'][criterion])):.2f})"
                for criterion in CRITERIA[:2]
            ]
            wanted = [str(x["chosen"][criterion]) for criterion in CRITERIA[2:]]
            body.append([model, name, *probable, *wanted, *gains, ", ".join(map(str, x["Pareto k above 0.7"]))])
    head = ["model", "head", "R by the posterior (its probability)", "coarsened", "by PSIS-LOO", "held out", "PSIS-LOO: nats a query over one key, R = 2, 3, 4", "held out: the same", "Pareto k above 0.7, R = 1 to 4"]  # fmt: skip
    return rows_of(head, *(body or [["none has been measured yet", *[""] * 8]]))


def alone_table() -> list[str]:
    """By how much R keys of the head's units are ahead of R keys of one unit, in nats a query held out."""
    body = []
    for model in (SMALL, LARGE):
        pairs = [(x, kept(f"{model}, {ALONE}")[name]) for name, x in kept(model).items() if name in kept(f"{model}, {ALONE}")]  # fmt: skip
        if not pairs:
            continue
        held = np.array([[[x["nats of one key"][1] + more for more, _ in x["held out"]] for x in pair] for pair in pairs])  # fmt: skip
        for label, each in (("of the head's units", held[:, 0]), ("of one unit", held[:, 1]), ("ahead", held[:, 0] - held[:, 1])):  # fmt: skip
            error = each.std(0, ddof=1) / len(each) ** 0.5 if label == "ahead" and len(each) > 1 else None
            cells = [f"{x:+.2f}" if error is None else f"{x:+.2f} ± {error[i]:.2f}" for i, x in enumerate(each.mean(0))]
            body.append([model, f"{len(pairs)}", label, *cells])
    return rows_of(["model", "heads", "held-out nats a query, R keys", *map(str, KEYS)], *(body or [["none has been measured yet", *[""] * 6]]))  # fmt: skip


def report_tables() -> Tables:
    """Tables of ``docs/reports/how_many_keys.md``."""
    exponential = list(CASES)[-1]
    return {
        "planted": planted_table(),
        "chosen": chosen_table(next(iter(CASES))),
        "chosen, misspecified": chosen_table(exponential),
        "heads": heads_table(),
        "queries alone": alone_table(),
    }


def draw_figure(file: Path = FIGURE) -> None:
    """Draw what was recovered, and beside it held-out nats over one key by R, a panel a model, a line a head."""
    from matplotlib import pyplot

    from probtx_pyro.plots import unit_color

    models = [model for model in (SMALL, LARGE) if kept(model)]
    cases = [case for case in reversed(CASES) if kept(case)]
    figure, panels = pyplot.subplots(1, 1 + len(models), figsize=(4.8 * (1 + len(models)), 5.2), layout="constrained", squeeze=False)  # fmt: skip
    first, *others = panels[0]
    for number, (name, mark) in enumerate(zip(CRITERIA, "osD^", strict=True)):
        shares = [recovered(case)[name] / len(kept(case)) for case in cases]
        place = [i + 0.12 * (1.5 - number) for i in range(len(cases))]
        first.plot(shares, place, mark, markersize=9, color=unit_color(number), label=name)
    labels = [f"{case.replace(', ', f',{chr(10)}')}\n({len(kept(case))} problems)" for case in cases]
    first.set_yticks(range(len(cases)), labels, fontsize=12)
    first.axvline(GATE / PROBLEMS, color="black", linewidth=1, linestyle=":")
    first.set(xlim=(0, 1.03), ylim=(-0.6, len(cases) - 0.4))
    first.set_title("planted R recovered", fontsize=14)
    first.legend(fontsize=12, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    for ax, model in zip(others, models, strict=True):
        for number, (name, x) in enumerate(kept(model).items()):
            mean, error = np.array(x["held out"]).T
            ax.errorbar(KEYS, mean, 2 * error, color=unit_color(number % 8), marker="osD^vPX*"[number % 8], linestyle="-" if number < 8 else ":", linewidth=2, capsize=3, label=name)  # fmt: skip
        ax.axhline(0, color="black", linewidth=1)
        ax.set_xticks(KEYS)
        ax.set_title(f"heads of {model}", fontsize=14)
        ax.set_xlabel("keys of a unit, R", fontsize=13)
        ax.set_ylabel("held-out nats a query over one key", fontsize=13)
        ax.legend(fontsize=12, frameon=False, ncols=4, columnspacing=1, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    for ax in panels[0]:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=12)
    figure.savefig(file, dpi=100)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("planted", SMALL, LARGE)
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, metavar="PART")
    parser.add_argument("--quick", action="store_true", help="four planted problems, not kept")
    parser.add_argument("--table", action="store_true", help="only tables and picture, of what is there")
    options = parser.parse_args(argv)
    if options.quick:
        case = next(iter(CASES))
        for number in range(PROBLEMS // 8, PROBLEMS, PROBLEMS // 4):
            found = measure_planted(case, number)
            print(f"{case}: planted {found['planted']}, chosen {found['chosen']}", flush=True)
        return
    if not options.table:
        for part in options.only:
            run_planted() if part == "planted" else run_heads(part)
    write_tables("how_many_keys.md", report_tables())
    draw_figure()


if __name__ == "__main__":
    main()
