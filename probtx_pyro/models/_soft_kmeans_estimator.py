"""Soft k-means with scikit-learn's interface; scikit-learn is an extra,
so `probtx_pyro.models` loads this file when it is asked for.
"""

from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from probtx_pyro.models.soft_kmeans import Clustering, SoftKMeans


class SoftKMeansEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """`SoftKMeans` as an estimator: numpy in, numpy out, in a pipeline or a grid search.

    Parameters
    ----------
    n_clusters
        K.
    gamma
        Inverse squared distance at which assignments soften; ``inf`` is k-means; None learns it by maximum likelihood.
    init
        ``"k-means++"``, ``"random"`` points, or centers (K, D).
    n_init
        So many starts, of which the one with the lowest objective is kept.
    max_iter, tol
        At most so many EM steps; they stop when no center moves by more than ``tol`` times the largest coordinate.
    random_state
        An integer makes fits reproducible.

    Attributes
    ----------
    cluster_centers_ : (K, D)
    gamma_ : the inverse squared distance used or learned
    labels_ : (N,), the center that explains each point best
    inertia_ : sum of squared distances to those centers, as of ``KMeans``
    objective_ : what EM lowered, at the start and after every step; see `SoftKMeans.em`
    n_iter_ : EM steps taken
    n_features_in_ : D

    Raises
    ------
    ValueError
        Parameters out of range, and data that scikit-learn's own checks refuse; in `fit` numbers whose squares overflow
        or vanish.

    Notes
    -----
    A row that is asked for may hold any finite number. Where it is so far from all centers that its squared distances
    overflow, its `score` is -inf, `predict` names the first center, and it belongs to all with equal probabilities, in
    k-means to the first.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[0.0], [1.0], [4.0], [5.0]])
    >>> sorted(SoftKMeansEstimator(2, gamma=np.inf, random_state=0).fit(x).cluster_centers_.ravel().tolist())
    [0.5, 4.5]
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "gamma": [Interval(Real, 0, None, closed="right"), None],
        "init": [StrOptions({"k-means++", "random"}), "array-like"],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        gamma: float | None = None,
        init: str | ArrayLike = "k-means++",
        n_init: int = 1,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.gamma = gamma
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Cluster the rows of X (N, D), counted ``sample_weight`` (N,) times."""
        self._validate_params()
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # of sums of large numbers by which scikit-learn looks for NaN
            data = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=1)
        check_squares(data, "X")
        if len(data) < self.n_clusters:
            raise ValueError(f"n_samples={len(data)} should be >= n_clusters={self.n_clusters}")
        weights = None
        if sample_weight is not None:
            weights = _tensor(_check_sample_weight(sample_weight, data, dtype=data.dtype))
        x, random = _tensor(data), check_random_state(self.random_state)
        fits = [self._fit_once(x, weights, random) for _ in range(self.n_init)]
        best = min(fits, key=lambda fit: float(fit.objective[-1].nan_to_num(torch.inf, torch.inf)))
        self.cluster_centers_ = best.model.centers.numpy()
        self.gamma_ = float(best.model.gamma)
        self.objective_ = best.objective.numpy()
        self.n_iter_ = int(best.num_steps)
        distances = self.model_.distances(x)
        self.labels_ = distances.argmin(-1).numpy().astype(np.int32)
        nearest = distances.amin(-1)
        self.inertia_ = float((nearest if weights is None else weights * nearest).sum())
        return self

    def _fit_once(self, x: torch.Tensor, weights: torch.Tensor | None, random: np.random.RandomState) -> Clustering:
        learn = self.gamma is None
        start = SoftKMeans(self._start(x, weights, random), 1.0 if self.gamma is None else float(self.gamma))
        if learn:
            start = start.replace(gamma=_scale(start, x, weights))
        learn = learn and bool(start.gamma.isfinite())  # else every point is a center, where k-means is the limit
        return start.em(x, self.max_iter, self.tol, learn_gamma=learn, point_weights=weights, progress=False)

    def _start(self, x: torch.Tensor, weights: torch.Tensor | None, random: np.random.RandomState) -> torch.Tensor:
        seed = int(random.randint(np.iinfo(np.int32).max))
        if not isinstance(self.init, str):
            centers = torch.as_tensor(np.asarray(self.init), dtype=x.dtype)
            if centers.shape != (self.n_clusters, x.shape[1]):
                raise ValueError(f"init must have shape ({self.n_clusters}, {x.shape[1]}), not {tuple(centers.shape)}")
            return centers
        if self.init == "random":
            chance = None if weights is None else (weights / weights.sum()).numpy()
            return x[np.random.RandomState(seed).choice(len(x), self.n_clusters, replace=False, p=chance)]
        # sorted, so that the order of the rows does not matter, nor whether one is repeated or weighted
        order = np.lexsort(x.T.numpy())
        weights = None if weights is None else weights[order]
        return SoftKMeans.plus_plus(x[order], self.n_clusters, 1.0, seed=seed, point_weights=weights).centers

    @property
    def model_(self) -> SoftKMeans:
        """The fitted `SoftKMeans`: a value of tensors, with attention, gradients and the Pyro program."""
        check_is_fitted(self)
        return SoftKMeans(torch.as_tensor(self.cluster_centers_), self.gamma_)

    def predict(self, X: ArrayLike) -> NDArray[np.int32]:
        """The nearest center of each row, (N,)."""
        return self.model_.distances(self._rows(X)).argmin(-1).numpy().astype(np.int32)

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Attention of each row over the centers, (N, K)."""
        model, x = self.model_, self._rows(X)
        if model.hard:
            return np.eye(len(self.cluster_centers_), dtype=self.cluster_centers_.dtype)[self.predict(X)]
        told = model.distances(x).amin(-1, keepdim=True) < torch.inf
        assigned = model.assign(torch.where(told, x, model.centers[:1]))
        return torch.where(told, assigned, 1 / len(self.cluster_centers_)).numpy()

    def transform(self, X: ArrayLike) -> NDArray:
        """Distances of each row to the centers, (N, K), as of ``KMeans``."""
        exact = "donot_use_mm_for_euclid_dist"  # the root of a difference of squares would keep half the digits near a center
        return torch.cdist(self._rows(X), self.model_.centers, compute_mode=exact).numpy()

    def score(self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None) -> float:
        """Minus the free energy, summed over rows: with an infinite gamma, the score of ``KMeans``."""
        x = self._rows(X)
        energy = self.model_.free_energy(x).numpy()
        return -float((energy if sample_weight is None else energy * np.asarray(sample_weight)).sum())

    def _rows(self, X: ArrayLike) -> torch.Tensor:
        check_is_fitted(self)
        with np.errstate(over="ignore", invalid="ignore"):
            data = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return _tensor(within(data, self.cluster_centers_.dtype))

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _tensor(array: NDArray) -> torch.Tensor:
    """Shares memory with the array, unless that is read-only, which torch does not know."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _scale(model: SoftKMeans, x: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """γ as k-means would learn it from the start:
    half the coordinates over the mean squared distance to the nearest center.
    """
    nearest = model.distances(x).amin(-1)
    mean = nearest.mean() if weights is None else (weights * nearest).sum() / weights.sum()
    return 0.5 * x.shape[1] / mean


def middle(data: NDArray) -> NDArray:
    """Return the median of each column of (N, D), of two in the middle the larger, (D,)."""
    return np.partition(data, len(data) // 2, axis=0)[len(data) // 2]


def away_from_middle(data: NDArray) -> NDArray:
    """Return the largest distance of each row of (N, D) from the median in any column, (N,);
    infinite where it overflows.
    """
    with np.errstate(over="ignore"):
        return np.abs(data - middle(data)).max(1)


def check_squares(data: NDArray, given: str) -> None:
    """Refuse rows whose squared distances overflow, or vanish.

    Parameters
    ----------
    data
        (N, D), finite.
    given
        What they are called.

    Raises
    ------
    ValueError
        Numbers that differ by so much, or so little, that the sum of all squares is no normal number of their dtype.
    """
    widest, limits = float(away_from_middle(data).max()), np.finfo(data.dtype)
    low, high = (float(limits.tiny) * data.size) ** 0.5, (float(limits.max) / data.size) ** 0.5
    if widest > 0 and not low < widest < high:
        raise ValueError(
            f"{given} varies by {widest:.1g}, whose square {data.dtype} does not hold; leave out what stands for missing "
            "values, or divide all by a number of about this size"
        )


def within(data: NDArray, dtype: np.dtype | type[np.floating]) -> NDArray:
    """Return finite numbers in another precision, the largest that it has in the place of larger ones."""
    if data.dtype == dtype:
        return data
    largest = np.finfo(dtype).max
    return data.clip(-largest, largest).astype(dtype)
