"""Gaussian-mixture MAP transformer: attention is the posterior over which memory unit explains the query.

Model (PT eq. 1-11): ``u_i ~ Categorical(π_i)``, ``q_i | u_i=j ~ N(ξ_j, I/α_j)``, ``v_i | u_i=j ~ N(μ_j, I/β_j)`` or
``v_i | u_i=j ~ Categorical(ρ_j)``. With a metric Λ and a shift δ, which the units share,
``q_i | u_i=j ~ N(ξ_j + δ, (α_j Λ)⁻¹)``.

======  ===================  ======================  ==============================================
symbol  name                 shape                   support
======  ===================  ======================  ==============================================
q_i     ``queries``          (..., Q, D)             real
ξ_j     ``keys``             (..., U, D)             real
μ_j     ``values``           (..., U, M)             real
α_j     ``key_precision``    scalar or (..., U)      > 0
β_j     ``value_precision``  scalar or (..., U)      > 0, or 0 everywhere: the standard-attention limit
Λ       ``metric``           (..., D, D) or (..., D) positive definite, or its diagonal; None is I
δ       ``shift``            (..., D)                real; None is 0
π_ij    ``log_prior``        (..., Q or 1, U)        log of rows on the simplex, -inf is a mask
v_i     ``outputs``          (..., Q, M) or (..., Q) real, or labels 0..K-1
ρ_j     ``answer_probs``     (..., U, K)             rows on the simplex
u_i     site ``unit``        (..., Q)                0..U-1
w_ij    ``attention``        (..., Q, U)             rows on the simplex
======  ===================  ======================  ==============================================

Attention is the E-step, PT eq. 5, 27, 36 (erratum 4). Leading axes are independent problems (batch, head) and
broadcast. A position term is a prior or a key that depends on (i, j): ``log_prior`` with Q rows, or keys of shape (...,
Q, U, D) asked with queries (..., Q, 1, D). α and Λ share one scale: fix one of them, or let their priors decide.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import torch
from pyro.distributions import Categorical, Dirichlet, Gamma, MultivariateNormal, Normal, TorchDistribution, Wishart
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._distributions import MixtureDensity
from probtx_pyro.models._plates import isotropic
from probtx_pyro.models.formulation import (
    CorrelatedTerms,
    DirichletTerms,
    GammaTerms,
    NormalTerms,
    Parameter,
    Terms,
    WishartTerms,
)
from probtx_pyro.models.mixture import WEIGHTS, Centers, Maybe, Mixture, Number, Seen, answers_of
from probtx_pyro.ops import (
    Factor,
    attend,
    categorical_factor,
    fixed_point,
    gaussian_attention,
    gaussian_factor,
    joint,
    safe_ratio,
    safe_softmax,
)
from probtx_pyro.ops._chunks import by_scores
from probtx_pyro.ops._factor import beside
from probtx_pyro.ops._numerics import HALF, center_of, common_shape, known, single
from probtx_pyro.ops.attention import key_factor, require_reached

DIAGONAL = Parameter("feature", constraints.positive, Gamma, logarithmic=True, plate=False)  # a metric that is one
OF_KEYS = ("keys", "shift", "key_precision", "metric")  # parameters that queries inform, whatever is known of answers


class Metric(NamedTuple):
    """``Λ = L L'``. root: L, lower triangular (..., D, D),
    or of a diagonal metric the square root of its entries (..., D).
    """

    root: Tensor
    diagonal: bool

    @classmethod
    def of(cls, metric: Tensor, diagonal: bool) -> "Metric":
        """Take the root of a metric; NaN where a matrix is not positive definite."""
        metric = single(metric)
        if diagonal:
            return cls(metric.sqrt(), True)
        root, failed = torch.linalg.cholesky_ex(metric)
        return cls(torch.where((failed > 0)[..., None, None], torch.nan, root), False)

    def whiten(self, points: Tensor) -> Tensor:
        """``L'x`` of points (..., n, D): their products are those of the metric."""
        return single(points) * self.root.unsqueeze(-2) if self.diagonal else single(points) @ self.root

    def wide(self) -> Tensor:
        """The root as `ops.attention.key_factor` takes it: (..., D, D), or (..., 1, D) of a diagonal."""
        return self.root.unsqueeze(-2) if self.diagonal else self.root

    def flat(self) -> Tensor:
        """The root as `ops` takes it: flat, (..., 1, D²), or (..., 1, D) of a diagonal."""
        return (self.root if self.diagonal else self.root.flatten(-2)).unsqueeze(-2)

    def restore(self, whitened: Tensor) -> Tensor:
        """``L x`` of whitened points (..., n, D): ``Λ x`` of the points themselves."""
        return whitened * self.root.unsqueeze(-2) if self.diagonal else whitened @ self.root.mT

    def log_root(self) -> Tensor:
        """``½ log|Λ|``, (...)."""
        return (self.root if self.diagonal else self.root.diagonal(dim1=-2, dim2=-1)).log().sum(-1)

    def times(self, strength: Tensor) -> Tensor:
        """``strength Λ`` for strengths (..., n): matrices (..., n, D, D), or diagonals (..., n, D)."""
        if self.diagonal:
            return strength.unsqueeze(-1) * self.root.square().unsqueeze(-2)
        return strength[..., None, None] * (self.root @ self.root.mT).unsqueeze(-3)


class GaussianUnits(Mixture):
    """Base of the mixtures of Gaussian keys ``N(ξ + δ, (α Λ)⁻¹)`` whose units answer ``N(μ_j, I/β_j)``,
    or with a label.
    """

    keys: Tensor
    values: Maybe
    key_precision: Number
    value_precision: Number
    answer_probs: Maybe
    metric: Maybe
    shift: Maybe
    diagonal_metric: bool | None

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "keys": Parameter("unit feature", constraints.real, Normal),
        "shift": Parameter("feature", constraints.real, Normal, plate=False),
        "key_precision": Parameter("unit", constraints.positive, Gamma, logarithmic=True),
        "metric": Parameter("feature other_feature", constraints.positive_definite, Wishart, plate=False),
        "values": Parameter("unit answer", constraints.real, Normal),
        "value_precision": Parameter("unit", constraints.positive, Gamma, logarithmic=True),
        "answer_probs": Parameter("unit label", constraints.simplex, Dirichlet),
        **WEIGHTS,
    }

    def __post_init__(self) -> None:
        self._tensors("key_precision", "value_precision")
        if self.metric is not None and self.diagonal_metric is None:
            check.tensor("metric", self.metric)
            features = self.keys.shape[-1]
            object.__setattr__(self, "diagonal_metric", self.metric.shape[-2:] != (features, features))
        self._validate()
        self._validate_weights()

    def _validate(self) -> None:
        raise NotImplementedError

    def _validate_units(self) -> None:
        """Refuse parameters of `GaussianUnits` that do not fit each other;
        those of the keys' shape are left to the subclass.
        """
        given = {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}
        check.same_dtype(**given)
        check.finite(**{name: x for name, x in given.items() if name != "log_prior"})
        self._validate_metric()
        for name, answer in (("values", self.values), ("answer_probs", self.answer_probs)):
            if answer is not None:
                check.at_least(name, answer, 2, "(..., U, M)")
                check.same_size("keys", self.num_units, name, answer.shape[-2], "units")
        if self.values is not None and self.answer_probs is not None:
            raise ValueError("values and answer_probs are both given; an answer is either real or a label")
        if self.answer_probs is not None:
            check.simplex("answer_probs", self.answer_probs)
        self._validate_each("value_precision")
        check.positive("key_precision", self.key_precision)
        if check.violated(self.value_precision < 0):
            raise ValueError("value_precision must be >= 0; it is an inverse variance, 0 the standard-attention limit")
        if check.violated((self.value_precision == 0).any() & (self.value_precision > 0).any()):
            raise ValueError("value_precision mixes zero and positive entries; use 0 for all units or > 0 for all")

    def _validate_each(self, name: str) -> None:
        """Refuse a precision that is neither one number nor one for each unit."""
        precision = getattr(self, name)
        if precision.dim() and precision.shape[-1] not in (1, self.num_units):
            check.same_size("keys", self.num_units, name, precision.shape[-1], "units")

    def _validate_metric(self) -> None:
        features = self.keys.shape[-1]
        if self.shift is not None:
            check.at_least("shift", self.shift, 1, "(..., D)")
            check.same_size("keys", features, "shift", self.shift.shape[-1], "features")
        if self.metric is None:
            return
        if self.diagonal_metric:
            check.at_least("metric", self.metric, 1, "(..., D) or (..., D, D)")
            check.same_size("keys", features, "metric", self.metric.shape[-1], "features")
            if check.violated(self.metric <= 0):
                raise ValueError("metric must be > 0; it is an inverse squared length for each feature")
            return
        check.positive_definite("metric", self.metric, features)

    @classmethod
    def categorical(
        cls,
        keys: Tensor,
        answer_probs: Tensor,
        key_precision: Tensor | float = 1.0,
        log_prior: Maybe = None,
        **options: Any,
    ) -> Self:
        """Units that answer with a label: ``v_i | u_i=j ~ Categorical(answer_probs_j)``; outputs are integers (..., Q).

        ``options`` are the other arguments of the class, such as ``metric``.
        """
        make: Any = cls
        return make(keys, key_precision=key_precision, log_prior=log_prior, answer_probs=answer_probs, **options)

    # -- parameters and data -------------------------------------------------------------------------------------------

    @property
    def answer_density(self) -> bool:
        """True if answers have a density: categorical, or values with a positive precision."""
        if self.answer_probs is not None:
            return True
        return self.values is not None and known((self.value_precision > 0).all(), otherwise=True)

    def replace(self, **changes: Any) -> Self:
        """The mixture with some constructor arguments changed, validated;
        the kind of a new metric is told by its shape.
        """
        return super().replace(**({"diagonal_metric": None} if "metric" in changes else {}) | changes)

    def row(self, name: str) -> Parameter:
        """The row of a parameter; that of a diagonal metric has one axis and a Gamma prior."""
        return DIAGONAL if name == "metric" and self.diagonal_metric else super().row(name)

    def axes(self, name: str) -> tuple[str, ...]:
        """Names of the own axes; answers that are labels have no coordinates."""
        if self.answer_probs is not None and name in ("outputs", "expected_outputs"):
            return ("query",) if name == "outputs" else ("query", "label")
        return super().axes(name)

    def _check_outputs(self, queries: Tensor, outputs: Tensor, observed: Tensor | None) -> None:
        """Refuse answers that the mixture has no density for, or that do not fit the queries."""
        if not self.answer_density:
            raise ValueError("outputs are given, but answers of this mixture have no density; give value_precision > 0")
        rank = len(self.axes("outputs"))
        check.at_least("outputs", outputs, rank, "(..., Q)" if rank == 1 else "(..., Q, M)")
        check.same_size("outputs", outputs.shape[-rank], "queries", queries.shape[-2], "rows")
        if self.answer_probs is not None:
            classes = self.answer_probs.shape[-1]
            seen = outputs if observed is None else torch.where(observed, outputs, 0)
            if outputs.is_floating_point():
                raise ValueError(f"outputs must be integer labels, not {outputs.dtype}; convert them with .long()")
            if check.violated((seen < 0) | (seen >= classes)):
                raise ValueError(f"outputs contain a label outside 0..{classes - 1}; mark it unobserved")
        elif self.values is not None:
            check.same_size("outputs", outputs.shape[-1], "values", self.values.shape[-1], "answer coordinates")
            check.same_dtype(outputs=outputs, keys=self.keys)
            check.finite(outputs=outputs if observed is None else torch.where(observed.unsqueeze(-1), outputs, 0.0))

    # -- closed forms --------------------------------------------------------------------------------------------------

    def _root(self) -> Metric:
        assert self.metric is not None
        return Metric.of(self.metric, bool(self.diagonal_metric))

    def wide_root(self) -> Maybe:
        """The root of the metric as `ops.attention.key_factor` takes it: (..., D, D), (..., 1,
        D) of a diagonal, None where there is none.
        """
        return None if self.metric is None else self._root().wide()

    def unit_answers(self) -> Tensor:
        """Answers of the units: values (..., U, M), or probabilities of labels (..., U, K)."""
        answers = self.values if self.answer_probs is None else self.answer_probs
        if answers is None:
            kind = type(self).__name__
            raise ValueError(f"values is None, so this {kind} has no answers; build it with values=")
        return answers

    def conditional(self, name: str, seen: Seen) -> Terms:
        """The likelihood of a parameter given the others and assignments: PT eq. 29, 30, 35, 37, 38 (errata 2,
        3) are its modes.
        """
        if name == "weights":
            return super().conditional(name, seen)
        features = self.keys.shape[-1]
        if name in OF_KEYS:
            root = None if self.metric is None else self._root()
            return key_terms(
                name, self.keys, self.shift, self.key_precision, root, seen, seen.sums[..., : features + 1]
            )
        width = self.unit_answers().shape[-1]
        sums, answered = seen.sums[..., features + 1 :], seen.counts
        if seen.answers == "none":  # the prior alone decides
            answered = torch.zeros_like(answered)
            sums = answered.unsqueeze(-1).expand(*answered.shape, width + 1)
        elif seen.answers == "some":
            answered = sums[..., -1]
        if name == "answer_probs":
            return DirichletTerms(sums[..., :width])
        return gaussian_terms(
            name, self.unit_answers(), self.value_precision, seen.centers["values"], answered, sums[..., : width + 1]
        )


class OutputModes(NamedTuple):
    """Stationary points of ``p(v_i | q_i)`` reached by EM, one for each start (every unit, then the posterior mean).

    locations: the points, shape (..., Q, U + 1, M).
    log_density: log p(v | q) there, shape (..., Q, U + 1).
    is_mode: True at the first of each set of equal points that are local maxima; ``is_mode.sum(-1)`` counts the modes
    found.
    """

    locations: Tensor
    log_density: Tensor
    is_mode: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture(GaussianUnits):
    """A memory of U units, each a Gaussian key and a Gaussian (or categorical) answer. Immutable.

    Parameters
    ----------
    keys, values, key_precision, value_precision, log_prior
        As in the table above. ``values=None`` is a memory without answers; ``log_prior=None`` is uniform; a
        ``value_precision`` of 0 is the standard-attention limit, in which answers have a mean and no density.
    answer_probs
        Categorical answers instead of values; see `categorical`.
    metric, shift
        As in the table above. A metric (D, D) is a matrix and not the diagonals of D problems, unless
        ``diagonal_metric`` says so.
    diagonal_metric
        True where ``metric`` is a diagonal; None tells by its shape.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, a precision out of range, a prior off its simplex.

    Examples
    --------
    >>> import torch
    >>> mixture = GaussianMixture(torch.tensor([[0.0], [1.0]]), torch.tensor([[-1.0], [1.0]]), key_precision=4.0)
    >>> mixture.attention(torch.tensor([[0.5], [1.0]]))
    tensor([[0.5000, 0.5000],
            [0.1192, 0.8808]])
    >>> mixture.expected_outputs(torch.tensor([[0.5]])).tolist()
    [[0.0]]

    References
    ----------
    Movellan & Gabbur 2020, *Probabilistic Transformers*, arXiv 2010.15583.
    """

    keys: Tensor
    values: Maybe = None
    key_precision: Number = Number(1.0)
    value_precision: Number = Number(0.0)
    log_prior: Maybe = None
    answer_probs: Maybe = field(default=None, kw_only=True)
    metric: Maybe = field(default=None, kw_only=True)
    shift: Maybe = field(default=None, kw_only=True)
    diagonal_metric: bool | None = field(default=None, kw_only=True)

    def _validate(self) -> None:
        check.at_least("keys", self.keys, 2, "(..., U, D)")
        self._validate_each("key_precision")
        self._validate_units()

    @classmethod
    def linked(
        cls,
        keys: Tensor,
        values: Maybe,
        key_precision: Tensor | float,
        value_precision: Tensor | float = 0.0,
        log_prior: Maybe = None,
    ) -> "GaussianMixture":
        """The mixture whose prior ``π_j ∝ exp(α|ξ_j|²/2 + β|μ_j|²/2)`` (PT eq. 16)
        makes attention a softmax of dot products.

        With ``key_precision = 1/sqrt(D)`` and ``value_precision = 0``, `expected_outputs` is scaled dot-product
        attention. ``log_prior`` (..., Q or 1, U) holds further log weights, not normalised: masks (0 and -inf),
        position terms.

        Raises
        ------
        ValueError
            For precisions that differ between units: the prior is then undefined.
        """
        precisions = []
        for name, precision in (("key_precision", key_precision), ("value_precision", value_precision)):
            precision = check.number(name, precision, keys.dtype, keys.device)
            if precision.dim() and (precision != precision[..., :1]).any():
                raise ValueError(f"{name} differs between units, where the linked prior is undefined; use one")
            precisions.append(precision[..., :1] if precision.dim() else precision)
        plain = cls(keys, values, *precisions)
        if log_prior is not None:
            log_prior = check.log_weights(log_prior, "keys", plain.num_units)
        return linked_units(keys, values, precisions[0], precisions[1], log_prior).replace()

    def with_background(
        self,
        weight: Tensor | float | None = None,
        *,
        logit: Tensor | float | None = None,
        key_precision: Tensor | float | None = None,
        key: Maybe = None,
        value: Maybe = None,
        value_precision: Tensor | float | None = None,
    ) -> "GaussianMixture":
        """The mixture with one more unit, the last: attention to nothing, or to an answer that is always there.

        It has a prior probability, ``weight``, or a ``logit``. With a logit, attention to the other units is a softmax
        that may sum to less than one, ``exp(s_ij) / (exp(s_0) + Σ exp(s_ij))``, with the same s_0 in every row,
        whatever the mask: docs/mathematics.md (2.25). A weight is shared out anew in every row, so that under a causal
        mask its logit differs from query to query.

        Parameters
        ----------
        weight
            Its prior probability, a number or (...), strictly between 0 and 1; the other units share the rest as
            before.
        logit
            s_0, a number or (...), beside logits ``s_ij = ξ_j'αΛq_i + m_ij``, m the rows of ``log π_j - ξ_j'αΛξ_j / 2``
            with their largest set to 0: in a mixture that is linked under a mask, 0 where it allows. 0 is the softmax
            that is "off by one". The unit then lies at 0, with the precision of the others.
        key_precision, value_precision
            Its precisions, a number or (...); None is that of the other units, where they share one. A small one makes
            it wide.
        key, value
            Where it is (..., D), and its answer (..., M), or probabilities of labels (..., K); None is 0, for labels
            uniform.

        Raises
        ------
        ValueError
            Both of weight and logit, or neither; a weight outside (0, 1); weight or logit of another shape than the
            leading axes; no precision where those of the units differ; a logit where they differ, or with a key or a
            precision of its own; shapes that do not fit.
        """
        if (weight is None) == (logit is None):
            raise ValueError("give weight, a prior probability, or logit, which is the same under every mask, not both")
        name = "logit" if weight is None else "weight"
        given = check.number(name, logit if weight is None else weight, self.keys.dtype, self.keys.device)
        try:
            given.expand(self.batch_shape)
        except RuntimeError:
            raise ValueError(
                f"{name} has shape {tuple(given.shape)} but must broadcast to the leading axes {tuple(self.batch_shape)}, as queries share "
                "the background; for problems that differ in it give keys an axis for them"
            ) from None
        own, changes = given[..., None, None], dict[str, Any]()
        if weight is None:
            if key is not None or key_precision is not None:
                raise ValueError("logit puts the unit at 0 with the others' precision; leave out key and key_precision")
            key = None if self.shift is None else -self.shift
            changes["log_prior"] = self._beside_logit(own)
        elif check.violated(~((given > 0) & (given < 1))):
            raise ValueError("weight must lie strictly between 0 and 1; it is the background's prior probability")
        else:
            changes["log_prior"] = beside(self.log_weights() + (-own).log1p(), own.log())
        changes |= {
            "keys": _with_row(self.keys, key),
            "key_precision": self._with_precision("key_precision", key_precision),
            "value_precision": self._with_precision("value_precision", value_precision),
        }
        if self.values is not None:
            changes["values"] = _with_row(self.values, value)
        if self.answer_probs is not None:
            uniform = torch.full_like(self.answer_probs[..., 0, :], 1 / self.answer_probs.shape[-1])
            changes["answer_probs"] = _with_row(self.answer_probs, uniform if value is None else value)
        return self.replace(**changes)

    def _beside_logit(self, logit: Tensor) -> Tensor:
        """Log weights (..., 1 or Q, U + 1) with a unit at 0 whose logit is (..., 1, 1)."""
        if check.violated(~logit.isfinite()):
            raise ValueError("logit must be finite; leave the background out, or close a unit by the mask")
        if self.key_precision.dim() and self.key_precision.shape[-1] > 1:
            raise ValueError("key_precision differs between units, where there are no logits; give weight, not logit")
        at = self.locations if self.metric is None else self._root().whiten(self.locations)
        center, log_weights = center_of(at), self.log_weights()
        half = 0.5 * torch.atleast_1d(self.key_precision).unsqueeze(-1)
        row = (log_weights - half * _relative_squares(at).unsqueeze(-2)).amax(-1, keepdim=True)
        row = row - half * center.square().sum(-1, keepdim=True)  # the squares are less that of the center
        return beside(log_weights, logit + row).log_softmax(-1)

    def _with_precision(self, name: str, own: Tensor | float | None) -> Tensor:
        """A precision with one more entry, or as it is where all units and the background share it."""
        present = getattr(self, name)
        shared = present.dim() == 0 or present.shape[-1] == 1
        if own is None and shared:
            return present
        if own is None:
            raise ValueError(f"{name} differs between units, so the background needs its own; give {name}=")
        own = torch.as_tensor(own, dtype=present.dtype, device=present.device).unsqueeze(-1)
        each = present.expand(*present.shape[:-1], self.num_units)
        shape = common_shape(each.shape[:-1], own.shape[:-1])
        return torch.cat([each.expand(*shape, -1), own.expand(*shape, 1)], -1)

    # -- the program: what a unit emits --------------------------------------------------------------------------------

    def emission(self, unit: Tensor) -> TorchDistribution:
        """``q_i | u_i=j ~ N(ξ_j + δ, (α_j Λ)⁻¹)``."""
        location, precision = self.of_unit("keys", unit), self.of_unit("key_precision", unit)
        if self.shift is not None:
            location = location + self.shift.unsqueeze(-2)
        if self.metric is None:
            return isotropic(location, precision)
        if self.diagonal_metric:
            return Normal(location, (precision.unsqueeze(-1) * self.metric.unsqueeze(-2)).rsqrt()).to_event(1)
        matrix = precision[..., None, None] * self.metric.unsqueeze(-3)
        return MultivariateNormal(location, precision_matrix=matrix)

    def answer(self, unit: Tensor) -> TorchDistribution:
        """``v_i | u_i=j ~ N(μ_j, I/β_j)``, or ``Categorical(ρ_j)``."""
        if self.answer_probs is not None:
            return Categorical(probs=self.of_unit("answer_probs", unit))
        return isotropic(self.of_unit("values", unit), self.of_unit("value_precision", unit))

    # -- the closed form -----------------------------------------------------------------------------------------------

    @property
    def locations(self) -> Tensor:
        """``ξ_j + δ``, the means of the units, (..., U, D)."""
        return self.keys if self.shift is None else self.keys + self.shift.unsqueeze(-2)

    def whitened(self, queries: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (..., Q, D) and locations (..., U, D) less a center (..., 1, D),
        where the metric is the plain inner product.
        """
        queries, locations = queries - center, self.locations - center
        if self.metric is None:
            return queries, locations
        root = self._root()
        return root.whiten(queries), root.whiten(locations)

    def placed(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (..., Q, D) and locations (..., U, D) where the metric is the plain inner product."""
        return (queries, self.locations) if self.metric is None else self.whitened(queries, self.origins()["keys"])

    def origins(self) -> dict[str, Tensor]:
        """The mean location (..., 1, D) and value (..., 1, M)."""
        own = {"keys": center_of(self.locations)}
        return own if self.values is None else own | {"values": center_of(self.values)}

    def factor(
        self,
        queries: Tensor,
        outputs: Maybe = None,
        observed: Maybe = None,
        centers: Centers = None,
        expanded: bool | None = None,
    ) -> Factor:
        """``log p(q_i, v_i | unit=j)``: a product centred on ``centers`` (those of the mixture if None),
        or squares of keys and answers.
        """
        centers = self.origins() if centers is None else centers
        root = None if self.metric is None else self._root().flat()
        asked = queries, self.locations, self.key_precision
        how: Any = {"root": root, "origin": centers["keys"]}
        factor = gaussian_factor(*asked, **how, expanded=expanded)
        if outputs is not None and self.answer_probs is None:
            known = outputs if observed is None else torch.where(observed.unsqueeze(-1), outputs, centers["values"])
            kind: Any = {"origin": centers["values"], "expanded": False if factor.squares else None}
            answers = gaussian_factor(known, self.unit_answers(), self.value_precision, observed, **kind)
            if answers.squares and not factor.squares:  # all of them or none, so that sums have one layout
                factor = gaussian_factor(*asked, **how, expanded=False)
        if self.metric is not None:
            factor = factor._replace(base=self._root().log_root().unsqueeze(-1))
        if outputs is None:
            return factor
        if self.answer_probs is not None:
            labels = outputs if observed is None else torch.where(observed, outputs, 0)
            return joint(factor, categorical_factor(labels, self.unit_answers(), observed))
        return joint(factor, answers)

    def expected_outputs(self, queries: Tensor) -> Tensor:
        """Posterior mean of the answer, ``E[v_i | q_i] = Σ_j p(unit=j | q_i) μ_j``, (..., Q, M);
        label probabilities (..., Q, K).

        Fused: ``scaled_dot_product_attention`` on the lowered mixture, no Q x U tensor. PT eq. 20-21 in the linked
        limit.
        """
        self.check_data(queries)
        root = self.wide_root()
        return answers_of(
            gaussian_attention(
                queries, self.locations, self.unit_answers(), self.key_precision, self.log_prior, root=root
            )
        )

    def output_distribution(self, queries: Tensor) -> MixtureDensity | Categorical:
        """``p(v_i | q_i)``: a `MixtureDensity` over values, or a Categorical over labels, batch shape (..., Q).

        Raises
        ------
        ValueError
            At value precision 0, or without values: answers have no density there.
        """
        if not self.answer_density:
            raise ValueError("output_distribution needs answers with a density; give value_precision > 0")
        if self.answer_probs is not None:
            return Categorical(probs=self.expected_outputs(queries))
        log_joint = self.log_joint(queries)
        weights = log_joint - log_joint.logsumexp(-1, keepdim=True)
        return MixtureDensity(plain_units(self.unit_answers(), self.value_precision, weights), queries.shape[-2])

    # -- answers: a mixture of those of the units, weighted by attention; its mean is attention's output ---------------

    def map_outputs(
        self,
        queries: Tensor,
        init: Tensor | None = None,
        num_steps: int = 10,
        tol: float | None = None,
    ) -> Tensor:
        """Most probable answer by EM on v: ``v <- Σ_j w_j β_j μ_j / Σ_j w_j β_j``, ``w = p(unit | q, v)``,
        the normalisers kept.

        PT eq. 14-15 with erratum 1 mended, so that ``log p(v | q)`` never falls.

        Parameters
        ----------
        queries
            (..., Q, D).
        init
            First answer (..., Q, M); None starts at the posterior mean.
        num_steps, tol
            At most so many steps; with ``tol`` each query stops by itself.

        Returns
        -------
        Tensor
            Answers (..., Q, M). With value precision 0 the posterior mean, which is then the limit of the MAP answer.

        Notes
        -----
        Each step is one fused attention: with unequal β its bias carries ``log β_j`` more, so that it returns the
        M-step itself. A start on a ridge between modes can be a saddle that EM never leaves (the mean of two symmetric
        units). Where the first step stands still and the Hessian has a rising direction, the answer is nudged along it.
        """
        if self.values is None:
            raise ValueError("map_outputs needs real answers; for labels take expected_outputs(queries).argmax(-1)")
        _check_num_steps(num_steps)
        if init is None or not self.answer_density:
            start = self.expected_outputs(queries)
        else:
            check.finite(init=init)
            shape = (queries.shape[-2], self.values.shape[-1])
            if init.shape[-2:] != shape:
                raise ValueError(f"init has shape {tuple(init.shape)} but the answers end in {shape}")
            start = init.expand(common_shape(init.shape[:-2], queries.shape[:-2], self.batch_shape) + shape)
        if not self.answer_density or num_steps == 0:
            return start
        first = self._ascend(queries, start, 1, None)
        nudge = self._nudge(queries, start, first)
        return self._ascend(queries, first if nudge is None else first + nudge, num_steps - 1, tol)

    def _ascend(self, queries: Tensor, start: Tensor, num_steps: int, tol: float | None) -> Tensor:
        keys = key_factor(queries, self.locations, self.key_precision, self.wide_root())
        precision, values = self.value_precision, self.unit_answers()
        if precision.dim() and precision.shape[-1] > 1:  # attention weights proportional to w_j β_j
            keys = keys._replace(bias=keys.bias + precision.log())

        def step(state):
            factor = joint(keys, key_factor(state["outputs"], values, precision))
            return {"outputs": attend(factor, values, self.log_prior)}, None

        return fixed_point(
            step, {"outputs": start}, problems=start.shape[:-1], num_steps=num_steps, tol=tol, progress=False
        ).state["outputs"]

    def _curvature(self, queries: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient (..., Q, M) and Hessian (..., Q, M, M) of ``log p(v | q)`` at the outputs,
        and its value's attention-weighted β.
        """
        attention = self.attention(queries, outputs)
        precision = self.value_precision.expand(common_shape(self.value_precision.shape, (self.num_units,)))
        pull = precision.unsqueeze(-1).unsqueeze(-3) * (self.unit_answers().unsqueeze(-3) - outputs.unsqueeze(-2))
        gradient = (attention.unsqueeze(-1) * pull).sum(-2)
        pull = pull - gradient.unsqueeze(-2)
        spread = (attention.unsqueeze(-1) * pull).transpose(-1, -2) @ pull
        mean_precision = (attention * precision.unsqueeze(-2)).sum(-1)
        identity = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
        return gradient, spread - mean_precision[..., None, None] * identity, mean_precision

    @torch.no_grad()
    def _nudge(self, queries: Tensor, start: Tensor, first: Tensor) -> Tensor | None:
        """Return a small step along the rising direction for answers stuck at a saddle point;
        None where there are none.
        """
        eps = torch.finfo(start.dtype).eps
        values = self.unit_answers()
        spread = (values - center_of(values)).norm(dim=-1).amax()
        # half precision, which rounds a step to its own bits, cannot tell smaller ones from none
        suspect = (first - start).norm(dim=-1) <= (2 if start.dtype in HALF else 64) * eps * spread
        if not known(suspect.any(), otherwise=True):
            return None
        nudges = torch.zeros_like(start)
        size = max(1, 2**20 // (self.num_units * start.shape[-1]))
        some = torch.arange(queries.shape[-2], device=queries.device)
        rows_stuck = suspect.reshape(-1, len(some)).any(0)
        if known(rows_stuck.any(), otherwise=False):
            some = some[rows_stuck]
        for rows in some.split(size):
            _, hessian, mean_precision = self._for_queries(rows)._curvature(queries[..., rows, :], start[..., rows, :])
            height, direction = torch.linalg.eigh(hessian)
            rising = suspect[..., rows] & (height[..., -1] > eps**0.5 * mean_precision)
            nudge = torch.where(rising.unsqueeze(-1), 1e-2 * spread * direction[..., -1], 0.0)
            nudges[..., rows, :] = nudge.to(nudges.dtype)
        return nudges if known((nudges != 0).any(), otherwise=True) else None

    def _for_queries(self, rows: Tensor) -> Self:
        """The mixture with the rows of its prior that belong to some of the queries."""
        if self.log_prior is None or self.log_prior.shape[-2] == 1:
            return self
        return self.with_parameters({"log_prior": self.log_prior[..., rows, :]})

    def output_modes(self, queries: Tensor, num_steps: int = 1000, tol: float = 1e-8) -> OutputModes:
        """EM from every unit's value and from the posterior mean; the modes *found*,
        which may be more than there are units.

        Needs a positive value precision. Points closer than ``sqrt(tol)`` times the spread of the values count as one.
        """
        if self.values is None or not self.answer_density:
            raise ValueError("output_modes needs values with value_precision > 0; else take expected_outputs")
        mean = self.expected_outputs(queries)
        each = self.with_parameters({})  # every start is its own query: (..., Q, D) -> (..., Q, S, D)
        for name in ("keys", "values", "key_precision", "value_precision", "metric", "shift"):
            x, rank = self.held(name), len(self.axes(name))
            object.__setattr__(each, name, x.unsqueeze(-1 - rank) if x is not None and x.dim() >= rank else x)
        object.__setattr__(each, "log_prior", None if self.log_prior is None else self.log_prior.unsqueeze(-2))
        values = self.values.unsqueeze(-3).expand(*mean.shape[:-1], *self.values.shape[-2:])
        starts = torch.cat([values, mean.unsqueeze(-2)], -2)
        asked = queries.unsqueeze(-2).expand(*queries.shape[:-1], starts.shape[-2], queries.shape[-1])
        points = each.map_outputs(asked, starts, num_steps, tol)
        _, hessian, _ = each._curvature(asked, points)
        maxima = torch.linalg.eigvalsh(hessian)[..., -1] < 0
        spread = (self.values - center_of(self.values)).norm(dim=-1).amax()
        apart = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        equal = apart <= max(tol, torch.finfo(points.dtype).eps) ** 0.5 * spread
        earlier = (equal & maxima.unsqueeze(-2)).tril(-1).any(-1)
        density = each.log_evidence(asked, points) - each.log_evidence(asked)
        return OutputModes(points, density, maxima & ~earlier)

    def output_covariance(self, queries: Tensor) -> Tensor:
        """``Σ_j p_j (I/β_j + μ_j μ_j') - E E'``, shape (..., Q, M, M);
        for labels the covariance of their one-hot vector.

        Raises
        ------
        ValueError
            At value precision 0: the covariance is infinite there.
        """
        if not self.answer_density:
            raise ValueError("output_covariance is infinite at value_precision 0; give value_precision > 0, and values")
        if self.answer_probs is not None:
            mean = self.expected_outputs(queries)
            return torch.diag_embed(mean) - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        self.check_data(queries)
        values = self.unit_answers()
        size = values.shape[-1]
        variance = self.value_precision.reciprocal().expand(common_shape(self.value_precision.shape, (self.num_units,)))

        def covariance(scores: Tensor, values: Tensor, variance: Tensor) -> Tensor:
            """About each query's own mean, so that values may lie far from 0 and from each other."""
            weights, evidence = safe_softmax(scores)
            away = values.unsqueeze(-3) - (weights @ values).unsqueeze(-2)
            spread = away.mT @ (weights.unsqueeze(-1) * away)
            spread = spread + (weights @ variance).unsqueeze(-1) * torch.eye(
                size, dtype=spread.dtype, device=spread.device
            )
            return torch.cat([spread.flatten(-2), evidence.unsqueeze(-1)], -1)

        factor = key_factor(queries, self.locations, self.key_precision, self.wide_root())
        shared = values - center_of(values), variance.unsqueeze(-1)
        found = by_scores(covariance, factor, self.log_prior, *shared, width=size)
        require_reached(found[..., -1].detach())
        return found[..., :-1].unflatten(-1, (size, size))


def _with_row(rows: Tensor, row: Maybe) -> Tensor:
    """Rows (..., U, n) with one more, 0 if None."""
    row = torch.zeros_like(rows[..., 0, :]) if row is None else row.to(rows)
    shape = common_shape(rows.shape[:-2], row.shape[:-1])
    return torch.cat([rows.expand(*shape, -1, -1), row.expand(*shape, -1).unsqueeze(-2)], -2)


def plain_units(
    keys: Tensor, key_precision: Tensor, log_prior: Maybe = None, values: Maybe = None, value_precision: Maybe = None
) -> GaussianMixture:
    """A mixture of arguments that are known to be valid; answers have no density where their precision is None."""
    none = keys.new_zeros(()) if value_precision is None else value_precision
    given = {"keys": keys, "values": values, "key_precision": key_precision, "value_precision": none}
    return check.unchecked(GaussianMixture, **given, log_prior=log_prior, answer_probs=None)


def linked_units(
    keys: Tensor, values: Maybe, key_precision: Tensor, value_precision: Tensor | None = None, log_weights: Maybe = None
) -> GaussianMixture:
    """`GaussianMixture.linked` of arguments that are known to be valid; precisions are scalars or (..., 1),
    None is 0.
    """
    link = 0.5 * key_precision * _relative_squares(keys)
    if values is not None and value_precision is not None:
        link = link + 0.5 * value_precision * _relative_squares(values)
    weights = link.unsqueeze(-2) if log_weights is None else log_weights + link.unsqueeze(-2)
    return plain_units(keys, key_precision, weights.log_softmax(-1), values, value_precision)


def _relative_squares(x: Tensor) -> Tensor:
    """``|x_j|² - |c|²`` for the center c of the x (..., U, D),
    without the digits that the squares would lose far from the origin.
    """
    center = center_of(x)
    return ((x - center) * (x + center)).sum(-1)


def gaussian_terms(
    name: str, location: Tensor, precision: Tensor, center: Tensor, counts: Tensor, sums: Tensor
) -> NormalTerms | GammaTerms:
    """Terms of the location, or (by ``name``) of the precision, of isotropic Gaussian units.

    Shapes: location (..., U, D), precision scalar or (..., U), counts ``Σw`` (..., U), and sums ``Σw (x, -|x|²/2)`` of
    points less their ``center``, (..., U, D + 1). The precision's are around the location given.
    """
    first = sums[..., :-1]
    if "precision" not in name:
        pull = precision.unsqueeze(-1) if precision.dim() else precision
        return NormalTerms((precision * counts).unsqueeze(-1).expand_as(first), pull * first, center)
    at = location - center
    scatter = -2 * sums[..., -1] - 2 * (at * first).sum(-1) + counts * at.square().sum(-1)
    return GammaTerms(0.5 * first.shape[-1] * counts, 0.5 * scatter.clamp_min(0))


def key_terms(
    name: str, keys: Tensor, shift: Tensor | None, precision: Tensor, metric: Metric | None, seen: Seen, sums: Tensor
) -> Terms:
    """Terms of ``keys``, ``shift``, ``key_precision`` or ``metric`` of units ``N(ξ_j + δ, (α_j Λ)⁻¹)``.

    Parameters
    ----------
    name
        The parameter.
    keys, shift, precision, metric
        ξ (..., U, D), δ (..., D), α scalar or (..., U), and the root of Λ; None where there is none.
    seen
        What an E-step left, a `Seen`, of which ``sums`` are ``Σw (x, -|x|²/2)`` of the queries x less their center,
        whitened: (..., U, D + 1).
    """
    counts, center = seen.counts, seen.centers["keys"]
    around = center if shift is None else center - shift.unsqueeze(-2)
    if metric is None and name != "shift":
        return gaussian_terms(name, keys, precision, around, counts, sums)
    metric = Metric(torch.ones_like(keys[..., 0, :]), True) if metric is None else metric
    at = metric.whiten(keys - around)
    if name == "key_precision":
        return gaussian_terms(name, at, precision, torch.zeros_like(center), counts, sums)
    each = precision.expand(common_shape(precision.shape, counts.shape[-1:]))
    strength, pulled = each * counts, each.unsqueeze(-1) * sums[..., :-1]
    kind = NormalTerms if metric.diagonal else CorrelatedTerms
    if name == "keys":
        return kind(metric.times(strength), metric.restore(pulled), around)
    if name == "shift":
        assert shift is not None
        rest = (pulled - strength.unsqueeze(-1) * at).sum(-2, keepdim=True)
        total = metric.times(strength.sum(-1, keepdim=True)).select(-2 if metric.diagonal else -3, 0)
        return kind(total, metric.restore(rest).squeeze(-2), shift)
    # Σ α w (x - at)(x - at)' of whitened queries
    crossed = at.mT @ pulled
    scatter = seen.scatter(each, at.shape[-1]) - crossed - crossed.mT + at.mT @ (strength.unsqueeze(-1) * at)
    if metric.diagonal:
        squares = scatter.diagonal(dim1=-2, dim2=-1).clamp_min(0) / metric.root.square()
        return GammaTerms(0.5 * counts.sum(-1, keepdim=True).expand_as(squares), 0.5 * squares)
    return WishartTerms(counts.sum(-1), scatter, metric.root)


def about_one_center(seen: Seen, name: str, block: slice) -> Any:
    """Return what an E-step left with a unit's sums about one center, the mean of those of its components, (..., U,
    R, T).

    ``name`` is that of the centers, ``block`` where their sums ``Σw (x, -|x|²/2)`` stand; nothing cancels.
    """
    sums, centers = seen.sums[..., block], seen.centers[name]
    counts = seen.sums[..., -1:] if seen.answers == "some" else seen.counts.unsqueeze(-1)
    away = centers - centers[..., :1, :]
    mean = safe_ratio(
        (counts * away).sum(-2, keepdim=True), counts.sum(-2, keepdim=True), torch.zeros_like(away[..., :1, :])
    )
    offset = away - mean
    first = sums[..., :-1] + counts * offset
    second = sums[..., -1:] - (offset * (sums[..., :-1] + 0.5 * counts * offset)).sum(-1, keepdim=True)
    moved = torch.cat([seen.sums[..., : block.start], first, second, seen.sums[..., block.stop :]], -1)
    common = (centers[..., :1, :] + mean).squeeze(-2)
    return seen._replace(sums=moved, centers={**seen.centers, name: common})


def _check_num_steps(num_steps: int) -> None:
    """Refuse a negative number of steps."""
    if num_steps < 0:
        raise ValueError(f"num_steps must be 0 or more, not {num_steps}; it is the number of EM steps")
