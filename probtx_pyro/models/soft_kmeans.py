"""Soft k-means, the entrance to attention: points ask, centers answer, ``α_ij = softmax_j(-γ |x_i - r_j|²)``.

It is the `GaussianMixture` with equal weights and precision 2γ, so that α is its posterior, EM its clustering and Lloyd's
k-means the limit γ -> ∞ (``gamma=inf``). With values = keys = centers, ``Σ_j α_ij r_j`` is attention.

======  ===================  ====================  ==================================================
symbol  name                 shape                 support
======  ===================  ====================  ==================================================
r_j     ``centers``          (..., K, D)           real: keys and values
γ       ``gamma``            scalar or (...)       > 0, inf for k-means; an inverse squared distance
x_i     ``x``                (..., N, D)           real: the queries
α_ij    ``assign``           (..., N, K)           rows on the simplex: attention
ω_i     ``point_weights``    (..., N)              >= 0: multiplicities, 0 is an absent point
======  ===================  ====================  ==================================================

γ is often called a temperature; it is an inverse one (erratum 23). Leading axes are independent problems and broadcast. A Normal
prior on centers and a Gamma prior on γ, half a precision, are conjugate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from pyro.distributions import Gamma, Normal
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _kmeans_descent as descent
from probtx_pyro.models import _kmeans_em as expectation
from probtx_pyro.models import _kmeans_plus_plus as start
from probtx_pyro.models import _validation as check
from probtx_pyro.models._reduced import ReducedMixture, for_each
from probtx_pyro.models.formulation import GammaTerms, Parameter, Terms
from probtx_pyro.models.gaussian_mixture import GaussianMixture
from probtx_pyro.models.mixture import Maybe, Number, Seen, attention_of
from probtx_pyro.ops._factor import squared_distances
from probtx_pyro.ops.attention import require_reached


class Clustering(NamedTuple):
    """The end of a fit, and its way there.

    model: the fitted `SoftKMeans`. objective: what the steps lower, at the start and after every step, (num_steps + 1, ...);
    of mini-batches, at every step on the batch it saw, (num_steps, ...). converged, num_steps: of each problem, (...).
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
    >>> clusters.replace(gamma=0.1).assign(torch.tensor([[2.5], [4.0]])).round(decimals=3).tolist()
    [[0.5, 0.5], [0.23100000619888306, 0.7689999938011169]]

    References
    ----------
    Sahai, *EECS 182/282A Lecture 17* (2022); Lloyd 1982; MacKay 2003, *Information Theory, Inference, and Learning Algorithms*,
    chapter 20 (soft k-means); Arthur & Vassilvitskii 2007 (k-means++).
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
        return check.unchecked(GaussianMixture, keys=self.centers, values=self.centers,
                               key_precision=2 * for_each(self.gamma, 1), value_precision=self.centers.new_zeros(()),
                               log_prior=None, answer_probs=None)  # fmt: skip

    def conditional(self, name: str, seen: Seen) -> Terms:
        """The likelihood of centers or of γ given the other and assignments: those of the mixture's keys and precision."""
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

    # -- what centers and points are to each other -----------------------------------------------------------------------

    def distances(self, x: Tensor) -> Tensor:
        """``|x_i - r_j|²``, shape (..., N, K)."""
        self._fits(x)
        return squared_distances(x, self.centers)

    def assign(self, x: Tensor) -> Tensor:
        """``α_ij``, how much each center explains each point, (..., N, K); in Lloyd's limit 1 for the nearest, the first of several."""
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
        """``-γ⁻¹ log Σ_j exp(-γ |x_i - r_j|²)``, (..., N): what EM lowers. The distortion less γ⁻¹ times the entropy of α."""
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
        """``p_ij = α_ij (1 - γ (|x_i - r_j|² - distortion_i))``, (..., N, K): point i moves center j along ``p_ij (x_i - r_j)``
        in a gradient step on the distortion; where negative, it pushes.

        With α held constant, and for the free energy, the pull is α itself (erratum 23).
        """
        weights, distances = self.assign(x), self.distances(x)
        if self.hard:
            return weights
        return weights * (1 - self._sharpness * (distances - (weights * distances).sum(-1, keepdim=True)))

    def gradient(self, x: Tensor, objective: str = "free_energy") -> Tensor:
        """Return the gradient of an objective's mean over the points with respect to the centers, (..., K, D).

        The objective is "free_energy", "distortion" or "reconstruction_error". For ``"free_energy"`` it is ``-2/N Σ_i α_ij (x_i - r_j)``: the gradient of the distortion with α held constant.
        """
        self._fits(x)
        return descent.gradient(self, x, objective)

    # -- fitting ------------------------------------------------------------------------------------------------------------

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
        return cls(start.plus_plus(x, num_centers, seed, point_weights, num_trials), gamma)

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
            The objective is the sum of `free_energy` over the points, or with ``learn_gamma`` minus the log likelihood of the
            mixture; neither ever rises. A center that nobody chooses stays where it is.

        Raises
        ------
        ValueError
            Shapes that do not fit, NaN or infinity, ``learn_gamma`` in Lloyd's limit or where all points lie on centers.
        """
        self._fits(x, point_weights)
        centers, gamma, found = expectation.em(
            self.centers, self.gamma, x, num_steps, tol, learn_gamma, point_weights, implicit, progress
        )
        return Clustering(check.unchecked(SoftKMeans, centers=centers, gamma=gamma), *found)

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
        """Mini-batch SGD on the mean of an objective: a name as in `gradient`, or a callable of (model, points) -> (..., N).

        Parameters
        ----------
        num_steps, batch_size, seed
            So many steps, each on so many points drawn without replacement until all have been seen.
        learning_rate
            Of ``r <- r - learning_rate · gradient``. None, for the free energy only, divides each center's pull by all the
            assignments it has had: mini-batch k-means (Sculley 2010), where centers are running means of what they met.

        Raises
        ------
        ValueError
            An unknown objective, a rate that is not positive, None for another objective, batches larger than the data.
        """
        self._fits(x)
        centers, trace = descent.descend(self, x, objective, num_steps, batch_size, seed, learning_rate, progress)
        problems = trace.shape[1:]
        taken = torch.full(problems, num_steps, device=x.device)
        return Clustering(self.replace(centers=centers), trace, torch.zeros_like(taken, dtype=torch.bool), taken)

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
            start.check_weights(x, point_weights)
