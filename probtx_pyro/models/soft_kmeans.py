"""Soft k-means, the entrance to attention: points ask, centers answer, ``α_ij = softmax_j(-γ |x_i - r_j|²)``.

It is the `GaussianMixture` with equal weights and precision 2γ, so that α is its posterior, EM its clustering and
Lloyd's k-means the limit γ -> ∞ (``gamma=inf``). With values = keys = centers, ``Σ_j α_ij r_j`` is attention.

======  ===================  ====================  ==================================================
symbol  name                 shape                 support
======  ===================  ====================  ==================================================
r_j     ``centers``          (..., K, D)           real: keys and values
γ       ``gamma``            scalar or (...)       > 0, inf for k-means; an inverse squared distance
x_i     ``x``                (..., N, D)           real: the queries
α_ij    ``assign``           (..., N, K)           rows on the simplex: attention
ω_i     ``point_weights``    (..., N)              >= 0: multiplicities, 0 is an absent point
======  ===================  ====================  ==================================================

γ is often called a temperature; it is an inverse one (erratum 23). Leading axes are independent problems and broadcast.
A Normal prior on centers and a Gamma prior on γ, half a precision, are conjugate.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from pyro.distributions import Gamma, Normal
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._reduced import ReducedMixture, for_each
from probtx_pyro.models.formulation import GammaTerms, Parameter, Terms
from probtx_pyro.models.gaussian_mixture import GaussianMixture, plain_units
from probtx_pyro.models.mixture import Maybe, Number, Seen, attention_of
from probtx_pyro.ops import expected_statistics, fixed_point, gaussian_factor, safe_ratio
from probtx_pyro.ops._chunks import over_chunks
from probtx_pyro.ops._factor import squared_distances
from probtx_pyro.ops._fixed_point import State
from probtx_pyro.ops._numerics import common_shape, enable_grad
from probtx_pyro.ops._progress import progress_bar
from probtx_pyro.ops.attention import require_reached


class Clustering(NamedTuple):
    """The end of a fit, and its way there.

    model: the fitted `SoftKMeans`. objective: what the steps lower, at the start and after every step, (num_steps + 1,
    ...); of mini-batches, at every step on the batch it saw, (num_steps, ...). converged, num_steps: of each problem,
    (...).
    """

    model: "SoftKMeans"
    objective: Tensor
    converged: Tensor
    num_steps: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class SoftKMeans(ReducedMixture):
    """Centers and how sharply points choose among them. Immutable.

    Parameters
    ----------
    centers, gamma
        As in the table above.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN, a ``gamma`` that is not positive.

    Examples
    --------
    >>> x = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
    >>> clusters = SoftKMeans(torch.tensor([[0.0], [1.0]]), gamma=torch.inf).fit(x)
    >>> clusters.centers.tolist()
    [[0.5], [4.5]]
    >>> clusters.replace(gamma=0.1).assign(torch.tensor([[2.5], [4.0]]))
    tensor([[0.5000, 0.5000],
            [0.2315, 0.7685]])

    References
    ----------
    Sahai, *EECS 182/282A Lecture 17* (2022); Lloyd 1982; MacKay 2003, *Information Theory, Inference, and Learning
    Algorithms*, chapter 20 (soft k-means); Arthur & Vassilvitskii 2007 (k-means++).
    """

    centers: Tensor
    gamma: Number = Number()

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "centers": Parameter("unit feature", constraints.real, Normal),
        "gamma": Parameter("", constraints.positive, Gamma, logarithmic=True),
    }
    RESULTS: ClassVar[Mapping[str, str]] = {**ReducedMixture.RESULTS, "expected_outputs": "query feature"}
    INSTEAD: ClassVar[Mapping[str, str]] = {
        **ReducedMixture.INSTEAD,
        "log_evidence": "gamma is infinite, where the mixture has no density; give a finite gamma with replace(gamma=...)",
    }

    SHARPNESS: ClassVar[str] = "gamma"

    def __post_init__(self) -> None:
        self._tensors("gamma")
        check.at_least("centers", self.centers, 2, "(..., K, D)")
        check.finite(centers=self.centers)
        self._validate_sharpness()
        self._validate_weights()

    @property
    def mixture(self) -> GaussianMixture:
        """The mixture whose attention is `assign`: keys and values are the centers, the precision is 2γ."""
        self.require_density()
        return plain_units(self.centers, 2 * for_each(self.gamma, 1), values=self.centers)

    def conditional(self, name: str, seen: Seen) -> Terms:
        """The likelihood of centers or of γ given the other and assignments:
        those of the mixture's keys and precision.
        """
        if name == "centers":
            return self.mixture.conditional("keys", seen)
        terms = self.mixture.conditional("key_precision", seen)
        assert isinstance(terms, GammaTerms)
        return GammaTerms(terms.shape.sum(-1), 2 * terms.rate.sum(-1))  # the precision is 2γ, and all units share it

    def attention(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None) -> Tensor:
        """`assign`, in the words of the other formulations."""
        self.check_data(queries, outputs, observed)
        return self.assign(queries)

    def expected_outputs(self, queries: Tensor) -> Tensor:
        """`reconstruct`, in the words of the other formulations."""
        return self.reconstruct(queries)

    # -- what centers and points are to each other ---------------------------------------------------------------------

    def distances(self, x: Tensor) -> Tensor:
        """``|x_i - r_j|²``, shape (..., N, K)."""
        self._fits(x)
        return squared_distances(x, self.centers)

    def assign(self, x: Tensor) -> Tensor:
        """``α_ij``, how much each center explains each point, (..., N, K); in Lloyd's limit 1 for the nearest,
        the first of several.
        """
        distances = self.distances(x)
        if self.hard:
            require_reached(-distances.amin(-1))
            nearest = distances.argmin(-1, keepdim=True)
            return torch.zeros_like(distances).scatter(-1, nearest, 1.0)
        return attention_of(-self._sharpness * distances)[0]

    def reconstruct(self, x: Tensor) -> Tensor:
        """``Σ_j α_ij r_j``, attention with values = keys, (..., N, D); fused where γ is finite: no N x K tensor."""
        self._fits(x)
        return self.assign(x) @ self.centers if self.hard else super().expected_outputs(x)

    def free_energy(self, x: Tensor) -> Tensor:
        """``-γ⁻¹ log Σ_j exp(-γ |x_i - r_j|²)``, (..., N):
        what EM lowers. The distortion less γ⁻¹ times the entropy of α.
        """
        distances = self.distances(x)
        if self.hard:
            return distances.amin(-1)
        return -(-self._sharpness * distances).logsumexp(-1) / self._sharpness.squeeze(-1)

    def distortion(self, x: Tensor) -> Tensor:
        """``Σ_j α_ij |x_i - r_j|²``, (..., N): the bare sum (KM eq. 2), which EM can raise."""
        return (self.assign(x) * self.distances(x)).sum(-1)

    def reconstruction_error(self, x: Tensor) -> Tensor:
        """``|Σ_j α_ij r_j - x_i|²``, (..., N): the "goofy alternative" (KM 2.3), whose forward pass is attention."""
        return (self.reconstruct(x) - x).square().sum(-1)

    def pull(self, x: Tensor) -> Tensor:
        """``p_ij = α_ij (1 - γ (|x_i - r_j|² - distortion_i))``, (..., N, K): point i moves center j along
        ``p_ij (x_i - r_j)`` in a gradient step on the distortion; where negative, it pushes.

        With α held constant, and for the free energy, the pull is α itself (erratum 23).
        """
        weights, distances = self.assign(x), self.distances(x)
        if self.hard:
            return weights
        return weights * (1 - self._sharpness * (distances - (weights * distances).sum(-1, keepdim=True)))

    def gradient(self, x: Tensor, objective: str = "free_energy") -> Tensor:
        """Return the gradient of an objective's mean over the points with respect to the centers, (..., K, D).

        The objective is "free_energy", "distortion" or "reconstruction_error". For ``"free_energy"`` it is
        ``-2/N Σ_i α_ij (x_i - r_j)``: the gradient of the distortion with α held constant.
        """
        self._fits(x)
        return _slope(self, x, named(objective))[0]

    # -- fitting -------------------------------------------------------------------------------------------------------

    @classmethod
    def plus_plus(
        cls,
        x: Tensor,
        num_centers: int,
        gamma: Tensor | float,
        *,
        seed: int,
        point_weights: Maybe = None,
        num_trials: int | None = None,
    ) -> Self:
        """Centers that k-means++ picks among the points (greedy, the best of ``2 + log K`` candidates unless told).

        Warns where fewer points differ and have weight than centers are asked for, and lets centers coincide.

        Raises
        ------
        ValueError
            Fewer points than centers, weights or trials out of range.
        """
        return cls(kmeans_plus_plus(x, num_centers, seed, point_weights, num_trials), gamma)

    def fit(self, x: Tensor, num_steps: int = 100, tol: float | None = 1e-6, **options: Any) -> "SoftKMeans":
        """The model after EM, `em` without its trace; the same options."""
        return self.em(x, num_steps, tol, **options).model

    def em(
        self,
        x: Tensor,
        num_steps: int = 100,
        tol: float | None = 1e-6,
        *,
        learn_gamma: bool = False,
        point_weights: Maybe = None,
        implicit: bool = False,
        progress: bool | None = None,
    ) -> Clustering:
        """EM: assign, then move every center to the mean of what it is assigned; Lloyd's algorithm where γ is infinite.

        Parameters
        ----------
        x
            (..., N, D).
        num_steps, tol
            At most so many steps; a problem stops when nothing moves by more than ``tol`` times the largest magnitude.
        learn_gamma
            Also fit γ, half the precision, by maximum likelihood, one for each problem.
        point_weights
            (..., N), see the table.
        implicit
            Gradients by the implicit function theorem at the fixed point, instead of through the steps.
        progress
            True shows a bar, False none; None shows one on a terminal after a second.

        Returns
        -------
        Clustering
            The objective is the sum of `free_energy` over the points, or with ``learn_gamma`` minus the log likelihood
            of the mixture; neither ever rises. A center that nobody chooses stays where it is.

        Raises
        ------
        ValueError
            Shapes that do not fit, NaN or infinity, ``learn_gamma`` in Lloyd's limit or where all points lie on
            centers.
        """
        self._fits(x, point_weights)
        if num_steps < 0 or (tol is not None and not tol > 0):
            raise ValueError(f"num_steps must be 0 or more and tol positive, not num_steps={num_steps}, tol={tol}")
        centers, gamma, limit = self.centers, self.gamma, self.hard
        if learn_gamma and limit:
            raise ValueError("learn_gamma needs a finite gamma to start from; give one with replace(gamma=...)")
        weighted = () if point_weights is None else (point_weights.shape[:-1],)
        problems = common_shape(x.shape[:-2], centers.shape[:-2], gamma.shape, *weighted)
        weights = torch.ones_like(x[..., 0]) if point_weights is None else point_weights
        total, fixed, number, limits = weights.sum(-1), gamma.expand(problems), centers.shape[-2], torch.finfo(x.dtype)
        squares = (weights * x.detach().square().sum(-1)).sum(-1)
        rounding = (16 * limits.eps) ** 2 * squares  # of points that are their center
        middle = x.detach().mean(-2, keepdim=True)
        assigned = hard_step if limit else soft_step

        def step(state: State) -> tuple[State, Tensor]:
            sharpness = state.get("gamma", fixed)
            moved, around, energy = assigned(x, state["centers"], sharpness, middle, point_weights)
            if not learn_gamma:
                return {"centers": moved}, energy
            if check.is_validation_enabled() and not (around > rounding).all():
                raise ValueError("learn_gamma: points lie on the centers, where gamma has no bound; use fewer centers")
            learned = 0.5 * x.shape[-1] * total / around
            return {"centers": moved, "gamma": learned}, likelihood(energy, sharpness)

        def likelihood(energy: Tensor, sharpness: Tensor) -> Tensor:
            """Minus the log likelihood of the mixture with precision 2γ and equal weights."""
            density = math.log(number) - 0.5 * x.shape[-1] * (sharpness / math.pi).log()
            return sharpness * energy + total * density

        begin = {"centers": centers.expand(*problems, -1, -1)}
        if learn_gamma:  # what is fixed is no part of the state, where it would be a flat direction
            begin["gamma"] = fixed
        how: dict[str, Any] = {"num_steps": num_steps, "tol": tol, "implicit": implicit, "progress": progress}
        how |= {"problems": problems, "origins": {"centers": middle}, "label": "EM"}
        found = fixed_point(step, begin, objective=lambda state: step(state)[1], **how)
        assert found.objective is not None
        learned = found.state["gamma"] if learn_gamma else gamma
        model = check.unchecked(SoftKMeans, centers=found.state["centers"], gamma=learned)
        return Clustering(model, found.objective, found.converged, found.num_steps)

    def descend(
        self,
        x: Tensor,
        objective: str | Callable[["SoftKMeans", Tensor], Tensor] = "free_energy",
        *,
        num_steps: int,
        batch_size: int,
        seed: int,
        learning_rate: float | None = None,
        progress: bool | None = None,
    ) -> Clustering:
        """Mini-batch SGD on the mean of an objective: a name as in `gradient`, or a callable of (model,
        points) -> (..., N).

        Parameters
        ----------
        num_steps, batch_size, seed
            So many steps, each on so many points drawn without replacement until all have been seen.
        learning_rate
            Of ``r <- r - learning_rate · gradient``. None, for the free energy only, divides each center's pull by all
            the assignments it has had: mini-batch k-means (Sculley 2010), where centers are running means of what they
            met.

        Raises
        ------
        ValueError
            An unknown objective, a rate that is not positive, None for another objective, batches larger than the data.
        """
        self._fits(x)
        if not 1 <= batch_size <= x.shape[-2]:
            raise ValueError(f"batch_size must be from 1 to the number of points, {x.shape[-2]}, not {batch_size}")
        if num_steps < 1 or (learning_rate is not None and not learning_rate > 0):
            raise ValueError(f"num_steps must be 1 or more, learning_rate positive, not {num_steps}, {learning_rate}")
        if learning_rate is None and objective != "free_energy":
            raise ValueError("learning_rate=None descends the free energy only; give a number")
        function, generator = named(objective), torch.Generator().manual_seed(seed)
        batch = common_shape(x.shape[:-2], self.centers.shape[:-2], self.gamma.shape)
        centers, trace = self.centers.detach().expand(*batch, -1, -1), []
        met, order = centers.new_zeros(centers.shape[:-1]), torch.empty(0, dtype=torch.long, device="cpu")
        for _ in progress_bar(range(num_steps), label="mini-batches", progress=progress):
            if len(order) < batch_size:
                order = torch.randperm(x.shape[-2], generator=generator, device="cpu")
            rows, order = order[:batch_size].to(x.device), order[batch_size:]
            now = check.unchecked(SoftKMeans, centers=centers, gamma=self.gamma)
            points = x[..., rows, :].detach()
            slope, value = _slope(now, points, function)
            trace.append(value)
            if learning_rate is not None:
                centers = centers - learning_rate * slope
                continue
            met = met + now.assign(points).sum(-2)
            share = batch_size / (2 * met.unsqueeze(-1))  # -slope · batch / 2 is the sum of the pulls
            centers = centers - torch.where(met.unsqueeze(-1) > 0, share, 0.0) * slope
        taken = torch.full(batch, num_steps, device=x.device)
        return Clustering(
            self.replace(centers=centers), torch.stack(trace), torch.zeros_like(taken, dtype=torch.bool), taken
        )

    @property
    def _sharpness(self) -> Tensor:
        """γ, to multiply (..., N, K)."""
        return self.gamma[..., None, None]

    def _fits(self, x: Tensor, point_weights: Maybe = None) -> None:
        check.floating("x", x)
        check.at_least("x", x, 2, "(..., N, D)")
        check.same_size("x", x.shape[-1], "centers", self.centers.shape[-1], "coordinates")
        check.same_dtype(x=x, centers=self.centers)
        check.finite(x=x)
        check.broadcastable(x=x.shape[:-2], centers=self.centers.shape[:-2], gamma=self.gamma.shape)
        if point_weights is not None:
            check_weights(x, point_weights)


Found = tuple[Tensor, Tensor, Tensor]


def soft_step(x: Tensor, centers: Tensor, gamma: Tensor, middle: Tensor, point_weights: Maybe) -> Found:
    """The means of what each center is assigned, (..., K, D),
    ``Σ_ij ω_i α_ij |x_i - mean_j|²`` and the free energy, (...).
    """
    features = x.shape[-1]
    factor = gaussian_factor(x, centers, 2 * gamma.unsqueeze(-1), origin=middle)
    found = expected_statistics(factor, None, point_weights)
    origin, counts = found.centers[0] if found.centers else middle, found.counts.unsqueeze(-1)
    first, second = found.sums[..., :features], -2 * found.sums[..., features]
    moved = torch.where(counts > 0, origin + safe_ratio(first, counts, torch.zeros_like(first)), centers)
    around = (second - (safe_ratio(first, counts, torch.zeros_like(first)) * first).sum(-1)).sum(-1)
    evidence = found.log_evidence - 0.5 * features * (gamma / math.pi).log().unsqueeze(-1)
    evidence = evidence if point_weights is None else evidence * point_weights
    return moved, around, -evidence.sum(-1) / gamma


def hard_step(x: Tensor, centers: Tensor, gamma: Tensor, middle: Tensor, point_weights: Maybe) -> Found:
    """The same in the limit of infinite γ: every point counts for the nearest center, the first of several."""

    def nearest(queries: list, given: list) -> tuple[Tensor, None]:
        """Return the number of the nearest center, by a product where its rounding leaves no doubt,
        else by the differences.
        """
        (points,), (centers, middle) = queries, given
        away, at = points - middle, centers - middle
        scores = at.square().sum(-1).unsqueeze(-2) - 2 * away @ at.mT
        doubt = 8 * (x.shape[-1] + 4) * torch.finfo(x.dtype).eps * sum(z.norm(dim=-1).amax() for z in (away, at)) ** 2
        close = scores <= scores.amin(-1, keepdim=True) + doubt
        if not (close.sum(-1) == 1).all():
            scores = squared_distances(points, centers)
        return scores.argmin(-1, keepdim=True).to(points.dtype), None

    with torch.no_grad():
        chosen = over_chunks(nearest, [x], [centers, middle], centers.shape[-2])[0].long()
    shape = (*chosen.shape[:-1], x.shape[-1])
    place = chosen.expand(shape)
    away = x - centers.expand(*shape[:-2], *centers.shape[-2:]).gather(-2, place)
    weights = x.new_ones(()) if point_weights is None else point_weights.unsqueeze(-1)
    weights = weights.expand(*shape[:-1], 1)
    counts = away.new_zeros(*shape[:-2], centers.shape[-2], 1).scatter_add(-2, chosen, weights)
    shift = away.new_zeros(*shape[:-2], *centers.shape[-2:]).scatter_add(-2, place, weights * away)
    moved = centers + safe_ratio(shift, counts, torch.zeros_like(shift))
    energy = (weights * away.square()).sum((-2, -1))
    return moved, energy, energy


Objective = Callable[[SoftKMeans, Tensor], Tensor]  # a model and points to a number for every point, (..., N)

OBJECTIVES: dict[str, Objective] = {
    "free_energy": lambda model, x: model.free_energy(x),
    "distortion": lambda model, x: model.distortion(x),
    "reconstruction_error": lambda model, x: model.reconstruction_error(x),
}


def named(objective: str | Objective) -> Objective:
    """The objective that a name stands for; a callable stands for itself."""
    if callable(objective):
        return objective
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, or a callable, not {objective!r}")
    return OBJECTIVES[objective]


def _slope(model: SoftKMeans, x: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """The gradient, and the objective's mean over the points, (...)."""
    batch = common_shape(x.shape[:-2], model.centers.shape[:-2], model.gamma.shape)
    with enable_grad():
        centers = model.centers.detach().expand(*batch, -1, -1).clone().requires_grad_()
        value = objective(check.unchecked(SoftKMeans, centers=centers, gamma=model.gamma), x).mean(-1)
        return torch.autograd.grad(value.sum(), centers)[0], value.detach()


def kmeans_plus_plus(x: Tensor, num_centers: int, seed: int, point_weights: Maybe, num_trials: int | None) -> Tensor:
    """Centers (..., K, D) among points (..., N, D);
    of ``num_trials`` candidates for each the one that lowers the distortion most.

    Problems of a batch pick alike from the same seed.
    """
    check.floating("x", x)
    check.at_least("x", x, 2, "(..., N, D)")
    check.finite(x=x)
    if point_weights is not None:
        check_weights(x, point_weights)
    if not 1 <= num_centers <= x.shape[-2]:
        raise ValueError(f"num_centers must be from 1 to the number of points, {x.shape[-2]}, not {num_centers}")
    trials = 2 + int(math.log(num_centers)) if num_trials is None else num_trials
    if trials < 1:
        raise ValueError(f"num_trials must be 1 or more, not {num_trials}")
    generator = torch.Generator().manual_seed(seed)
    batch = x.shape[:-2] if point_weights is None else common_shape(x.shape[:-2], point_weights.shape[:-1])
    x = x.expand(*batch, *x.shape[-2:])
    weights = x.new_ones(x.shape[:-1]) if point_weights is None else point_weights.to(x).expand(x.shape[:-1])
    least, chosen = torch.ones_like(weights), []
    for number in range(num_centers):
        mass = (weights * least).cumsum(-1)
        spent = mass[..., -1:] <= 0
        if spent.any():
            warnings.warn(
                f"x has only {number} points that differ and have weight, fewer than num_centers={num_centers}: centers coincide",
                stacklevel=3,
            )
            mass = torch.where(spent, weights.cumsum(-1), mass)
        uniform = torch.rand(trials if number else 1, generator=generator, dtype=torch.float64, device="cpu").to(x)
        candidates = torch.searchsorted(mass, (1 - uniform) * mass[..., -1:])  # in (0, total]: of positive mass
        candidates = candidates.clamp_max(x.shape[-2] - 1)
        rows = x.gather(-2, candidates.unsqueeze(-1).expand(*candidates.shape, x.shape[-1]))
        distances = squared_distances(rows, x)
        tried = distances if number == 0 else torch.minimum(distances, least.unsqueeze(-2))
        best = (weights.unsqueeze(-2) * tried).sum(-1).argmin(-1, keepdim=True)
        chosen.append(candidates.gather(-1, best))
        least = tried.gather(-2, best.unsqueeze(-1).expand(*best.shape, x.shape[-2])).squeeze(-2)
    picked = torch.cat(chosen, -1)
    return x.gather(-2, picked.unsqueeze(-1).expand(*picked.shape, x.shape[-1]))


def check_weights(x: Tensor, point_weights: Tensor) -> None:
    """Refuse weights that do not fit the points."""
    if point_weights.shape[-1:] != x.shape[-2:-1] or point_weights.dtype != x.dtype:
        raise ValueError(f"point_weights must be {x.dtype} of shape (..., {x.shape[-2]}), one for each point")
    check.finite(point_weights=point_weights)
    if check.is_validation_enabled() and ((point_weights < 0).any() or (point_weights == 0).all(-1).any()):
        raise ValueError("point_weights must be non-negative and positive somewhere; 0 leaves a point out")
