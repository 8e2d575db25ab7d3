"""A memory of labelled points as a scikit-learn classifier, which is an extra;
`probtx_pyro.apps` loads this file when it is asked for.
"""

import copy
import math
import warnings
from collections.abc import Iterable, Sequence
from itertools import chain
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import torch
import xarray
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import BaseCrossValidator, check_cv
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from probtx_pyro import results
from probtx_pyro.apps.memory import _held_out, _learn
from probtx_pyro.apps.memory._adapt import ANCHORS, CONCENTRATIONS, Prevalence, adapted, chosen, draw_shares, of_classes
from probtx_pyro.apps.memory._explain import Explanation, draws_of_training, explained, unit_names
from probtx_pyro.apps.memory._held_out import HeldOut, expected_answers, log_evidence, tempered
from probtx_pyro.apps.memory._learn import Examples, Settings, Sums
from probtx_pyro.inference import Draws
from probtx_pyro.models import GaussianMixture
from probtx_pyro.models._soft_kmeans_estimator import away_from_middle, check_squares, middle, within

MOST_KEPT = 10_000  # points of partial_fit
_FAR = 1e6  # times the typical distance from the middle, from which a row is no other row's like


class Rows(NamedTuple):
    """Training points that are kept.

    points, shares: (N, D), and the shares of classes (N, C), times how often each counts. fold_of: (N,), -1 in none.
    ranks: (N,), uniform numbers; where not all points are kept, those of the lowest ranks are.
    """

    points: Tensor
    shares: Tensor
    fold_of: Tensor
    ranks: Tensor


class Training(NamedTuple):
    """Points and labels, taught at once or in parts.

    settings: how a memory is learned. num_folds: in which points are held out, 0 for none. counts: points of each class
    so far, (C,). rows: those that are kept. sums: of all points, then of those outside each fold; none where every
    point is a unit.
    """

    settings: Settings
    num_folds: int
    counts: Tensor
    rows: Rows
    sums: tuple[Sums, ...] = ()

    @classmethod
    def nothing(cls, settings: Settings, num_folds: int, like: Tensor) -> Self:
        """Begin, with points like some (·, D)."""
        empty, whole = like.new_empty(0), torch.zeros(0).long()
        rows = Rows(like[:0], like.new_empty(0, settings.num_classes), whole, empty)
        return cls(settings, num_folds, torch.zeros(settings.num_classes).long(), rows)

    def taught(self, points: Tensor, shares: Tensor, most: int = 0, dealt: Tensor | None = None) -> Self:
        """Add points.

        Parameters
        ----------
        points, shares
            (N, D), and the shares of classes (N, C), times how often each point counts.
        most
            Points to keep of all, drawn at random; 0 keeps all, as does a memory whose units they are.
        dealt
            Their folds, (N,). None deals them out by class, copies of a point to its own fold.
        """
        settings, labels = self.settings, shares.argmax(1)
        seen = int(self.counts.sum())
        dealt = self._deal(points, labels) if dealt is None else dealt
        ranks = torch.from_numpy(np.random.default_rng([settings.seed, seen]).random(len(points))).to(points)
        rows = Rows(*map(_joined, self.rows, (points, shares, dealt, ranks)))
        counts = self.counts + labels.bincount(minlength=settings.num_classes)
        if settings.units_per_class is None:
            return self._replace(counts=counts, rows=rows)
        examples = Examples.of(points, shares)
        outside = (examples.some(dealt[examples.rows] != fold) for fold in range(self.num_folds))
        parts = zip(chain([examples], outside), self.sums or (None,) * (1 + self.num_folds), strict=True)
        sums = tuple(_learn.learned_sums(part, settings, known) for part, known in parts)
        if 0 < most < len(ranks := rows.ranks):
            rows = Rows(*(x[ranks.argsort()[:most].sort().values] for x in rows))
        return self._replace(counts=counts, rows=rows, sums=sums)

    def _deal(self, points: Tensor, labels: Tensor) -> Tensor:
        """Return folds of new points, (N,)."""
        if not self.num_folds:
            return torch.zeros_like(labels)
        dealt = _held_out.folds_of(labels, self.num_folds, self.counts.tolist(), self.settings.seed)
        every = _joined(self.rows.fold_of, dealt)
        return every[_learn.copies(_joined(self.rows.points, points))][len(self.rows.points) :]

    def memory(self) -> GaussianMixture:
        """Learn the memory of all points."""
        if self.sums:
            return _learn.memory_of(self.sums[0], self.settings)
        return _learn.every_point(Examples.of(self.rows.points, self.rows.shares), self.settings)

    def held_out(self) -> HeldOut:
        """Score the points that are kept, each by a memory that was learned without its fold."""
        points, shares, fold_of, _ = self.rows
        if not self.num_folds:
            return HeldOut(np.empty(0), 1.0, lambda _: torch.zeros_like(shares[0]))
        memories = [self._without(fold) for fold in range(self.num_folds)]
        return _held_out.held_out(points, shares, fold_of, memories, self.settings.seed)

    def _without(self, fold: int) -> GaussianMixture | None:
        """Learn the memory of the points outside a fold; None where they do not vary."""
        if self.sums:
            sums = self.sums[1 + fold]
            return _learn.memory_of(sums, self.settings) if sums.vary() else None
        outside = self.rows.fold_of != fold
        examples = Examples.of(self.rows.points[outside], self.rows.shares[outside])
        varied = _learn.class_sums(examples, self.settings.num_classes).vary()
        return _learn.every_point(examples, self.settings) if varied else None


def _joined(before: Tensor, more: Tensor) -> Tensor:
    """Return one tensor, and no copy where it is the first."""
    return torch.cat([before, more]) if len(before) else more


Given: TypeAlias = ArrayLike | None
Folds: TypeAlias = int | BaseCrossValidator | Iterable[tuple[ArrayLike, ArrayLike]] | None
_KINDS = [np.float64, np.float32]
_RATE = 0.05  # of false alarms
_MANY_UNITS = 30_000
_ALL_ROWS, _UNITS = 5_000, 40  # of "auto": rows up to which each is a unit, and units a class beyond
_MANY_UNLIKE = 0.25  # share of points below the evidence that 5 % fall below


class MemoryClassifier(ClassifierMixin, BaseEstimator):
    """Memory of labelled points in Gaussian units: a point attends to the units, and their labels answer.

    ``p(x, c) = Σ_j π_j ρ_jc N(x; ξ_j, Λ⁻¹)``, a `models.GaussianMixture` with categorical answers. Besides the class it
    says how likely the point itself is, so that a point unlike all that it was taught is seen; and it adapts to points
    without labels.

    Parameters
    ----------
    units_per_class
        At most so many units for each class, found by EM from a start by k-means++; ``"all"`` makes every training
        point a unit, whose time grows with the square of their number; ``"auto"`` does so up to 5,000 rows, and beyond,
        as in `partial_fit`, learns 40 a class. One unit a class and a full metric, which is regularised discriminant
        analysis, answer better on small tables of few columns.
    metric
        What all units share, and is learned: ``"scalar"`` a precision, ``"diagonal"`` one a feature, ``"full"`` a
        matrix. The first needs features on one scale, and all are shrunk to it; put a ``StandardScaler`` in front where
        units of measure differ. Held-out evidence tells how many units are good, and prefers the full metric where it
        finds unseen classes worse.
    prior_weight
        How many points the prior of the metric counts as, which has one precision in all directions; None is the number
        of features.
    temperature
        By which the squared distances are divided when it answers; None learns it from the held-out points.
    cv
        Folds in which each training point is held out once: their number, a splitter of scikit-learn such as
        ``GroupKFold(5)``, or pairs of rows to learn from and rows held out, these pairs and `fit` only. Their number
        deals them out class by class in the order of the rows, copies of a row to one fold; another order is another
        draw of the folds, and moves temperature and threshold a little. None holds none out: `reject` refuses, the
        temperature is 1 unless given.
    random_state
        An integer makes fits reproducible.

    Attributes
    ----------
    memory_ : `models.GaussianMixture`, which `score_samples` asks; `reader_` is the one that answers
    temperature_ : that of the answers
    held_out_evidence_ : (N,), log evidence of the training points, each under a memory that was learned without it;
        NaN where none could be
    moved_ : names of what `adapt` has let move
    classes_ : (C,), n_features_in_ : D

    Raises
    ------
    ValueError
        Parameters out of range, and data that scikit-learn's own checks refuse; labels that are missing, as an empty
        text is, or text beside numbers; a row to learn from that is a million times as far from the others as they are
        from each other (a value that stands for a missing one); numbers whose squares overflow or vanish.

    Notes
    -----
    A row to classify may hold any finite number. Where it is so far from all units that the evidence overflows,
    `score_samples` is -inf, `reject` is True at every rate, and, as no unit speaks for it, the classes have their
    prevalence in the memory, and `explain` names the units of most weight.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(200, 2)) + np.repeat([[-3.0, 0.0], [3.0, 0.0]], 100, 0)
    >>> classifier = MemoryClassifier(random_state=0).fit(x, np.repeat(["left", "right"], 100))
    >>> classifier.predict([[-2.0, 0.5], [4.0, 0.0]]).tolist(), classifier.reject([[-2.0, 0.5], [0.0, 40.0]]).tolist()
    (['left', 'right'], [False, True])

    References
    ----------
    Movellan & Gabbur 2020, *Probabilistic Transformers*, arXiv 2010.15583 (units with answers, adaptation); Saerens et
    al. 2002 (prevalence); Vovk et al. 2005, *Algorithmic learning in a random world* (the threshold).
    """

    classes_: NDArray
    moved_: tuple[str, ...]
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "units_per_class": [Interval(Integral, 1, None, closed="left"), StrOptions({"all", "auto"})],
        "metric": [StrOptions(set(_learn.METRICS))],
        "prior_weight": [Interval(Real, 0, None, closed="neither"), None],
        "temperature": [Interval(Real, 0, None, closed="neither"), None],
        "cv": ["cv_object"],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        units_per_class: int | str = "auto",
        *,
        metric: str = "scalar",
        prior_weight: float | None = None,
        temperature: float | None = None,
        cv: Folds = 5,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.units_per_class = units_per_class
        self.metric = metric
        self.prior_weight = prior_weight
        self.temperature = temperature
        self.cv = cv
        self.random_state = random_state

    # -- learning ------------------------------------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: Given = None, groups: Given = None) -> Self:
        """Learn from points and labels, and forget what was learned before.

        Parameters
        ----------
        X
            (N, D).
        y
            (N,) classes; or (N, C), C > 1, shares of classes 0..C-1, rows on the simplex or booleans.
        sample_weight
            How often each row counts, (N,), 0 for not at all. Weights by class are
            ``compute_sample_weight("balanced", y)`` of scikit-learn. The threshold of `reject` counts each row once.
        groups
            (N,), for a ``cv`` that keeps groups together.

        Warns
        -----
        UserWarning
            Fewer than 19 rows were held out, too few for `reject` at its rate of .05; every row is a unit and there are
            so many that it takes minutes.
        """
        self._learn(X, y, None, 0, None, sample_weight, groups)
        if self.cv is not None and not self.lowest_rate_ <= _RATE:
            few = f"{_held(self.held_out_evidence_)}, too few to tell with {_RATE:.0%} false alarms what is unlike them"
            warnings.warn(f"{few}; give {round(1 / _RATE) - 1} rows or more, or cv=None", stacklevel=2)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: Given = None) -> Self:
        """Learn from more points and labels.

        With one unit a class the memory is that of `fit` from all points at once, up to rounding. With several, as with
        ``"auto"``, earlier points stay assigned to units as they are, and count as a conjugate prior; a class with
        fewer units than it may have gets others. With ``"all"`` every point is kept. Temperature and held-out evidence
        are found anew each time, of points that are kept: all, or 10,000 drawn evenly from all so far, each of which is
        asked of a memory that was learned without it.

        Parameters
        ----------
        X, y
            As in `fit`.
        classes
            (C,), all that are to come, at the first call; not needed where ``y`` are shares.

        Raises
        ------
        ValueError
            No classes at the first call, others later, labels that are not among them; points of the first call that do
            not vary.
        NotImplementedError
            A memory that has adapted.
        """
        if not (self.cv is None or isinstance(self.cv, Integral)):
            raise ValueError(f"cv={self.cv!r} needs all rows at once; give partial_fit a number of folds, or use fit")
        first = not hasattr(self, "memory_")
        if not first:
            self._require_learned("learns no labels")
        elif classes is None and np.asarray(y).ndim < 2:
            raise ValueError("classes must be given at the first call of partial_fit: all labels that are to come")
        return self._learn(X, y, None if first else self._training, MOST_KEPT, classes, None, None)

    def _learn(
        self, X: Given, y: Given, before: Training | None, most: int, classes: Given, weights: Given, groups: Given
    ) -> Self:
        """Add to what was learned before, and keep so many points (all if 0)."""
        self._validate_params()
        taught, classes = checked_labels("y", y), checked_labels("classes", classes)
        least, soft = 1 if most else 2, np.asarray(y).ndim == 2
        asked = {"dtype": _KINDS, "reset": before is None, "multi_output": soft, "ensure_min_samples": least}
        with np.errstate(over="ignore", invalid="ignore"):  # of sums by which scikit-learn looks for NaN
            data, labels = validate_data(self, X, taught, **asked)
        num_folds, dealt = folds_by(self.cv, data, labels, groups)
        number = len(data)
        if self.units_per_class == "all" and number > _MANY_UNITS:
            slow = f"units_per_class='all' compares all pairs of {number:,} rows, which takes minutes"
            warnings.warn(f"{slow}; several units a class take seconds", stacklevel=3)
        counts = _check_sample_weight(weights, data, dtype=data.dtype, ensure_non_negative=True)
        rows = np.flatnonzero(counts)
        if len(rows) == 0:
            raise ValueError("sample_weight is 0 everywhere; give a positive weight to some rows")
        data, dealt = data[rows], None if dealt is None else dealt[rows]
        named, shares = shares_of(labels[rows], None if before is None else self.classes_, classes)
        shares = shares * counts[rows, np.newaxis]
        earlier = data[:0] if before is None else before.rows.points.numpy()
        data = within(data, earlier.dtype)
        check_spread(np.concatenate([earlier, data]), rows, getattr(self, "feature_names_in_", None))
        points = as_tensor(data)
        if before is None:
            auto = _UNITS if most or len(data) > _ALL_ROWS else "all"
            units = auto if self.units_per_class == "auto" else self.units_per_class
            weight = float(data.shape[1]) if self.prior_weight is None else float(self.prior_weight)
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
            before = Training.nothing(
                Settings(len(named), None if units == "all" else int(units), self.metric, weight, seed),
                num_folds,
                points,
            )
        training = before.taught(points, as_tensor(shares.astype(data.dtype)), most, dealt)
        self.memory_ = self._learned = training.memory()
        self.classes_, self.moved_, self._training = named, (), training
        evidence, learned, biases = training.held_out()
        self.held_out_evidence_ = evidence
        if len(evidence) and not most:
            self.held_out_evidence_ = np.full(max(len(evidence), number), np.nan, evidence.dtype)
            self.held_out_evidence_[rows] = evidence
        self.temperature_ = learned if self.temperature is None else float(self.temperature)
        self._biases = biases(self.temperature_)
        return self

    def _require_learned(self, said: str) -> None:
        """Refuse a memory that has adapted."""
        if self.memory_ is not self._learned:
            raise NotImplementedError(f"a memory that has adapted {said}; ask the classifier that adapt was called on")

    # -- answers -------------------------------------------------------------------------------------------------------

    @property
    def reader_(self) -> GaussianMixture:
        """The memory that answers: the squared distances of ``memory_`` over the temperature."""
        check_is_fitted(self)
        return tempered(self.memory_, self.temperature_)

    def predict(self, X: ArrayLike) -> NDArray:
        """Return the most probable class of each row, (N,)."""
        probabilities = self.predict_proba(X)  # first, as it says where nothing was fitted
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Return ``p(c | x)`` of each row, (N, C)."""
        points = self._points(X)
        return expected_answers(self.reader_, points).numpy()

    def predict_log_proba(self, X: ArrayLike) -> NDArray:
        """Return the logarithm of `predict_proba`, (N, C), -inf where that is 0."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def score_samples(self, X: ArrayLike) -> NDArray:
        """Return the log evidence ``log p(x)`` of each row, (N,), -inf where it overflows."""
        points = self._points(X)
        return log_evidence(self.memory_, points).numpy()

    def threshold(self, false_alarm_rate: float = 0.05) -> float:
        """Return the log evidence below which a point is unlike the training points, -inf at a rate of 0.

        Raises
        ------
        ValueError
            A rate out of range, or above 0 and below ``lowest_rate_``: too few rows were held out; ``cv=None``.

        Notes
        -----
        Of n held-out points and a new one of the same kind, which are exchangeable, the new one falls below the k-th
        smallest with probability at most ``k / (n + 1)``; k is the largest whole number for which this is at most the
        rate.
        """
        check_is_fitted(self)
        if not 0 <= false_alarm_rate < 1:
            raise ValueError(f"false_alarm_rate must be from 0 to below 1, not {false_alarm_rate}")
        if not len(self.held_out_evidence_):
            raise ValueError("no training point was held out, so no rate of false alarms is known; fit with cv=5")
        if 0 < false_alarm_rate < self.lowest_rate_ * (1 - 1e-9):
            few = f"{_held(self.held_out_evidence_)}, too few to tell at false_alarm_rate={false_alarm_rate:g}"
            raise ValueError(f"{few} what is unlike them; ask for {self.lowest_rate_:.2g} or more, or fit more rows")
        kept = np.sort(self.held_out_evidence_[~np.isnan(self.held_out_evidence_)])
        rank = math.floor(false_alarm_rate * (len(kept) + 1) + 1e-9)
        return float(kept[rank - 1]) if rank else -math.inf

    @property
    def lowest_rate_(self) -> float:
        """The lowest rate of false alarms above 0 that `reject` can keep to:
        one in one more than the rows that were held out.
        """
        check_is_fitted(self)
        return 1 / (1 + int((~np.isnan(self.held_out_evidence_)).sum()))

    def reject(self, X: ArrayLike, false_alarm_rate: float = 0.05) -> NDArray[np.bool_]:
        """Return True for each row that is unlike the training points, (N,).

        Parameters
        ----------
        X
            (N, D).
        false_alarm_rate
            The share of points like the training points for which it is True all the same, at most; it is set by the
            evidence of held-out points, of a memory that has learned from fewer, so that the true rate tends to be
            lower. At 0 it is True only where the log evidence is -inf.

        Raises
        ------
        ValueError
            As `threshold`.
        """
        evidence = self.score_samples(X)
        return ~((evidence >= self.threshold(false_alarm_rate)) & (evidence > -np.inf))

    # -- points without labels -----------------------------------------------------------------------------------------

    def adapt(self, X: ArrayLike, move: str | Iterable[str] | None = None, *, anchor: float | None = None) -> Self:
        """Return a classifier that has adapted to points without labels; this one stays as it is.

        Parameters
        ----------
        X
            (N, D), points to be classified; they should come from one place. Those of evidence -inf, and those a
            million times as far from the others as they are from each other, move nothing.
        move
            What may move, any of ``"prevalence"`` (shares of the classes), ``"shift"`` (one displacement of all units),
            ``"scale"`` (one factor of their distances from the middle), ``"metric"`` and ``"keys"`` (each unit by
            itself). None lets held-out evidence of the points choose: nothing; shift and scale; the metric; or these
            three. ``moved_`` of the result says what.
        anchor
            How many points the values learned from labels count as, in every direction; None is 30 for shift and scale
            and 1,000 for the others. Where nothing but the prevalence has changed, name it alone and give less.

        Raises
        ------
        ValueError
            A name that does not exist, or nothing to move; an anchor out of range; no point that can move anything.

        Warns
        -----
        UserWarning
            The prevalence alone is to move, and many points are unlike the training points: then they do not tell it.
            Points that move nothing.

        Notes
        -----
        Where places or metric have moved the temperature rises until the answers are no surer than before, on average.
        Evidence rises also where classes change places: keys by themselves are never chosen. Points of another domain
        are farther from all units than the memory expects, which makes it sure of wrong ones, and keys walk to them.
        """
        points = self._points(X)
        anchors = ANCHORS if anchor is None else dict.fromkeys(ANCHORS, float(anchor))
        inside("anchor", min(anchors.values()), 0)
        near = torch.from_numpy(~far_rows(points.numpy())) & (log_evidence(self.memory_, points) > -torch.inf)
        if not bool(near.all()):
            if not bool(near.any()):
                raise ValueError("no row of X is like anything learned; fill or drop what stands for missing values")
            which = f"{int((~near).sum())} of the rows, the first of them row {int((~near).int().argmax())}"
            warnings.warn(f"{which}, are far from all others and move nothing; are values missing?", stacklevel=2)
            points = points[near]
        moves = chosen(self.memory_, points, anchors) if move is None else moves_of(move)
        if moves == ["prevalence"]:
            self._warn_of_others(points)
        other, answers = copy.copy(self), (self.temperature_, self._biases)
        other.memory_, other.temperature_ = adapted(self.memory_, points, moves, anchors, *answers)
        other.moved_ = (*self.moved_, *(name for name in moves if name not in self.moved_))
        return other

    def prevalence(
        self,
        X: ArrayLike,
        probability: float = 0.9,
        *,
        concentration: float | None = None,
        num_samples: int = 200,
        num_chains: int = 10,
        random_state: int = 0,
    ) -> Prevalence:
        """Estimate the shares of the classes where points without labels come from, by Gibbs sampling.

        Parameters
        ----------
        X
            (N, D), of classes that were learned, each as it was learned: only their shares may differ.
        probability
            Of the intervals, between equal tails.
        concentration
            Of the Dirichlet prior of the shares; None learns it, a priori equally probable at 25 values from .01 to 10.
        num_samples, num_chains, random_state
            Draws of each chain, chains, and the seed, an integer.

        Warns
        -----
        UserWarning
            Many points are unlike the training points: then they do not tell the prevalence.

        Returns
        -------
        Prevalence
            ``classes, estimate, low, high``, each (C,).
        """
        points = self._points(X)
        inside("probability", probability, 0, 1)
        inside("concentration", 1.0 if concentration is None else concentration, 0)
        self._warn_of_others(points)
        _, shares, queries = of_classes(self.memory_, points, self.temperature_, self._biases)
        taught = shares > 0  # a class that was never shown has no share
        possible = queries.new_tensor(CONCENTRATIONS if concentration is None else (concentration,))
        found = draw_shares(queries[:, taught], possible, num_samples, num_chains, random_state)[0].numpy()
        drawn = np.zeros((len(found), len(shares)), found.dtype)
        drawn[:, taught] = found
        low, high = np.quantile(drawn, [(1 - probability) / 2, (1 + probability) / 2], axis=0)
        return Prevalence(self.classes_, drawn.mean(0), low, high)

    def _warn_of_others(self, points: torch.Tensor) -> None:
        """Warn where more points are unlike the training points than chance and small differences explain."""
        if self.lowest_rate_ <= _RATE:
            unlike = float((log_evidence(self.memory_, points) < torch.tensor(self.threshold(_RATE))).double().mean())
            if unlike > _MANY_UNLIKE:
                many = f"{unlike:.0%} of the points are unlike the training points (5 % of their own kind are)"
                warnings.warn(f"{many} and tell the prevalence badly; let the metric adapt, too", stacklevel=3)

    # -- reasons -------------------------------------------------------------------------------------------------------

    def posterior(self, *, num_samples: int = 50, num_chains: int = 8, random_state: int = 0) -> Draws:
        """Draw keys and weights of the units given the training points,
        for `results.predict` or `results.to_inference_data`.

        Parameters
        ----------
        num_samples, num_chains
            Draws of each chain, and chains.
        random_state
            The seed, an integer.

        Returns
        -------
        Draws
            By `inference.gibbs`; where every point is a unit, of the weights alone (Bayesian bootstrap, Rubin 1981).

        Raises
        ------
        NotImplementedError
            A memory that has adapted, whose units are no longer where the training points say; one that has not kept
            all points; weights or shares of classes that are no whole numbers, unless every point is a unit.
        """
        check_is_fitted(self)
        self._require_learned("has no posterior given the training points")
        if len(self._training.rows.points) < int(self._training.counts.sum()):
            raise NotImplementedError(f"partial_fit has kept {MOST_KEPT:,} of the training points; use fit instead")
        every = self._training.settings.units_per_class is None
        examples = Examples.of(*self._training.rows[:2])
        return draws_of_training(self.memory_, examples, every, num_samples, num_chains, random_state)

    def explain(
        self, X: ArrayLike, *, top: int = 5, probability: float = 0.9, random_state: int = 0
    ) -> list[Explanation]:
        """Return the units that each row attends to most, with bands from the posterior of the units.

        Parameters
        ----------
        X
            (N, D), few rows.
        top, probability, random_state
            Units to name, probability of the bands, seed of the draws.

        Returns
        -------
        list of Explanation
            One a row.

        Raises
        ------
        NotImplementedError
            As `posterior`.
        """
        points = self._points(X)
        inside("probability", probability, 0, 1)
        draws = self.posterior(random_state=random_state)
        return explained(draws, points, self.temperature_, self.classes_, min(top, self.memory_.num_units), probability)

    def to_inference_data(self, X: ArrayLike | None = None) -> Any:
        """Return the memory as ArviZ data, and given rows their attention and log evidence;
        units are called by class and number.

        The posterior of the units is ``results.to_inference_data(classifier.posterior())``.
        """
        check_is_fitted(self)
        data = () if X is None else (self._points(X),)
        coords = {"unit": unit_names(self.memory_, self.classes_), "label": [str(name) for name in self.classes_]}
        return results.to_inference_data(self.memory_, *data, coords=coords)

    # -- scikit-learn --------------------------------------------------------------------------------------------------

    def _points(self, X: ArrayLike) -> torch.Tensor:
        check_is_fitted(self)
        dtype = np.float32 if self.memory_.keys.dtype == torch.float32 else np.float64
        with np.errstate(over="ignore", invalid="ignore"):
            data = validate_data(self, X, reset=False, dtype=_KINDS)
        return as_tensor(within(data, dtype))


def _held(evidence: NDArray) -> str:
    number = int((~np.isnan(evidence)).sum())
    return f"{number} row{' was' if number == 1 else 's were'} held out"


def checked_labels(name: str, labels: Given) -> Given:
    """Return labels, or shares, as they are given; refuse those that are missing, and text among other labels.

    Parameters
    ----------
    name
        Of the argument.
    labels
        Array, list or column of a table; None for none.

    Raises
    ------
    ValueError
        None, NaN, NaT, pandas.NA, a masked entry or an empty text; text beside numbers.
    """
    array = np.asarray(labels)
    if array.ndim == 0:
        return labels
    # as text, None and NaN of a list would be classes "None" and "nan"
    text = isinstance(labels, list | tuple) and array.dtype.kind in "OUS"
    given = np.asarray(labels, dtype=object) if text else array
    missing = xarray.DataArray(given).isnull().values | np.ma.asanyarray(labels).mask
    if given.dtype.kind in "OUS":
        missing |= np.isin(given.astype(str), "")
    rows = np.flatnonzero(missing.reshape(len(given), -1).any(1))
    if len(rows):
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        raise ValueError(f"{name} has no label in row {rows[0]}{more}: {_shown(given[rows[0]])}; fill or drop it")
    if given.dtype.kind == "O":
        kinds = {2 * isinstance(value, str) + isinstance(value, bytes): value for value in given.ravel()[::-1]}
        if len(kinds) > 1:
            mixed = " and ".join(repr(kinds[kind]) for kind in sorted(kinds, reverse=True))
            raise ValueError(f"{name} mixes labels of several types: {mixed}; make all of them text")
    return labels


def _shown(value: object) -> str:
    return repr(np.asarray(value).tolist())


def shares_of(y: NDArray, known: NDArray | None, given: Given) -> tuple[NDArray, NDArray]:
    """Return the classes (C,), and the share of each in each label, (N, C).

    Parameters
    ----------
    y
        (N,) classes, or (N, C), C > 1, shares of classes 0..C-1, which may be booleans.
    known
        The classes from before, None where these labels are the first.
    given
        The classes that the user names, None where he does not.

    Raises
    ------
    ValueError
        Shares that do not sum to 1, classes other than those from before, a label that is not among them.
    """
    soft = y.ndim == 2 and y.shape[1] > 1
    if soft:
        y = y.astype(float) if y.dtype == bool else y
        if not np.issubdtype(y.dtype, np.number) or (y < 0).any() or not np.allclose(y.sum(1), 1, atol=1e-4):
            raise ValueError("y must be classes (N,), or shares of classes (N, C) that are >= 0 and sum to 1")
        own = np.arange(y.shape[1])
    else:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        own = np.unique(y)
    named = None if given is None else np.unique(np.asarray(given))
    classes = next(x for x in (known, None if soft else named, own) if x is not None)
    if not soft and isinstance(own.flat[0], str) != isinstance(classes.flat[0], str):
        raise ValueError(f"y has {_shown(own[0])} but the classes are {classes.tolist()}; text is no number")
    for some in (named, own if soft else None):
        if some is not None and not np.array_equal(some, classes):
            raise ValueError(f"classes {some.tolist()} are not {classes.tolist()}, which were learned; leave them out")
    if soft:
        return classes, y / y.sum(1, keepdims=True)
    if len(others := np.setdiff1d(own, classes)):
        raise ValueError(f"y has labels that are not among the classes: {others.tolist()}; name all at the first call")
    return classes, np.eye(len(classes))[np.searchsorted(classes, y)]


def moves_of(move: str | Iterable[str]) -> Sequence[str]:
    """Return the names of what moves, in the order of the table."""
    named = {move} if isinstance(move, str) else set(move)
    if not named or named - ANCHORS.keys():
        raise ValueError(f"move must name some of {', '.join(ANCHORS)}, not {move!r}")
    return [name for name in ANCHORS if name in named]


def inside(name: str, value: float, low: float, high: float = np.inf) -> None:
    """Refuse a number that is not strictly between two."""
    if not low < value < high:
        said = "positive" if high == np.inf else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be {said}, not {value}")


def far_rows(data: NDArray) -> NDArray[np.bool_]:
    """Return True for each row (N, D) whose largest distance from the median is
    over a million times the typical one, (N,).
    """
    away = away_from_middle(data)
    typical = np.median(away[away > 0]) if (away > 0).any() else 0.0
    return (away > 0) & ~(away <= _FAR * typical)


def check_spread(data: NDArray, rows: NDArray, names: Sequence[str] | None, given: str = "X") -> None:
    """Refuse rows to learn from that one metric cannot hold.

    Parameters
    ----------
    data
        (N, D), the new rows last.
    rows
        Numbers by which the new ones are called, (n,).
    names
        Of the columns, None for their numbers.
    given
        What the rows are called.

    Raises
    ------
    ValueError
        A row so far from the others that nothing would be left of their differences; numbers whose squares overflow or
        vanish.
    """
    old = len(data) - len(rows)
    for row in np.flatnonzero(far_rows(data)[old:]) + old:
        column = int(np.argmax(np.abs(data[row].astype(float) / 2 - middle(data).astype(float) / 2)))
        name = column if names is None else repr(names[column])
        place = f"{given} has {data[row, column]:g} in row {rows[row - old]}, column {name}"
        far = "more than a million times as far from the others as they are from each other"
        raise ValueError(f"{place}, {far}; leave a missing value out; a column of such a range needs its logarithm")
    check_squares(data, given)


def folds_by(cv: Folds, data: NDArray, y: NDArray, groups: Given) -> tuple[int, torch.Tensor | None]:
    """Return the number of folds, 0 for none, and the fold of each row (N,), -1 in none;
    None where a number alone is given.

    Parameters
    ----------
    cv
        A number, None, what has ``split``, or pairs of numbers of rows: those to learn from, and those that are held
        out.
    data, y, groups
        Given to ``split``; of shares of classes (N, C) the largest.

    Raises
    ------
    ValueError
        A row that is held out twice, or neither held out nor learned from; groups that nothing reads.
    """
    if cv is None or isinstance(cv, Integral):
        if groups is not None:
            raise ValueError(f"groups: cv={cv} does not read them; give a cv that does, such as GroupKFold(5)")
        return int(cv or 0), None
    y = y.argmax(1) if y.ndim == 2 and y.shape[1] > 1 else y.ravel()
    fold_of = np.full(len(data), -1)
    splits = list(check_cv(cv, y, classifier=True).split(data, y, groups))
    for fold, (learned, asked) in enumerate(splits):
        inside, others = np.zeros((2, len(data)), dtype=bool)
        inside[asked] = others[learned] = True
        if (fold_of[inside] >= 0).any() or (inside == others).any():
            raise ValueError(f"split {fold} of cv: hold out each row once and learn from all others, as GroupKFold")
        fold_of[inside] = fold
    return len(splits), torch.from_numpy(fold_of)


def as_tensor(array: NDArray) -> torch.Tensor:
    """Share memory with the array, unless that is read-only or in reverse, which torch does not know."""
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())
