"""A memory that adapts to points without labels: which of its parts move, under which priors,
and what prevalence the points have.

Labels alone tell classes apart, and points without labels can move the keys of one class onto another while their
evidence rises. So every prior is centred on what was learned, and counts as so many points of the memory's own spread,
in every direction: the memory adapts in whitened coordinates. It goes in stages, each with the others held, as a metric
that moves with the places would explain what they should:

1. **places**: ``N(m + s (ξ_j - m) + δ, Λ⁻¹)``, one displacement δ of all units and one scale s of their distances from
   the middle m;
2. **metric** and **keys** (each unit by itself);
3. **prevalence**.

What moves is *chosen* by held-out evidence: a stage is taken where it raises the evidence of points that it has not
seen by more than two standard errors and by more than a sixteenth of a nat for each feature. Evidence alone is no guide
between stages: the metric, which has most parameters, always gains most; what explains little cannot mend the answers
and may spoil them.

**Prevalence.** ``p(x | c) ∝ p(c | x) / p(c)`` whatever the memory (Saerens et al. 2002), so that the weights of classes
need no more than the answers. They are the weights of a mixture with the unit vectors e_c as keys and precision 1,
asked with the vectors of ``log p(c | x) - log p(c)``: its attention is ``softmax_c(log π_c + log p(x | c))``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy  # scipy.optimize is loaded when it is used
import torch
from pyro.distributions import Dirichlet, Distribution, Gamma, Normal, Wishart
from torch import Tensor

from probtx_pyro import models
from probtx_pyro.apps.memory._held_out import class_shares, expected_answers, log_evidence, root_of, tempered
from probtx_pyro.inference import adapt
from probtx_pyro.models import GaussianMixture
from probtx_pyro.models._problem import draw

_NUM_STEPS, _TOL = 50, 1e-3
_STAGES = (("shift", "scale"), ("metric",))  # among which evidence chooses
_ERRORS, _NATS = 2.0, 1 / 16  # standard errors, and nats for each feature, by which the evidence has to rise
_FOLDS, _MOST_ASKED = 5, 2000  # points from which the choice is made
_HOTTER = 1000.0  # how much hotter answers may get

Anchors: TypeAlias = Mapping[str, float]
#: what may move, and how many points what was learned counts as
ANCHORS: Anchors = {"prevalence": 1000.0, "shift": 30.0, "scale": 30.0, "metric": 1000.0, "keys": 1000.0}


def _keys(memory: GaussianMixture, anchor: float) -> Distribution:
    """The prior under which each unit has its share of the points that all count as."""
    own = (anchor * memory.log_weights().exp()[0]).clamp_min(torch.finfo(memory.keys.dtype).eps)
    return Normal(memory.keys, own.rsqrt().unsqueeze(-1).expand_as(memory.keys))


def _metric(memory: GaussianMixture, anchor: float) -> Distribution:
    """The prior whose mode is the present metric, for a scalar one the precision, both 1 in whitened coordinates."""
    ones = torch.ones_like(memory.keys[0])
    if memory.metric is None:
        half = 0.5 * anchor * len(ones)
        return Gamma(torch.full_like(memory.key_precision, 1 + half), half)
    if memory.diagonal_metric:
        return Gamma(1 + 0.5 * anchor * ones, 0.5 * anchor)
    return Wishart(ones.new_tensor(len(ones) + 1 + anchor), covariance_matrix=torch.diag(ones) / anchor)


def _in_coordinates(memory: GaussianMixture, root: Tensor) -> GaussianMixture:
    """Return the memory of points ``x root``; the precision goes into the metric, where there is one."""
    inverse = torch.linalg.inv(root)
    changes: dict[str, Tensor] = {"keys": memory.keys @ root}
    if memory.shift is not None:
        changes["shift"] = memory.shift @ root
    if memory.metric is None:
        changes["key_precision"] = memory.key_precision * inverse[0, 0].square()
    elif memory.diagonal_metric:
        changes["metric"] = memory.metric * memory.key_precision.reshape(-1)[0] * inverse.diagonal().square()
    else:
        metric = inverse @ (memory.metric * memory.key_precision.reshape(-1)[0]) @ inverse.mT
        changes["metric"] = 0.5 * (metric + metric.mT)
    if memory.metric is not None:
        changes["key_precision"] = torch.ones_like(memory.key_precision)
    return memory.with_parameters(changes)


#: priors of what moves by itself, with the places held
PRIORS: Mapping[str, Callable[[GaussianMixture, float], Distribution]] = {"metric": _metric, "keys": _keys}


def _placed(memory: GaussianMixture, points: Tensor, moves: Sequence[str], anchors: Anchors) -> GaussianMixture:
    """Return the memory, of units round and of spread 1, whose places have moved: ECM,
    with both modes in closed form.
    """
    weights, keys = memory.log_weights().exp()[0], memory.locations
    middle = weights @ keys
    spokes = keys - middle
    long, shift, scale = spokes.square().sum(-1), torch.zeros_like(middle), torch.ones_like(middle[0])
    strength = anchors["scale"] * (weights @ long)  # the anchor's points, each at its unit
    scaled = "scale" in moves and float(strength) > 0  # units at one place have no scale
    for _ in range(_NUM_STEPS):
        present = GaussianMixture(middle + scale * spokes + shift, log_prior=memory.log_prior)
        seen = present.expect((points, None, None, None), {"keys": middle})
        sums, old = seen.sums[:, :-1], (shift, scale)
        if "shift" in moves:
            shift = (sums.sum(0) - scale * (seen.counts @ spokes)) / (anchors["shift"] + len(points))
        if scaled:
            away = sums - seen.counts.unsqueeze(-1) * shift
            scale = (strength + (spokes * away).sum()) / (strength + seen.counts @ long)
        if float((shift - old[0]).abs().max()) < _TOL and float((scale - old[1]).abs() * long.max().sqrt()) < _TOL:
            break
    changes: dict[str, Tensor] = {}
    if "shift" in moves:
        changes["shift"] = shift if memory.shift is None else memory.shift + shift
    if scaled:
        center = weights @ memory.keys
        changes["keys"] = center + scale * (memory.keys - center)
    return memory.with_parameters(changes)


def moved(memory: GaussianMixture, points: Tensor, moves: Sequence[str], anchors: Anchors) -> GaussianMixture:
    """Return the memory after places, metric and keys have adapted to points, those of them that are named.

    Parameters
    ----------
    memory
        As it was learned.
    points
        (N, D), without labels.
    moves, anchors
        As in `adapted`.
    """
    places, rest = {"shift", "scale"}.intersection(moves), set(PRIORS).intersection(moves)
    if not places and not rest:
        return memory
    root = root_of(memory)
    inverse, asked = torch.linalg.inv(root), points @ root
    present = _in_coordinates(memory, root)
    if places:
        present = _placed(present, asked, sorted(places), anchors)
    if rest:
        names = {"metric": "key_precision" if memory.metric is None else "metric"}
        priors: dict[str, Any] = {names.get(x, x): PRIORS[x](present, anchors[x]) for x in PRIORS if x in rest}
        posterior = models.bayesian(present, **priors)
        present = adapt(posterior, asked, num_steps=_NUM_STEPS, tol=_TOL, progress=False).formulation
    back = _in_coordinates(present, inverse)
    kept = {"log_prior": memory.log_prior}
    if not rest:  # to the last bit
        kept |= {"metric": memory.metric, "key_precision": memory.key_precision}
    return back.with_parameters(kept)


def chosen(memory: GaussianMixture, points: Tensor, anchors: Anchors) -> list[str]:
    """Return what may move by the evidence of points that have not moved it.

    Parameters
    ----------
    memory, points, anchors
        As in `moved`.

    Returns
    -------
    list of str
        The stages that are taken; empty where nothing is to move.
    """
    some = points[torch.randperm(len(points), generator=torch.Generator().manual_seed(0), device="cpu")[:_MOST_ASKED]]
    if len(some) < 2:
        return []
    fold_of = torch.arange(len(some)) % _FOLDS
    folds = [fold_of == fold for fold in fold_of.unique()]
    taken: list[str] = []
    present = [memory] * len(folds)
    evidence = log_evidence(memory, some)
    for stage in _STAGES:
        proposed = [moved(was, some[~fold], stage, anchors) for was, fold in zip(present, folds, strict=True)]
        after = torch.empty_like(evidence)
        for after_stage, fold in zip(proposed, folds, strict=True):
            after[fold] = log_evidence(after_stage, some[fold])
        gain = after - evidence
        error = float(gain.std()) / len(gain) ** 0.5
        if float(gain.mean()) > max(_ERRORS * error, _NATS * points.shape[-1]):
            present, evidence, taken = proposed, after, [*taken, *stage]
    return taken


def no_surer(memory: GaussianMixture, adapted: GaussianMixture, points: Tensor, temperature: float) -> float:
    """Return the temperature at which an adapted memory is on average no surer of points than the memory was,
    at least the one given.

    Labels have set the temperature; without labels a narrower metric, or classes farther apart, are no reason for more
    trust.

    Parameters
    ----------
    memory, adapted
        Before and after.
    points
        (N, D).
    temperature
        Of the memory's answers.
    """

    def doubt(some: GaussianMixture, log_temperature: float) -> float:
        answers = expected_answers(tempered(some, float(np.exp(log_temperature))), points[:_MOST_ASKED])
        return float(torch.special.entr(answers).sum(-1).mean())

    low = float(np.log(temperature))
    high, before = low + float(np.log(_HOTTER)), doubt(memory, low)
    if doubt(adapted, low) >= before:
        return temperature
    if doubt(adapted, high) <= before:
        return float(np.exp(high))
    return float(np.exp(scipy.optimize.brentq(lambda x: doubt(adapted, x) - before, low, high, xtol=0.01)))


def adapted(
    memory: GaussianMixture,
    points: Tensor,
    moves: Sequence[str],
    anchors: Anchors,
    temperature: float,
    biases: Tensor | float = 0.0,
) -> tuple[GaussianMixture, float]:
    """Return the memory after what moves has adapted to points, and the temperature of its answers.

    Parameters
    ----------
    memory
        As it was learned.
    points
        (N, D), without labels.
    moves
        Keys of `ANCHORS`.
    anchors
        Points that what was learned counts as, for each.
    temperature, biases
        Of the answers, from which the prevalence follows, after the rest; (C,).
    """
    present = moved(memory, points, moves, anchors)
    if present is not memory:
        temperature = no_surer(memory, present, points, temperature)
    if "prevalence" in moves:
        mixture, shares, queries = of_classes(present, points, temperature, biases)
        prior = Dirichlet(1 + anchors["prevalence"] * shares.unsqueeze(0))
        posterior = models.bayesian(mixture, weights=prior)
        weighed = adapt(posterior, queries, num_steps=1000, tol=1e-5, progress=False).formulation
        present = with_prevalence(present, weighed.log_weights().exp()[0])
    return present, temperature


def with_prevalence(memory: GaussianMixture, shares: Tensor) -> GaussianMixture:
    """Return the memory with other shares of the classes, (C,), and the same densities ``p(x | c)``."""
    joint = memory.log_weights().exp()[0].unsqueeze(-1) * memory.unit_answers()
    joint = joint * torch.where(shares > 0, shares / class_shares(memory), 0.0)
    weights = joint.sum(-1)
    answers = torch.where(weights.unsqueeze(-1) > 0, joint / weights.unsqueeze(-1), memory.unit_answers())
    return memory.with_parameters({"log_prior": (weights / weights.sum()).log().unsqueeze(0), "answer_probs": answers})


def of_classes(
    memory: GaussianMixture, points: Tensor, temperature: float, biases: Tensor | float = 0.0
) -> tuple[GaussianMixture, Tensor, Tensor]:
    """Return the mixture whose units are the classes, their present shares, and its queries (N, C)."""
    answers, shares = expected_answers(tempered(memory, temperature), points), class_shares(memory)
    tiny = torch.finfo(answers.dtype).tiny
    queries = answers.clamp_min(tiny).log() + biases - shares.clamp_min(tiny).log()
    queries = queries - queries.amax(-1, keepdim=True)
    mixture = GaussianMixture(torch.eye(len(shares), dtype=queries.dtype), log_prior=shares.log().unsqueeze(0))
    return mixture, shares, queries


class Prevalence(NamedTuple):
    """Shares of the classes where points come from: mean of the posterior, and the ends of a central interval,
    (C,) each.
    """

    classes: np.ndarray
    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


#: concentrations, equally probable where none is given: from one class that has nearly all to nearly even shares
CONCENTRATIONS = tuple(10 ** (step / 8) for step in range(-16, 9))
_WARMUP = 100  # sweeps
_NUMBERS_AT_ONCE = 1 << 22  # of a tensor over chains, points and classes


def draw_shares(
    log_likelihood: Tensor, concentrations: Tensor, num_samples: int, num_chains: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw shares of the classes, (draw, K), and concentrations, (draw,), chain after chain.

    Parameters
    ----------
    log_likelihood
        ``log p(x_i | k)`` of the points, (N, K), up to a number for each point.
    concentrations
        Those that are possible, equally probable, (G,).
    num_samples, num_chains, seed
        Draws of each chain, chains, and the seed of all.
    """
    generator = torch.Generator().manual_seed(seed)
    likelihood = (log_likelihood - log_likelihood.amax(-1, keepdim=True)).exp()
    num_points, num_classes = likelihood.shape
    blocks = likelihood.split(max(1, _NUMBERS_AT_ONCE // (num_chains * num_classes)))
    total = num_classes * concentrations
    constant = total.lgamma() - (total + num_points).lgamma() - num_classes * concentrations.lgamma()
    shares = likelihood.new_full((num_chains, num_classes), 1 / num_classes)
    allowed = torch.ones_like(shares, dtype=torch.bool)
    kept: list[tuple[Tensor, Tensor]] = []
    for sweep in range(_WARMUP + num_samples):
        counts = torch.stack([_draw_counts(some, shares, generator) for some in blocks]).sum(0)
        terms = (concentrations.unsqueeze(-1) + counts.unsqueeze(1)).lgamma().sum(-1)
        picked = torch.multinomial((constant + terms).softmax(-1), 1, generator=generator)
        shares = draw(generator).dirichlet(concentrations[picked] + counts, allowed, shares)
        if sweep >= _WARMUP:
            kept.append((shares, concentrations[picked.squeeze(-1)]))
    drawn_shares, drawn = (torch.stack(of, 1).flatten(0, 1) for of in zip(*kept, strict=True))
    return drawn_shares, drawn


def _draw_counts(likelihood: Tensor, shares: Tensor, generator: torch.Generator) -> Tensor:
    """Draw the classes of points, (N, K), under the shares of each chain, (chain, K), and count them, (chain, K)."""
    num_chains, num_classes = shares.shape
    cumulative = (likelihood * shares.unsqueeze(1)).cumsum(-1)
    uniform = torch.rand(*cumulative.shape[:-1], 1, generator=generator, dtype=shares.dtype)
    classes = torch.searchsorted(cumulative, uniform * cumulative[..., -1:], right=True).squeeze(-1)
    before = torch.arange(num_chains).unsqueeze(-1) * num_classes  # a number for each class of each chain
    numbers = (before + classes.clamp_max(num_classes - 1)).flatten()
    return torch.bincount(numbers, minlength=num_chains * num_classes).view_as(shares).to(shares)
