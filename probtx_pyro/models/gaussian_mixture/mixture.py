"""Gaussian-mixture MAP transformer: attention is the posterior over which memory unit explains the query.

Model (PT eq. 1-11): ``u_i ~ Categorical(π_i)``, ``q_i | u_i=j ~ N(ξ_j, I/α_j)``, ``v_i | u_i=j ~ N(μ_j, I/β_j)`` or
``v_i | u_i=j ~ Categorical(ρ_j)``.

======  ===================  ======================  ==============================================
symbol  name                 shape                   support
======  ===================  ======================  ==============================================
q_i     ``queries``          (..., Q, D)             real
ξ_j     ``keys``             (..., U, D)             real
μ_j     ``values``           (..., U, M)             real
α_j     ``key_precision``    scalar or (..., U)      > 0
β_j     ``value_precision``  scalar or (..., U)      > 0, or 0 everywhere: the standard-attention limit
π_ij    ``log_prior``        (..., Q or 1, U)        log of rows on the simplex, -inf is a mask
v_i     ``outputs``          (..., Q, M) or (..., Q) real, or labels 0..K-1
ρ_j     ``answer_probs``     (..., U, K)             rows on the simplex
u_i     site ``unit``        (..., Q)                0..U-1
w_ij    ``attention``        (..., Q, U)             rows on the simplex
======  ===================  ======================  ==============================================

Leading axes are independent problems (batch, head) and broadcast. A position term is a prior or a key that depends on
(i, j): ``log_prior`` with Q rows, or keys of shape (..., Q, U, D) asked with queries (..., Q, 1, D).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from probtx_pyro.models._value import MixtureValue
from probtx_pyro.models.gaussian_mixture import answers, checks, program
from probtx_pyro.ops import (
    Factor,
    categorical_factor,
    explicit_attention,
    gaussian_attention,
    gaussian_factor,
    joint,
    log_evidence,
    log_joint,
    safe_softmax,
)
from probtx_pyro.ops._numerics import center_of

Maybe = Tensor | None  # an argument that may be left out


@dataclass(frozen=True, eq=False)
class GaussianMixture(MixtureValue):
    """A memory of U units, each a Gaussian key and a Gaussian (or categorical) answer. Immutable.

    Parameters
    ----------
    keys, values, key_precision, value_precision, log_prior
        As in the table above. ``values=None`` is a memory without answers; ``log_prior=None`` is uniform; a
        ``value_precision`` of 0 is the standard-attention limit, in which answers have a mean and no density.
    answer_probs
        Categorical answers instead of values; see `categorical`.

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
    key_precision: Tensor = 1.0  # type: ignore[assignment]
    value_precision: Tensor = 0.0  # type: ignore[assignment]
    log_prior: Maybe = None
    answer_probs: Maybe = field(default=None, kw_only=True)

    axes: ClassVar[Mapping[str, int]] = {
        "keys": 2, "values": 2, "key_precision": 1, "value_precision": 1, "log_prior": 2, "answer_probs": 2,
    }  # of each argument, after the leading ones  # fmt: skip
    adapts: ClassVar[tuple[str, ...]] = (
        "keys",
        "key_precision",
        "values",
        "value_precision",
        "weights",
        "answer_probs",
    )

    if TYPE_CHECKING:  # numbers are accepted and become tensors

        def __init__(
            self,
            keys: Tensor,
            values: Maybe = None,
            key_precision: Tensor | float = 1.0,
            value_precision: Tensor | float = 0.0,
            log_prior: Maybe = None,
            *,
            answer_probs: Maybe = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        self._tensors("key_precision", "value_precision")
        checks.parameters(self)

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
        link = 0.5 * precisions[0] * keys.square().sum(-1)
        if values is not None:
            link = link + 0.5 * precisions[1] * values.square().sum(-1)
        weights = (
            link.unsqueeze(-2)
            if log_prior is None
            else checks.log_weights(log_prior, keys.shape[-2]) + link.unsqueeze(-2)
        )
        return plain.replace(log_prior=weights.log_softmax(-1))

    @classmethod
    def categorical(
        cls, keys: Tensor, answer_probs: Tensor, key_precision: Tensor | float = 1.0, log_prior: Maybe = None
    ) -> "GaussianMixture":
        """Units that answer with a label: ``v_i | u_i=j ~ Categorical(answer_probs_j)``; outputs are integers (..., Q)."""
        return cls(keys, None, key_precision, 0.0, log_prior, answer_probs=answer_probs)

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """(U,): what the units of the factor are counted by."""
        return (self.num_units,)

    @property
    def answer_density(self) -> bool:
        """Whether answers have a density: categorical, or values with a positive precision."""
        return self.answer_probs is not None or (self.values is not None and bool((self.value_precision > 0).all()))

    # -- the log joint and what is closed form in it ---------------------------------------------------------------------

    def factor(
        self,
        queries: Tensor,
        outputs: Maybe = None,
        observed: Maybe = None,
        centers: Mapping[str, Tensor] | None = None,
    ) -> Factor:
        """``log p(q_i, v_i | unit=j)`` (2.1 without the prior) as statistics, parameters and bias.

        ``centers`` of keys (..., 1, D) and values (..., 1, M) are subtracted first; the mean key and value if None.
        """
        checks.data(self, queries, outputs, observed)
        center = center_of(self.keys) if centers is None else centers["keys"]
        factor = gaussian_factor(queries - center, self.keys - center, self.key_precision)
        return factor if outputs is None else joint(factor, self._answer_factor(outputs, observed, centers))

    def _answer_factor(self, outputs: Tensor, observed: Maybe, centers: Mapping[str, Tensor] | None) -> Factor:
        if self.answer_probs is not None:
            outputs = outputs if observed is None else torch.where(observed, outputs, 0)
            return categorical_factor(outputs, self.answer_probs, observed)
        center = center_of(self.values) if centers is None else centers["values"]
        points = outputs - center
        points = points if observed is None else torch.where(observed.unsqueeze(-1), points, 0.0)
        return gaussian_factor(points, self.values - center, self.value_precision, observed)

    def lowered(
        self,
        queries: Tensor,
        outputs: Maybe = None,
        observed: Maybe = None,
        centers: Mapping[str, Tensor] | None = None,
    ) -> tuple[Factor, Tensor]:
        """`factor` and log weights (..., Q or 1, U): all that an E-step needs."""
        return self.factor(queries, outputs, observed, centers), self.log_weights()

    def log_joint(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None) -> Tensor:
        """``log p_i(q_i, v_i, unit=j)``, shape (..., Q, U): equation 2.1, the log density of the Pyro program at every unit.

        ``outputs`` (..., Q, M), or labels (..., Q), count where ``observed`` (..., Q) is True (everywhere if None).
        """
        return log_joint(self.factor(queries, outputs, observed), self.log_weights())

    def attention(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None) -> Tensor:
        """``p(unit=j | q_i, v_i)``, shape (..., Q, U): the exact E-step (PT eq. 5, 27, 36)."""
        return safe_softmax(self.log_joint(queries, outputs, observed))[0]

    def log_evidence(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None) -> Tensor:
        """``log p_i(q_i, v_i)`` with the unit summed out, shape (..., Q) (PT eq. 2, 10)."""
        return log_evidence(self.factor(queries, outputs, observed), self.log_weights())

    def expected_outputs(self, queries: Tensor) -> Tensor:
        """Posterior mean of the answer, ``E[v_i | q_i] = Σ_j p(unit=j | q_i) μ_j``, shape (..., Q, M); label probabilities (..., Q, K).

        Fused: ``scaled_dot_product_attention`` on the lowered mixture, no Q x U tensor. PT eq. 20-21 in the linked limit.
        """
        checks.data(self, queries, None, None)
        return gaussian_attention(queries, self.keys, self.unit_answers(), self.key_precision, self.log_prior)

    def explicit_outputs(self, queries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Posterior mean (..., Q, M), attention (..., Q, U) and log evidence (..., Q) by the Q x U path; twice differentiable."""
        return explicit_attention(self.factor(queries), self.unit_answers(), self.log_weights())

    def unit_answers(self) -> Tensor:
        """What the units answer: values (..., U, M), or probabilities of labels (..., U, K)."""
        answers_of_units = self.values if self.answer_probs is None else self.answer_probs
        if answers_of_units is None:
            raise ValueError(
                "values is None, so this mixture has no answers; build it with values=, or with GaussianMixture.categorical"
            )
        return answers_of_units

    # -- the answer's distribution beyond its mean (answers.py), the Pyro programs and the guide (program.py) -------------

    map_outputs = answers.map_outputs
    output_modes = answers.output_modes
    output_covariance = answers.output_covariance
    output_distribution = answers.output_distribution

    model = program.model
    collapsed = program.collapsed
    guide = program.guide
    plates, enumerated, marginal = program.plates, program.enumerated, program.marginal


__all__ = ["GaussianMixture"]
