"""Gaussian-mixture MAP transformer: attention is the posterior over which memory unit explains the query.

Model (PT eq. 1-11): ``u_i ~ Categorical(π_i)``, ``q_i | u_i=j ~ N(ξ_j, I/α_j)``, ``v_i | u_i=j ~ N(μ_j, I/β_j)`` or
``v_i | u_i=j ~ Categorical(ρ_j)``. With a metric Λ and a shift δ, which the units share, ``q_i | u_i=j ~ N(ξ_j + δ, (α_j Λ)⁻¹)``.

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

Attention is the E-step, PT eq. 5, 27, 36 (erratum 4). Leading axes are independent problems (batch, head) and broadcast. A
position term is a prior or a key that depends on (i, j): ``log_prior`` with Q rows, or keys of shape (..., Q, U, D) asked with
queries (..., Q, 1, D). α and Λ share one scale: fix one of them, or let their priors decide.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from pyro.distributions import Categorical, MultivariateNormal, Normal, TorchDistribution
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models._answers import GaussianAnswers
from probtx_pyro.models._distributions import MixtureDensity
from probtx_pyro.models._from_points import FromPoints
from probtx_pyro.models._gaussian_checks import validate_each, validate_units
from probtx_pyro.models._plates import isotropic
from probtx_pyro.models.mixture import Centers, Maybe, Number, answers_of
from probtx_pyro.ops import Factor, categorical_factor, gaussian_attention, gaussian_factor, joint
from probtx_pyro.ops._factor import beside
from probtx_pyro.ops._numerics import center_of, common_shape


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture(GaussianAnswers, FromPoints):
    """A memory of U units, each a Gaussian key and a Gaussian (or categorical) answer. Immutable.

    Parameters
    ----------
    keys, values, key_precision, value_precision, log_prior
        As in the table above. ``values=None`` is a memory without answers; ``log_prior=None`` is uniform; a
        ``value_precision`` of 0 is the standard-attention limit, in which answers have a mean and no density.
    answer_probs
        Categorical answers instead of values; see `categorical`.
    metric, shift
        As in the table above. A metric (D, D) is a matrix and not the diagonals of D problems, unless ``diagonal_metric`` says so.
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
    >>> mixture.attention(torch.tensor([[0.5], [1.0]])).round(decimals=4).tolist()
    [[0.5, 0.5], [0.11919999867677689, 0.8808000087738037]]
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
        validate_each(self, "key_precision")
        validate_units(self)

    @classmethod
    def linked(
        cls,
        keys: Tensor,
        values: Maybe,
        key_precision: Tensor | float,
        value_precision: Tensor | float = 0.0,
        log_prior: Maybe = None,
    ) -> "GaussianMixture":
        """The mixture whose prior ``π_j ∝ exp(α|ξ_j|²/2 + β|μ_j|²/2)`` (PT eq. 16) makes attention a softmax of dot products.

        With ``key_precision = 1/sqrt(D)`` and ``value_precision = 0``, `expected_outputs` is scaled dot-product attention.
        ``log_prior`` (..., Q or 1, U) holds further log weights, not normalised: masks (0 and -inf), position terms.

        Raises
        ------
        ValueError
            For precisions that differ between units: the prior is then undefined.
        """
        precisions = []
        for name, precision in (("key_precision", key_precision), ("value_precision", value_precision)):
            precision = torch.as_tensor(precision, dtype=keys.dtype, device=keys.device)
            if precision.dim() and (precision != precision[..., :1]).any():
                raise ValueError(
                    f"{name} differs between units, for which the linked prior is undefined; use one precision, or GaussianMixture with a log_prior of your own"
                )
            precisions.append(precision[..., :1] if precision.dim() else precision)
        plain = cls(keys, values, *precisions)
        if log_prior is not None:
            log_prior = check.log_weights(log_prior, "keys", plain.num_units)
        return linked_units(keys, values, precisions[0], precisions[1], log_prior).replace()

    def with_background(
        self,
        weight: Tensor | float,
        *,
        key_precision: Tensor | float | None = None,
        key: Maybe = None,
        value: Maybe = None,
        value_precision: Tensor | float | None = None,
    ) -> "GaussianMixture":
        """The mixture with one more unit, the last: attention to nothing.

        With key 0 and answer 0 in a linked mixture, attention to the other units is a softmax that may sum to less than one,
        ``exp(s_j) / (exp(s_0) + Σ exp(s))`` with s_0 the logit of the background: "off by one" where it is 0.

        Parameters
        ----------
        weight
            Its prior probability, a number or (...), strictly between 0 and 1; the other units share the rest as before.
        key_precision, value_precision
            Its precisions, a number or (...); None is that of the other units, where they share one. A small one makes it wide.
        key, value
            Where it is (..., D), and its answer (..., M), or probabilities of labels (..., K); None is 0, for labels uniform.

        Raises
        ------
        ValueError
            A weight outside (0, 1), no precision where those of the units differ, shapes that do not fit.
        """
        keys, log_weights = self.keys, self.log_weights()
        weight = torch.as_tensor(weight, dtype=keys.dtype, device=keys.device)
        if check.violated(~((weight > 0) & (weight < 1))):
            raise ValueError("weight must lie strictly between 0 and 1; it is the background's prior probability")
        own = weight[..., None, None]
        changes: dict[str, Any] = {
            "log_prior": beside(log_weights + (-own).log1p(), own.log()),
            "keys": _with_row(keys, key),
            "key_precision": self._with_precision("key_precision", key_precision),
            "value_precision": self._with_precision("value_precision", value_precision),
        }
        if self.values is not None:
            changes["values"] = _with_row(self.values, value)
        if self.answer_probs is not None:
            uniform = torch.full_like(self.answer_probs[..., 0, :], 1 / self.answer_probs.shape[-1])
            changes["answer_probs"] = _with_row(self.answer_probs, uniform if value is None else value)
        return self.replace(**changes)

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

    # -- the program: what a unit emits --------------------------------------------------------------------------------------

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

    # -- the closed form ------------------------------------------------------------------------------------------------------

    def whitened(self, queries: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (..., Q, D) and locations (..., U, D) less a center (..., 1, D), where the metric is the plain inner product."""
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
        """``log p(q_i, v_i | unit=j)``: a product centred on ``centers`` (those of the mixture if None), or squares of keys and answers."""
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
        """Posterior mean of the answer, ``E[v_i | q_i] = Σ_j p(unit=j | q_i) μ_j``, (..., Q, M); label probabilities (..., Q, K).

        Fused: ``scaled_dot_product_attention`` on the lowered mixture, no Q x U tensor. PT eq. 20-21 in the linked limit.
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
            raise ValueError(
                "output_distribution needs answers with a density; give value_precision > 0 or answer_probs"
            )
        if self.answer_probs is not None:
            return Categorical(probs=self.expected_outputs(queries))
        log_joint = self.log_joint(queries)
        evidence = log_joint.logsumexp(-1, keepdim=True)
        answers = check.unchecked(
            GaussianMixture, keys=self.values, values=None, key_precision=self.value_precision,
            value_precision=self.keys.new_zeros(()), log_prior=log_joint - evidence, answer_probs=None,
        )  # fmt: skip
        return MixtureDensity(answers, queries.shape[-2])


def _with_row(rows: Tensor, row: Maybe) -> Tensor:
    """Rows (..., U, n) with one more, 0 if None."""
    row = torch.zeros_like(rows[..., 0, :]) if row is None else row.to(rows)
    shape = common_shape(rows.shape[:-2], row.shape[:-1])
    return torch.cat([rows.expand(*shape, -1, -1), row.expand(*shape, -1).unsqueeze(-2)], -2)


def linked_units(
    keys: Tensor, values: Maybe, key_precision: Tensor, value_precision: Tensor | None = None, log_weights: Maybe = None
) -> GaussianMixture:
    """`GaussianMixture.linked` of arguments that are known to be valid; precisions are scalars or (..., 1), None is 0."""
    link = 0.5 * key_precision * _relative_squares(keys)
    if values is not None and value_precision is not None:
        link = link + 0.5 * value_precision * _relative_squares(values)
    weights = link.unsqueeze(-2) if log_weights is None else log_weights + link.unsqueeze(-2)
    precision = keys.new_zeros(()) if value_precision is None else value_precision
    return check.unchecked(GaussianMixture, keys=keys, values=values, key_precision=key_precision, value_precision=precision,
                           log_prior=weights.log_softmax(-1), answer_probs=None)  # fmt: skip


def _relative_squares(x: Tensor) -> Tensor:
    """``|x_j|² - |c|²`` for the center c of the x (..., U, D), without the digits that the squares would lose far from the origin."""
    center = center_of(x)
    return ((x - center) * (x + center)).sum(-1)
