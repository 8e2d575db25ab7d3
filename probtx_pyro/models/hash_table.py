"""Attention as a soft hash table: write notes under keys, read back a blend of those whose keys resemble the query.

``e_ij = scale · q_i'k_j``, ``α_ij = softmax_j(e_ij)``, ``read_i = Σ_j α_ij v_j`` (KM eq. 3-5): softmax pooling that can
be queried. It is `GaussianMixture.linked`, a memory whose posterior is α; as the scale grows, reading becomes a lookup.

======  ==========  ====================  ========================================
symbol  name        shape                 support
======  ==========  ====================  ========================================
k_j     ``keys``    (..., N, D)           real
v_j     ``values``  (..., N, M)           real
·       ``scale``   scalar or (...)       > 0, inf is a lookup; None is ``1/sqrt(D)``
q_i     ``queries`` (..., Q, D)           real
======  ==========  ====================  ========================================

Heads are channels: a leading axis of keys, values and queries, each pooled by itself. The prior over notes follows from
their keys, so that keys and scale have no conjugate prior (erratum 8).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._reduced import ReducedMixture, for_each
from probtx_pyro.models.formulation import Parameter
from probtx_pyro.models.gaussian_mixture import GaussianMixture, linked_units
from probtx_pyro.models.mixture import Maybe, Number
from probtx_pyro.ops._numerics import single
from probtx_pyro.ops._retrieval import Memory
from probtx_pyro.ops.attention import dot_product_attention


@dataclass(frozen=True, eq=False, repr=False)
class SoftHashTable(ReducedMixture):
    """A table of notes. Immutable: writing returns a longer one.

    Parameters
    ----------
    keys, values, scale
        As in the table above.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, a scale that is not positive.

    Examples
    --------
    >>> table = SoftHashTable(torch.eye(2), torch.tensor([[10.0], [20.0]]), scale=torch.inf)
    >>> table.read(torch.tensor([[0.1, 0.9]])).tolist()
    [[20.0]]
    >>> table = table.write(torch.tensor([[-1.0, -1.0]]), torch.tensor([[30.0]]))
    >>> table.read(torch.tensor([[-0.2, -0.3]])).tolist()
    [[30.0]]

    References
    ----------
    Sahai, *EECS 182/282A Lecture 17* (2022), section 3.
    """

    keys: Tensor
    values: Tensor
    scale: Number = Number(None)

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "keys": Parameter("unit feature", constraints.real),
        "scale": Parameter("", constraints.positive, logarithmic=True),
        "values": Parameter("unit answer", constraints.real),
    }
    INSTEAD: ClassVar[Mapping[str, str]] = {
        **ReducedMixture.INSTEAD,
        "log_evidence": "scale is infinite, where the mixture has no density; give a finite scale with replace(scale=...)",
    }

    SHARPNESS: ClassVar[str] = "scale"

    def __post_init__(self) -> None:
        if self.scale is None:
            object.__setattr__(self, "scale", self.keys.shape[-1] ** -0.5)
        self._tensors("scale")
        for name, x in (("keys", self.keys), ("values", self.values)):
            check.floating(name, x)
            check.at_least(name, x, 2, f"(..., N, {'D' if name == 'keys' else 'M'})")
        check.same_dtype(keys=self.keys, values=self.values)
        check.same_size("keys", self.num_units, "values", self.values.shape[-2], "notes")
        check.finite(keys=self.keys, values=self.values)
        self._validate_sharpness()
        _ = self.batch_shape

    @property
    def mixture(self) -> GaussianMixture:
        """The memory whose posterior over units is the attention of a reading."""
        self.require_density()
        return linked_units(self.keys, self.values, for_each(self.scale, 1))

    def write(self, keys: Tensor, values: Tensor) -> "SoftHashTable":
        """The table with more notes, keys (..., n, D) and values (..., n, M).

        A process that reads after each note it writes is causal self-attention.
        """
        for name, x, old in (("keys", keys, self.keys), ("values", values, self.values)):
            check.same_size(name, x.shape[-1], f"the table's {name}", old.shape[-1], "features")
        return self.replace(keys=torch.cat([self.keys, keys], -2), values=torch.cat([self.values, values], -2))

    def attention(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None) -> Tensor:
        """``α_ij``, (..., Q, N): how much of each note is in a reading; of a lookup 1 for the best match,
        the first of several.
        """
        self.check_data(queries, outputs, observed)
        return self.among(queries).each(lambda scores, best, *_: self._weights(scores, best), queries).to(queries.dtype)

    def among(self, queries: Tensor) -> Memory:
        """The notes as scored for such queries, with as many digits as their scale asks for."""
        scale = torch.ones_like(self.scale) if self.hard else self.scale
        return Memory.of(for_each(scale, 2), queries, self.keys)

    def _weights(self, scores: Tensor, best: Tensor) -> Tensor:
        return torch.zeros_like(scores).scatter(-1, best, 1.0) if self.hard else scores.softmax(-1)

    def read(self, queries: Tensor) -> Tensor:
        """``Σ_j α_ij v_j``, (..., Q, M); fused unless it is a lookup: no Q x N tensor."""
        self.check_data(queries)
        memory = self.among(queries)
        if self.hard or memory.digits > 1:

            def read(scores: Tensor, best: Tensor, states: Tensor, own: Memory, values: Tensor) -> Tensor:
                return self._weights(scores, best) @ values

            return memory.each(read, queries, single(self.values)).to(self.values.dtype)
        return dot_product_attention(for_each(self.scale, 2) * queries, self.keys, self.values)

    def expected_outputs(self, queries: Tensor) -> Tensor:
        """`read`, in the words of the other formulations."""
        return self.read(queries)
