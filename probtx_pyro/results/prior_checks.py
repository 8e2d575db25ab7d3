"""The effect of priors: how much the data taught beyond them,
and how far the posterior moves when they are made stronger or weaker.

Arrays in, arrays out. Draws of a posterior are (chain, draw, *shape of the parameter), draws of a prior (draw, *shape).
"""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import arviz
import numpy as np
from numpy.typing import ArrayLike, NDArray

from probtx_pyro._brief import in_brief
from probtx_pyro.results._arviz import pareto_smoothed

Array = NDArray[np.floating[Any]]
LARGEST_K = 0.7  # of a Pareto shape with which importance weights can be trusted (Vehtari et al. 2024)


class Learned(NamedTuple):
    """The information that the data added to the prior; by parameter, arrays of its shape.

    shrinkage: ``1 - var(posterior) / var(prior)``; 1 for a parameter that the data fixed, 0 for one of which they say
        nothing, negative where they widened it.
    shift: ``(mean(posterior) - mean(prior)) / sd(prior)``; beyond 2 or so data and prior disagree.
    overlap: ``∫ min(prior, posterior)``, 1 for equal and 0 for disjoint distributions.
    """

    shrinkage: dict[str, Array]
    shift: dict[str, Array]
    overlap: dict[str, Array]

    def __repr__(self) -> str:
        return in_brief(self)


def prior_against_posterior(prior: Mapping[str, ArrayLike], posterior: Mapping[str, ArrayLike]) -> Learned:
    """Compare draws of the prior with draws of the posterior, coordinate by coordinate.

    Parameters
    ----------
    prior
        (draw, *shape) by name, such as `results.prior_predictive` gives; names that the posterior lacks are passed
        over.
    posterior
        (chain, draw, *shape) by name.

    Returns
    -------
    Learned

    Raises
    ------
    ValueError
        A parameter without draws of the prior, or with another shape there; NaN or infinity.

    Notes
    -----
    The overlap is that of histograms with ``ceil(2 n^(1/3))`` bins that hold equal parts of both samples together, n
    being the smaller sample (Rice's rule); between equal distributions noise takes some ``0.56 sqrt(bins / n)`` from
    it.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> learned = prior_against_posterior({"keys": rng.normal(0, 2, 4000)}, {"keys": rng.normal(1, 1, (4, 1000))})
    >>> round(float(learned.shrinkage["keys"]), 1), round(float(learned.shift["keys"]), 1)
    (0.7, 0.5)
    """
    found = Learned({}, {}, {})
    for name, given in posterior.items():
        after = _flat(f"posterior of {name}", given)
        if name not in prior:
            raise ValueError(f"prior has no draws of {name}; it has {', '.join(prior) or 'none'}")
        before = np.asarray(prior[name], float)
        if not np.isfinite(before).all():
            raise ValueError(f"prior of {name} contains NaN or infinity; look at what it was drawn from")
        if before.shape[1:] != after.shape[1:]:
            raise ValueError(
                f"prior of {name} has shape {before.shape} but the posterior's parameter has shape {after.shape[1:]}; "
                "give (draw, *shape)"
            )
        with np.errstate(divide="ignore", invalid="ignore"):  # a fixed parameter: 0/0 is NaN, said by the result
            found.shrinkage[name] = 1 - after.var(0, ddof=1) / before.var(0, ddof=1)
            found.shift[name] = (after.mean(0) - before.mean(0)) / before.std(0, ddof=1)
        found.overlap[name] = _overlap(before, after)
    return found


def _overlap(before: Array, after: Array) -> Array:
    bins = int(np.ceil(2 * min(len(before), len(after)) ** (1 / 3)))
    overlap = np.empty(after.shape[1:])
    for index in np.ndindex(*overlap.shape):
        x, y = before[:, *index], after[:, *index]
        edges = np.quantile(np.concatenate([x, y]), np.linspace(0, 1, bins + 1)[1:-1])
        shares = [np.bincount(np.searchsorted(edges, z, "right"), minlength=bins) / len(z) for z in (x, y)]
        overlap[index] = np.minimum(*shares).sum()
    return overlap


class Sensitivity(NamedTuple):
    """Answer of the posterior to the strength of a part of the model; first by part (``prior``, ``likelihood``),
    then by parameter.

    mean: change of the posterior mean per doubling of the strength, arrays of the parameter's shape.
    sd: the same of the posterior sd.
    pareto_k: by part, the shape of the tail of the importance weights, the worse of both directions; above 0.7 do not
    believe.
    """

    mean: dict[str, dict[str, Array]]
    sd: dict[str, dict[str, Array]]
    pareto_k: dict[str, float]

    def __repr__(self) -> str:
        return in_brief(self)


def prior_sensitivity(
    draws: Mapping[str, ArrayLike], log_prior: ArrayLike, log_likelihood: ArrayLike, *, scaling: float = 1.25
) -> Sensitivity:
    """Movement of mean and sd when prior or likelihood is raised to a power, from the draws that are there.

    The posterior of strength a is ``∝ p(θ)^a p(y|θ)``; draws of the one at a = 1 stand for it under Pareto-smoothed
    importance weights ``p(θ)^(a - 1)``. The derivatives are central differences over log2 a between ``a = scaling`` and
    ``1/scaling``.

    Parameters
    ----------
    draws
        (chain, draw, *shape) by name of the parameter.
    log_prior, log_likelihood
        (chain, draw): log density of all parameters, and of all data given them. Other factors of the posterior stay as
        they are.
    scaling
        Above 1; a larger one asks further away, from noisier weights.

    Returns
    -------
    Sensitivity

    Raises
    ------
    ValueError
        ``scaling`` infinite or not above 1; shapes that do not fit; fewer than 25 draws; NaN or infinity.

    Warns
    -----
    UserWarning
        A Pareto k above 0.7: the scaled posterior lies outside the draws, and its moments are not to be believed.

    Notes
    -----
    Compare a change with the posterior sd. Sensitive to the prior and not to the likelihood: the data say little.
    Sensitive to both: they disagree.

    References
    ----------
    Kallioinen, Paananen, Bürkner & Vehtari 2023, *Detecting and diagnosing prior and likelihood sensitivity with
    power-scaling*, Statistics and Computing 34; Vehtari et al. 2024, *Pareto smoothed importance sampling*, JMLR 25.

    Examples
    --------
    >>> theta = np.random.default_rng(0).normal(1.0, 0.5**0.5, (4, 5000))  # prior N(0, 1), one datum 2 ± 1
    >>> found = prior_sensitivity({"theta": theta}, -(theta**2) / 2, -((theta - 2) ** 2) / 2)
    >>> round(float(found.mean["prior"]["theta"]), 1), round(float(found.mean["likelihood"]["theta"]), 1)
    (-0.3, 0.3)
    """
    if not 1 < scaling < np.inf:
        raise ValueError(f"scaling must be above 1, not {scaling}, and finite; 1/scaling and scaling are compared")
    flat = {name: _flat(f"draws of {name}", x) for name, x in draws.items()}
    parts = {"prior": np.asarray(log_prior, float), "likelihood": np.asarray(log_likelihood, float)}
    found = Sensitivity({}, {}, {})
    for part, density in parts.items():
        if density.ndim != 2 or density.size < 25 or not np.isfinite(density).all():
            raise ValueError(f"log_{part} must be finite of shape (chain, draw), 25 draws or more, not {density.shape}")
        for name, x in draws.items():
            if np.shape(x)[:2] != density.shape:
                raise ValueError(f"log_{part} has shape {density.shape} but draws of {name} begin {np.shape(x)[:2]}")
        ends, worst = [], -np.inf
        for power in (1 / scaling, scaling):
            weights, k = _smoothed((power - 1) * density)
            worst = max(worst, k)
            ends.append({name: _moments(x, weights) for name, x in flat.items()})
        if worst > LARGEST_K:
            warnings.warn(
                f"Pareto k of the {part} is {worst:.2f}, above {LARGEST_K}: do not believe its sensitivities; "
                "take a smaller scaling, more draws, or run the sampler again",
                stacklevel=2,
            )
        steps = 2 * np.log2(scaling)
        for moment, table in enumerate((found.mean, found.sd)):
            table[part] = {name: (ends[1][name][moment] - ends[0][name][moment]) / steps for name in flat}
        found.pareto_k[part] = worst
    return found


def _smoothed(log_weights: Array) -> tuple[Array, float]:
    """Normalised weights, Pareto-smoothed, and the shape k of their tail; chains one behind the other."""
    if np.ptp(log_weights) == 0:  # a flat density: the draws as they are
        return np.full(log_weights.size, 1 / log_weights.size), -np.inf
    reff = min(1.0, float(arviz.ess(log_weights)) / log_weights.size)
    with np.errstate(over="ignore"):  # where its profile likelihood overflows, the weight it wants is 0
        smoothed, k = pareto_smoothed(log_weights.ravel(), reff)
    weights = np.exp(smoothed)
    return weights / weights.sum(), k


def _moments(x: Array, weights: Array) -> tuple[Array, Array]:
    mean = np.tensordot(weights, x, 1)
    return mean, np.sqrt(np.tensordot(weights, (x - mean) ** 2, 1))


def _flat(name: str, x: ArrayLike) -> Array:
    """(chain * draw, *shape), finite."""
    array = np.asarray(x, float)
    if array.ndim < 2 or array.shape[0] * array.shape[1] < 2 or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite of shape (chain, draw, ...), two draws or more, not {array.shape}")
    return array.reshape(-1, *array.shape[2:])
