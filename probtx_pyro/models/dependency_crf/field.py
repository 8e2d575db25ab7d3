"""The mean-field approximation of a dependency CRF: marginals, objective, and how the iteration went."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from probtx_pyro.ops import _arc_kernel as kernel
from probtx_pyro.ops.dependency_crf import Rule

if TYPE_CHECKING:
    from probtx_pyro.models.dependency_crf.crf import DependencyCRF


@dataclass(frozen=True, eq=False)
class MeanField:
    """``Q(Z, H) = Π Q(Z_i) Π Q(H^c_i)`` after some sweeps.

    Attributes
    ----------
    label_marginals : Tensor
        Q(Z), (..., N, L): the contextual representation of every word; zero for padding.
    head_marginals : Tensor
        Q(H), (..., C, N, S): the self-attention matrices. Slots: the root (if there is one), the N words, the M global nodes, which
        with ``memory_split`` are a distribution of their own.
    label_logits : Tensor
        (S + G) / λ_Z, damped, (..., N, L).
    root_marginals, root_logits : Tensor or None
        Of the root's label, (..., K).
    objective : Tensor or None
        The objective at the start and after every sweep, (num_steps + 1, ...), with ``history=True``.
    converged, num_steps : Tensor
        Which sentences met ``tol``, and how many sweeps each took, (...).
    """

    crf: "DependencyCRF"
    label_marginals: Tensor
    head_marginals: Tensor
    label_logits: Tensor
    root_marginals: Tensor | None
    root_logits: Tensor | None
    objective: Tensor | None
    converged: Tensor
    num_steps: Tensor
    label_temperature: float | Tensor = 1.0
    head_temperature: float | Tensor = 1.0

    @property
    def elbo(self) -> Tensor:
        """``E_Q[log φ] + λ_Z H(Q(Z)) + λ_H H(Q(H))``, (...): a lower bound of log Z where both temperatures are at most 1."""
        lead = self.crf.unary.dim() - 2
        flat = {
            name: x if lead == 1 else (x.flatten(0, lead - 1) if lead else x.unsqueeze(0))
            for name, x in {
                "labels": self.label_marginals,
                "heads": self.head_marginals,
                "root": self.root_marginals,
            }.items()
            if x is not None
        }
        prepared = kernel.Prepared.of(self.crf.potentials())
        rules = Rule(self.label_temperature), Rule(self.head_temperature)
        return kernel.objective(prepared, *rules, flat).reshape(self.crf.batch_shape)


__all__ = ["MeanField"]
