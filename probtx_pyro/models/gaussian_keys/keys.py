"""Mixture of Gaussian keys: attention is the posterior over units, each of which is a mixture of R Gaussian keys.

Model (MGK eq. 1, 3): ``u_i ~ Categorical(π_i)``, ``r_i | u_i=j ~ Categorical(π_j·)``,
``q_i | u_i=j, r_i=r ~ N(k_jr, I/α_jr)`` with α = 1/σ².

======  =====================  ======================  =======================================================
symbol  name                   shape                   support
======  =====================  ======================  =======================================================
q_i     ``queries``            (..., Q, D)             real
k_jr    ``keys``               (..., U, R, D)          real
v_j     ``values``             (..., U, M)             real
α_jr    ``key_precision``      scalar or (..., U, R)   > 0; axes of size 1 are shared
π_jr    ``component_weights``  (..., U or 1, R)        rows on the simplex, 0 is an absent component
π_ij    ``log_prior``          (..., Q or 1, U)        log of rows on the simplex, -inf is a mask
u_i     site ``unit``          (..., Q)                0..U-1
r_i     site ``component``     (..., Q)                0..R-1
γ_ijr   ``responsibilities``   (..., Q, U, R)          on the simplex over (j, r) together
w_ij    ``attention``          (..., Q, U)             rows on the simplex: ``Σ_r γ_ijr``
======  =====================  ======================  =======================================================

With R = 1, uniform π_j, unit-norm queries and keys and one σ² this is softmax attention (MGK eq. 2). The flat view,
``mixture``, is a `GaussianMixture` of U·R units whose values are repeated R times; everything Gaussian is
computed through it. Leading axes are independent problems (batch, head) and broadcast.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models._value import MixtureValue
from probtx_pyro.models.gaussian_keys import checks, printed, program
from probtx_pyro.models.gaussian_mixture import GaussianMixture
from probtx_pyro.models.gaussian_mixture import checks as mixture_checks
from probtx_pyro.ops import Factor, gaussian_attention, safe_log, safe_softmax
from probtx_pyro.ops._assignment import Reduction, assigned_evidence, assigned_outputs, log_sum, reduction

Maybe = Tensor | None  # an argument that may be left out


@dataclass(frozen=True, eq=False)
class GaussianKeys(MixtureValue):
    """A memory of U units with R Gaussian keys each. Immutable.

    Parameters
    ----------
    keys, values, key_precision, component_weights, log_prior
        As in the table above. ``values=None`` is a memory without answers; None for weights is uniform.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, a precision out of range, weights off their simplex.

    Examples
    --------
    >>> import torch
    >>> keys = torch.tensor([[[-1.0], [3.0]], [[1.0], [1.0]]])  # unit 0 sits on both sides of unit 1
    >>> model = GaussianKeys(keys, torch.tensor([[0.0], [1.0]]), key_precision=2.0)
    >>> [round(float(weight), 3) for weight in model.attention(torch.tensor([[-1.0], [1.0], [3.0]]))[:, 0]]
    [0.965, 0.018, 0.965]

    References
    ----------
    Nguyen et al. 2022, *Improving Transformers with Probabilistic Attention Keys*, arXiv 2110.08678.
    """

    keys: Tensor
    values: Maybe = None
    key_precision: Tensor = 1.0  # type: ignore[assignment]
    component_weights: Maybe = None
    log_prior: Maybe = None

    axes: ClassVar[Mapping[str, int]] = {
        "keys": 3, "values": 2, "key_precision": 2, "component_weights": 2, "log_prior": 2,
    }  # of each argument, after the leading ones  # fmt: skip
    adapts: ClassVar[tuple[str, ...]] = ("keys", "key_precision", "weights", "component_weights")

    if TYPE_CHECKING:  # numbers are accepted and become tensors

        def __init__(
            self,
            keys: Tensor,
            values: Maybe = None,
            key_precision: Tensor | float = 1.0,
            component_weights: Maybe = None,
            log_prior: Maybe = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        self._tensors("key_precision")
        checks.parameters(self)

    @classmethod
    def shifted(
        cls,
        keys: Tensor,
        shifts: Tensor,
        values: Maybe = None,
        key_precision: Tensor | float = 1.0,
        component_weights: Maybe = None,
        log_prior: Maybe = None,
    ) -> "GaussianKeys":
        """sMGK: ``k_jr = k_j + b_r``, keys (..., U, D) and shifts (..., R, D).

        Shifts with more axes than the keys have their own for each unit, (..., U or 1, R, D).
        """
        shifts = checks.shifted(keys, shifts)
        return cls(keys.unsqueeze(-2) + shifts, values, key_precision, component_weights, log_prior)

    @classmethod
    def linked(
        cls,
        keys: Tensor,
        values: Maybe,
        key_precision: Tensor | float,
        component_weights: Maybe = None,
        log_prior: Maybe = None,
    ) -> "GaussianKeys":
        """Weights times ``exp(α|k_jr|²/2)``, normalised over (j, r): attention is a softmax of ``α k_jr·q`` (PT eq. 16).

        With R = 1 and ``key_precision = 1/sqrt(D)``, `expected_outputs` is scaled dot-product attention. ``log_prior``
        (..., Q or 1, U) holds further log weights, not normalised. A component whose weight within its unit is below the
        smallest number of the dtype is absent.

        Raises
        ------
        ValueError
            For precisions that differ: the prior is then undefined.
        """
        precision = torch.as_tensor(key_precision, dtype=keys.dtype, device=keys.device)
        plain = cls(keys, values, checks.common_precision(precision), component_weights)
        within, units = safe_softmax(plain.component_log_weights() + 0.5 * plain.key_precision * keys.square().sum(-1))
        weights = units.unsqueeze(-2)
        if log_prior is not None:
            weights = weights + mixture_checks.log_weights(log_prior, plain.num_units)
        return plain.replace(component_weights=within, log_prior=weights.log_softmax(-1))

    def parameter(self, name: str, batch: torch.Size | tuple[int, ...] = ()) -> Maybe:
        """The tensor that a prior on ``name`` describes; weights that are None are uniform, for each problem of ``batch``."""
        if name == "component_weights" and self.component_weights is None:
            return self.keys.new_full((), 1 / self.num_components).expand(*batch, *self.unit_shape)
        return super().parameter(name, batch)

    @property
    def num_components(self) -> int:
        """R."""
        return self.keys.shape[-2]

    @property
    def unit_shape(self) -> tuple[int, int]:
        """(U, R): what the units of the flat view are counted by."""
        return self.num_units, self.num_components

    @property
    def mixture(self) -> GaussianMixture:
        """The flat view: a `GaussianMixture` of U·R units, component (j, r) at ``j R + r``, each value repeated R times."""
        precision, values, log_prior = self.key_precision, self.values, None
        if precision.dim():
            shared = precision.shape[-2:] == (1, 1)
            precision = (precision if shared else precision.expand(*precision.shape[:-2], *self.unit_shape)).flatten(-2)
        if values is not None:
            values = values.repeat_interleave(self.num_components, -2)
        if self.log_prior is not None or self.component_weights is not None:
            log_prior = (self.log_weights().unsqueeze(-1) + self.component_log_weights().unsqueeze(-3)).flatten(-2)
        none = self.keys.new_zeros(())
        return check.unchecked(GaussianMixture, keys=self.keys.flatten(-3, -2), values=values, key_precision=precision,
                               value_precision=none, log_prior=log_prior, answer_probs=None)  # fmt: skip

    # -- the log joint and what is closed form in it ---------------------------------------------------------------------

    def component_log_weights(self) -> Tensor:
        """``log π_jr``, shape (..., U, R)."""
        if self.component_weights is None:
            return self.keys.new_full(self.unit_shape, -math.log(self.num_components))
        log = safe_log(self.component_weights)
        return log.expand(*log.shape[:-2], *self.unit_shape)

    def lowered(self, queries: Tensor, *, centers: Mapping[str, Tensor] | None = None) -> tuple[Factor, Tensor]:
        """The factor of the flat view and its log weights (..., Q or 1, U·R): all that an E-step needs."""
        mixture_checks.data(self, queries)
        return self.mixture.lowered(queries, centers=centers)

    def log_joint(self, queries: Tensor) -> Tensor:
        """``log p_i(q_i, unit=j, component=r)``, (..., Q, U, R): the Pyro program's log density at every component."""
        mixture_checks.data(self, queries)
        return self.mixture.log_joint(queries).unflatten(-1, self.unit_shape)

    def responsibilities(self, queries: Tensor) -> Tensor:
        """``γ_ijr = p(unit=j, component=r | q_i)``, (..., Q, U, R), on the simplex over (j, r): MGK's E-step, erratum 10."""
        mixture_checks.data(self, queries)
        return self.mixture.attention(queries).unflatten(-1, self.unit_shape)

    def component_attention(self, queries: Tensor) -> Tensor:
        """``p(component=r | unit=j, q_i)``, (..., Q, U, R), rows on the simplex over r; for a masked unit as if it were not."""
        unmasked = self.with_parameters({"log_prior": None})
        return safe_softmax(unmasked.log_joint(queries))[0]

    def attention(self, queries: Tensor, assignment: str | Reduction = "soft") -> Tensor:
        """``p(unit=j | q_i)``, (..., Q, U) (MGK eq. 4 with its normalisers, erratum 9).

        ``assignment`` says how the components of a unit enter: "soft" sums over them, "hard" takes the largest of
        ``π_jr α_jr^{D/2} exp(-α_jr|q - k_jr|²/2)`` (MGK's hard E-step, erratum 21); a callable maps log joints
        (..., R) to (...).
        """
        return safe_softmax(reduction(assignment)(self.log_joint(queries)))[0]

    def log_evidence(self, queries: Tensor, assignment: str | Reduction = "soft") -> Tensor:
        """``log p_i(q_i)``, (..., Q) (MGK eq. 1, 3); with "hard" ``log Σ_j max_r``, which is never above it."""
        reduce = reduction(assignment)
        if reduce is log_sum:
            mixture_checks.data(self, queries)
            return self.mixture.log_evidence(queries)
        factor, log_prior = self.lowered(queries)
        return assigned_evidence(factor, log_prior, self.num_components, reduce)

    def expected_outputs(self, queries: Tensor, assignment: str | Reduction = "soft") -> Tensor:
        """``Σ_j w_ij v_j``, (..., Q, M) (MGK eq. 4): fused for "soft", no Q x U tensor; else in chunks of queries."""
        values, reduce = self._answers(), reduction(assignment)
        if reduce is log_sum:
            mixture_checks.data(self, queries)
            flat = self.with_parameters({"values": None, "log_prior": None, "component_weights": None}).mixture
            weights = None if self.component_weights is None else self.component_log_weights().flatten(-2)
            return gaussian_attention(
                queries, flat.keys, values, flat.key_precision, self.log_prior, weights, self.num_components
            )
        factor, log_prior = self.lowered(queries)
        return assigned_outputs(factor, values, log_prior, self.num_components, reduce)

    def explicit_outputs(self, queries: Tensor, assignment: str | Reduction = "soft") -> tuple[Tensor, Tensor, Tensor]:
        """Output (..., Q, M), attention (..., Q, U) and log evidence (..., Q) by the Q x U path; twice differentiable."""
        attention, evidence = safe_softmax(reduction(assignment)(self.log_joint(queries)))
        return attention @ self._answers(), attention, evidence

    def _answers(self) -> Tensor:
        if self.values is None:
            raise ValueError("values is None, so these keys have no answers; build them with values=")
        return self.values

    # -- the formulas as printed (printed.py), the Pyro programs and the guide (program.py) ------------------------------

    printed_attention = printed.printed_attention

    model = program.model
    collapsed = program.collapsed
    guide = program.guide
    plates, enumerated, marginal = program.plates, program.enumerated, program.marginal


__all__ = ["GaussianKeys"]
